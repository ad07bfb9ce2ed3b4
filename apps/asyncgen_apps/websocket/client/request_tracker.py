"""Track all requests of a client, and decide which frames the server needs; no I/O.

Messages go in, frames to send come out. :mod:`asyncgen_apps.websocket.client.link` makes the
connections and calls the tracker in the event loop of the client.
"""

from __future__ import annotations

import json
import math
from collections import deque
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from asyncgen import (
    InvalidRequestError,
    Timing,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
    Usage,
)
from asyncgen_apps.websocket.client.errors import ConnectionLostError, error_from_server
from asyncgen_apps.websocket.client.request import Phase
from asyncgen_apps.websocket.messages import SERVER_MESSAGE, Accepted, Delta, Done, Error, Logprob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen import AsyncgenError
    from asyncgen_apps.websocket.client.request import Request
    from asyncgen_apps.websocket.messages import Hello, Limits, ServerMessage


_PAUSE = 1.0
"""Seconds until an overloaded server that gives no time is asked again."""

_FORGOTTEN = frozenset(("resume_unknown", "resume_gone"))
"""Errors of a server that did not begin the request, was restarted, or dropped it in time."""

_ABOUT_A_MESSAGE = frozenset(
    ("invalid_json", "invalid_message", "unknown_type", "unsupported_data", "message_too_big")
)
"""Errors that a message of this client caused; without an ``id``, that of a new request."""


class RequestTracker:
    """Requests of one client.

    On the next connection, an accepted request resumes behind its last delta. A request without
    its ``accepted`` is sent again under a new id; none of it was read, so nothing is repeated. If
    the client knows other servers, a request whose server is lost moves to another one, which
    resumes behind the received tokens. If a server takes over requests (``takes_over``), a request
    that it does not know is resumed with its parameters and its received tokens.

    A draining server finishes its running requests. The client stays until they have ended, then
    connects to another server; requests that the server refused wait until then.

    Attributes:
        move_reason: Error that makes the client leave this server now; ``None`` while it stays.
        pause: Seconds after which :meth:`ask_again` is due; ``None`` if it is not.
    """

    def __init__(self, *, moves: bool = False) -> None:
        """Begin without a connection.

        Args:
            moves: True if the client knows other servers.
        """
        self.move_reason: AsyncgenError | None = None
        self.pause: float | None = None
        self._drain_reason: AsyncgenError | None = None
        self._moves = moves
        self._server = 0
        self._fingerprint: str | None = None
        self._takes_over = False
        self._waiting: deque[Request] = deque()
        self._live: dict[str, Request] = {}
        self._limits: Limits | None = None
        self._prefix = token_hex(4)
        self._count = 0

    @property
    def busy(self) -> bool:
        """True if any caller waits for the server."""
        requests = (*self._waiting, *self._live.values())
        return any(not one.given_up and one.phase is not Phase.ENDED for one in requests)

    def update(self, request: Request) -> list[str]:
        """Send or cancel a request, as its state requires.

        Returns:
            Frames to send; none without a connection.
        """
        if request.phase is Phase.ENDED:
            return []
        if request.phase is Phase.NEW:
            if request.given_up:
                request.stop("cancelled")
            elif request not in self._waiting:
                self._waiting.append(request)
            return self._send_waiting()
        if request.given_up:
            if request.is_held:  # the server does not have it
                request.stop("cancelled")
                return self._forget(request.id)
            if self._limits is not None:
                return self._cancel(request)
            if not request.left:  # end it now; its reader does not wait for the next connection
                request.stop("cancelled")
        return []

    def connected(self, hello: Hello, server: int = 0) -> list[str]:
        """Resume or send all requests on a new connection.

        Args:
            hello: First message of the server.
            server: Index of its address.

        Returns:
            Frames to send: first the requests to resume, then the others.
        """
        self._limits, self._fingerprint = hello.limits, hello.fingerprint
        self._takes_over = hello.takes_over
        self._server, self.move_reason = server, None
        self.pause = self._drain_reason = None
        known, self._live = self._live, {}
        again: list[Request] = []
        frames: list[str] = []
        for request in known.values():
            request.cancel_sent = request.is_repeated = request.is_held = False
            if request.resume_token and request.server != server and not request.given_up:
                if request.phase is not Phase.ENDED:
                    request.move()
                    again.append(request)
            elif request.resume_token and request.server == server:
                self._live[request.id] = request
                frames.append(_resume(request))
                if request.given_up or request.phase is Phase.ENDED:
                    frames += self._cancel(request)
            elif not request.given_up:
                request.phase = Phase.NEW
                again.append(request)
            elif request.phase is not Phase.ENDED:
                request.stop("cancelled")
        self._waiting.extendleft(reversed(again))
        return frames + self._send_waiting()

    def disconnected(self) -> None:
        """Note that the connection has ended."""
        self._limits = None
        for request in list(self._live.values()):
            if request.cancel_wanted:
                self.update(request)

    def receive(self, message: ServerMessage) -> list[str]:
        """Process a message.

        Returns:
            Frames to send.

        Raises:
            GapError: A delta is missing; the client must reconnect and resume to get it.
        """
        if isinstance(message, Error):
            return self._receive_error(message)
        if not isinstance(message, Accepted | Delta | Done):
            return []
        request = self._live.get(message.id)
        if request is None:
            return []
        if isinstance(message, Accepted):
            if request.phase is Phase.ENDED:
                request.resume_token = message.resume_token
            else:
                self._accept(request, message)
            return []
        if isinstance(message, Done):
            if _is_aborted(message) and not request.given_up:
                reason = ConnectionLostError("the server leaves")
                if self._moves:
                    return self._move_at_once(request, reason)
                if self._takes_over and request.phase is not Phase.ENDED:
                    return self._reconnect(reason)
            if request.phase is not Phase.ENDED and not request.left:
                _finish(request, message)
            return self._forget(message.id)
        if request.phase is not Phase.ENDED and not request.left:
            _add(request, message)
            if request.failure is not None:
                return self._cancel(request)
        return []

    def ask_again(self) -> list[str]:
        """Send again the requests that the server refused because it was overloaded.

        Returns:
            Frames to send.
        """
        self.pause = None
        if self._drain_reason is not None:
            return []
        held = [one for one in self._live.values() if one.is_held]
        return [frame for one in held for frame in self._repeat(one)]

    def fail_all(self, error: Exception) -> None:
        """End every request with an error: no server can be reached."""
        requests = [*self._live.values(), *self._waiting]
        self._live.clear()
        self._waiting.clear()
        for request in requests:
            request.fail(error)

    def close(self) -> list[str]:
        """End every request with ``"aborted"``: the client is being closed.

        Returns:
            Frames to send before the connection is closed.
        """
        frames = []
        for request in self._live.values():
            if self._limits is not None:
                frames += self._cancel(request)
        for request in (*self._live.values(), *self._waiting):
            request.stop("aborted")
        self._live.clear()
        self._waiting.clear()
        return frames

    def _receive_error(self, message: Error) -> list[str]:
        if message.id is None:
            if message.code in _ABOUT_A_MESSAGE:
                for name, sent in list(self._live.items()):
                    if sent.phase is Phase.SENT:
                        sent.fail(_exception(message, sent))
                        del self._live[name]
            return self._send_waiting()
        request = self._live.get(message.id)
        if request is None:
            return []
        if message.code in ("duplicate_id", "resume_attached") and request.resume_token:
            return []  # the request runs under this id already
        if self._moves and not request.given_up and request.phase is not Phase.ENDED:
            if message.code == "draining":
                return self._move_later(request, _exception(message, request))
            if message.code == "engine_dead":
                return self._move_at_once(request, _exception(message, request))
            if message.code in _FORGOTTEN or _cannot_go_on(message, request):
                return self._send_again(request)
        elif self._takes_over and not request.given_up and request.phase is not Phase.ENDED:
            if message.code == "draining":
                request.is_held = True
                return self._drain(_exception(message, request))
            if message.code == "overloaded" and request.is_repeated:
                if not self._is_under_way:
                    return self._reconnect(_exception(message, request))
                request.is_held, self.pause = True, message.retry_after or _PAUSE
                return []
            if message.code in _FORGOTTEN and request.resume_token and not request.is_repeated:
                again = self._send_again if request.starts_over else self._repeat
                return again(request)
            if _cannot_go_on(message, request) and request.is_repeated:
                request.resume_token = ""
                return self._send_again(request)
        request.fail(_exception(message, request))
        return self._forget(message.id)

    def _accept(self, request: Request, message: Accepted) -> None:
        """Note that a server accepted a request."""
        if not request.has_tokens:
            request.exact, request.fingerprint = True, self._fingerprint
        elif request.fingerprint is None or request.fingerprint != self._fingerprint:
            request.exact, request.fingerprint = False, self._fingerprint
        request.server = self._server
        request.accept(message.resume_token, message.seed)

    @property
    def _is_under_way(self) -> bool:
        """Tell whether the server runs a request that a caller waits for."""
        return any(
            one.phase is Phase.ACCEPTED and not one.is_repeated and not one.given_up
            for one in self._live.values()
        )

    def _move_later(self, request: Request, reason: AsyncgenError) -> list[str]:
        """Queue a request for another server, and leave this one once it has no others."""
        self._live.pop(request.id)
        request.move()
        self._waiting.append(request)
        return self._drain(reason)

    def _drain(self, reason: AsyncgenError) -> list[str]:
        """Send nothing new to this server, and leave it once all its requests have ended."""
        self._drain_reason = self._drain_reason or reason
        return self._send_waiting()

    def _move_at_once(self, request: Request, reason: AsyncgenError) -> list[str]:
        """Queue a request for another server, and leave this one now."""
        self._live.pop(request.id, None)
        request.move()
        self._waiting.append(request)
        self._limits, self.move_reason = None, reason
        return []

    def _reconnect(self, reason: AsyncgenError) -> list[str]:
        """Leave this server; the next one at its address resumes all requests."""
        self._limits, self.move_reason = None, reason
        return []

    def _repeat(self, request: Request) -> list[str]:
        """Resume a request that the server does not know, with everything that it needs."""
        request.repeat()
        frame = _repeated(request)
        most = None if self._limits is None else self._limits.max_message_bytes
        if most is not None and len(frame.encode()) > most:
            text = f"its server was lost, and another takes {most} bytes at most"
            request.fail(ConnectionLostError(text))
            return self._forget(request.id)
        return [frame]

    def _send_again(self, request: Request) -> list[str]:
        """Send a request with its received tokens, or from the beginning if it cannot resume."""
        if not request.resume_token and not request.start_over(self._fingerprint):
            request.fail(ConnectionLostError("its server was lost, and no other can go on with it"))
            return self._forget(request.id)
        self._live.pop(request.id, None)
        request.move()
        self._waiting.append(request)
        return self._send_waiting()

    def _forget(self, name: str) -> list[str]:
        self._live.pop(name).phase = Phase.ENDED
        return self._send_waiting()

    def _cancel(self, request: Request) -> list[str]:
        if request.cancel_sent:
            return []
        request.cancel_sent = True
        return [_frame("cancel", id=request.id)]

    def _send_waiting(self) -> list[str]:
        """Send waiting requests up to the limit of the connection."""
        frames: list[str] = []
        if self._drain_reason is not None:
            return [] if self._is_under_way else self._reconnect(self._drain_reason)
        while self._limits and self._waiting and len(self._live) < self._limits.max_requests:
            request = self._waiting.popleft()
            if request.phase is not Phase.NEW:
                continue
            if request.given_up:
                request.stop("cancelled")
                continue
            self._count += 1
            request.id = f"{self._prefix}-{self._count}"
            frame = _generate(request)
            most = self._limits.max_message_bytes
            if (size := len(frame.encode())) > most:
                allowed = f"a request of {size} bytes; the server takes at most {most}"
                request.fail(InvalidRequestError("prompt", _prompt_of(request), allowed))
                continue
            request.phase = Phase.SENT
            self._live[request.id] = request
            frames.append(frame)
        return frames


def _frame(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, **fields}, ensure_ascii=False, separators=(",", ":"))


def _generate(request: Request) -> str:
    return _frame(
        "generate", id=request.id, **request.prompt, params=request.sent_params, events="tokens"
    )


def _cannot_go_on(message: Error, request: Request) -> bool:
    """Tell whether a server refuses the fields that this client has added."""
    return message.param in ("generated_ids", "fingerprint") and request.has_tokens


def _resume(request: Request) -> str:
    return _frame("resume", id=request.id, resume_token=request.resume_token, after=request.seq)


def _repeated(request: Request) -> str:
    ids, positions = request.arrived
    return _frame(
        "resume",
        id=request.id,
        resume_token=request.resume_token,
        after=request.seq,
        request={**request.prompt, "params": request.params, "events": "tokens"},
        generated_ids=ids,
        positions=positions,
    )


def _prompt_of(request: Request) -> object:
    """Return the prompt that the caller gave."""
    return next(iter(request.prompt.values()))


def _is_aborted(done: Done) -> bool:
    """Tell whether a server has ended a sample because it shuts down."""
    return "aborted" in {done.finish_reason, *(one.finish_reason for one in done.choices or ())}


def _exception(message: Error, request: Request) -> AsyncgenError:
    prompt = _prompt_of(request)
    return error_from_server(
        message.code,
        message.message,
        retry_after=message.retry_after,
        parameter=message.param,
        sent={"prompt": prompt, "messages": prompt, "token_ids": prompt, **request.params},
    )


def _add(request: Request, delta: Delta) -> None:
    request.add(
        delta.seq if delta.first_seq is None else delta.first_seq,
        delta.seq,
        index=delta.index,
        text=delta.text,
        token_ids=delta.token_ids,
        logprobs=None if delta.logprobs is None else [_logprob(one) for one in delta.logprobs],
        time=delta.time,
        reasoning=delta.reasoning or "",
        tool_calls=[ToolCallDelta(**one.model_dump()) for one in delta.tool_calls or ()],
        prompt=[None if one is None else _logprob(one) for one in delta.prompt_logprobs or ()],
    )


def _finish(request: Request, done: Done) -> None:
    ends: Sequence[Any] = done.choices or [(0, done.finish_reason, done.stop_reason)]
    if done.choices is not None:
        ends = [(one.index, one.finish_reason, one.stop_reason) for one in done.choices]
    usage = Usage(**done.usage.model_dump())
    request.finish(done.seq, ends, usage, Timing(**done.timing.model_dump()))


def _logprob(entry: Logprob) -> TokenLogprob:
    top = tuple(TopLogprob(one.token_id, one.token, _number(one.logprob)) for one in entry.top)
    return TokenLogprob(entry.token_id, entry.token, _number(entry.logprob), top)


def _number(logprob: float | None) -> float:
    """Read a log-probability; JSON has no infinity and writes ``null``."""
    return -math.inf if logprob is None else logprob


def read_message(text: str | bytes) -> ServerMessage | None:
    """Read a message of the server; return ``None`` for a type that this client does not know.

    Raises:
        ValueError: It is not a message of the protocol.
    """
    if isinstance(text, bytes):
        raise ValueError("a binary message")
    try:
        return SERVER_MESSAGE.validate_json(text)
    except ValidationError as error:
        if any(one["type"] == "union_tag_invalid" for one in error.errors(include_url=False)):
            return None
        raise
