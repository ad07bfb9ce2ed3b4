"""Run the protocol of one connection without a socket, an event loop or a clock.

A :class:`Channel` takes the messages of a client (:meth:`Channel.receive`) and the output of the
engine (:class:`~asyncgen_apps.websocket.resumable_requests.Answer`). It returns actions (start a
request, stop it, close the connection) and, from :meth:`Channel.flush`, the messages to send. The
owner of the socket calls ``flush`` after ``on_ready``, once the socket takes more bytes. Until then
messages are merged.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from asyncgen_apps.serving.clients import ANYBODY
from asyncgen_apps.websocket.errors import BAD_TOKEN, DRAINING, DUPLICATE, Fault
from asyncgen_apps.websocket.messages import Auth, Cancel, CloseCode, Generate, Hello, Ping, Resume
from asyncgen_apps.websocket.params import check_params, check_priority
from asyncgen_apps.websocket.takeover import UNKNOWN_REQUEST, check_resume

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen import ToolCallDelta
    from asyncgen_apps.serving.clients import Client
    from asyncgen_apps.websocket.messages import ClientMessage, Wanted
    from asyncgen_apps.websocket.replay import Piece
    from asyncgen_apps.websocket.resumable_requests import Answer, Registry
    from asyncgen_apps.websocket.settings import StreamSettings
    from asyncgen_apps.websocket.takeover import ResumePoint


_RECENT_IDS = 256
"""Ids of ended requests that are remembered: a late ``cancel`` of one of them is no error."""


@dataclass(frozen=True, slots=True)
class StartRequest:
    """Start a request.

    Attributes:
        answer: Receives the output of the engine.
        request: Prompt and parameters from the client.
        resume_point: Position from which to resume, if another server began the request.
        replaced: Earlier answer of this server to the same request, of which too little was kept.
            It ends as soon as the digests show that both requests are the same.
    """

    answer: Answer
    request: Wanted
    resume_point: ResumePoint | None = None
    replaced: Answer | None = None


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Stop a request in the engine, which then reports its end."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Send the waiting messages, then close the connection."""

    code: CloseCode
    reason: str


Action = StartRequest | StopRequest | CloseConnection


def _ignore() -> None:
    """Do nothing: the callback of a channel before its owner sets one."""


class Channel:
    """State of the protocol on one connection.

    Attributes:
        client: Owner of the connection; ``None`` until it is authenticated.
        has_left: Tells whether the client is gone.
        is_draining: True if new requests are refused because the server shuts down.
        on_ready: Called when there are messages to flush; it must be quick.
    """

    __slots__ = (
        "_answers",
        "_find",
        "_fingerprint",
        "_marked",
        "_outbox",
        "_recent",
        "_registry",
        "_settings",
        "client",
        "has_left",
        "is_draining",
        "on_ready",
    )

    def __init__(
        self,
        settings: StreamSettings,
        registry: Registry,
        *,
        find: Callable[[str], Client | None] | None = None,
        client: Client | None = ANYBODY,
        fingerprint: str | None = None,
    ) -> None:
        """Open it; ``hello`` is queued as soon as the client is authenticated.

        Args:
            settings: Limits.
            registry: Requests of the server.
            find: Returns the client of a token; ``None`` if the server needs no tokens.
            client: Client known from the handshake; ``None`` if an ``auth`` message must follow.
            fingerprint: Fingerprint of the engine.
        """
        self._settings = settings
        self._fingerprint = fingerprint
        self._registry = registry
        self._find = find
        self._outbox: list[dict[str, Any]] = []
        self._answers: dict[str, Answer] = {}
        self._marked: dict[Answer, None] = {}
        self._recent: deque[str] = deque(maxlen=_RECENT_IDS)
        self.client = client
        self.is_draining = False
        self.on_ready: Callable[[], None] = _ignore
        self.has_left: Callable[[], bool] = bool
        if client is not None:
            self._send_hello()

    @property
    def is_authenticated(self) -> bool:
        """True if the client is authenticated."""
        return self.client is not None

    @property
    def num_requests(self) -> int:
        """Number of requests whose end was not sent yet."""
        return len(self._answers)

    @property
    def backlog(self) -> int:
        """Number of waiting messages that cannot merge; the server stops reading at too many."""
        return len(self._outbox)

    def receive(
        self, message: ClientMessage | Fault, now: float, *, is_checked: bool = False
    ) -> list[Action]:
        """Process a message of the client.

        Args:
            message: The message, or the error that reading it gave.
            now: Seconds of the registry's clock.
            is_checked: True if the values of its parameters were checked before.

        Returns:
            Actions, to be done in this order.
        """
        if self.client is None:
            return self._authenticate(message)
        match message:
            case Fault():
                # With an id that is in use, the error would end that request for the client.
                free = message.id is not None and message.id not in self._answers
                self._put(message.message_for(message.id if free else None))
            case Ping():
                self._put({"type": "pong", "nonce": message.nonce})
            case Generate():
                return self._start(message.id, message, self.client, is_checked)
            case Cancel():
                return self._cancel(message)
            case Resume():
                return self._resume(message, self.client, is_checked)
            case Auth() if self._find is not None and self._find(message.token) is None:
                self._put(BAD_TOKEN.message_for())
            case Auth():
                pass  # a client may send a token twice, in the header and as a message
        return []

    def refuse(self, fault: Fault, code: CloseCode) -> list[Action]:
        """Send an error and close the connection."""
        self._outbox.clear()
        self._put(fault.message_for())
        return [CloseConnection(code, fault.code)]

    def mark(self, answer: Answer) -> None:
        """Note that an answer has output to send."""
        if answer not in self._marked:
            self._marked[answer] = None
            self.on_ready()

    def put_accepted(self, answer: Answer, queue_position: int | None) -> None:
        """Send ``accepted``: the engine took the request, or the client resumed it."""
        accepted: dict[str, Any] = {
            "type": "accepted",
            "id": answer.id,
            "resume_token": answer.token,
            "queue_position": queue_position,
        }
        if answer.seed is not None:
            accepted["seed"] = answer.seed
        self._put(accepted)

    @property
    def has_more(self) -> bool:
        """True if :meth:`flush` left something."""
        return bool(self._marked)

    def flush(self, now: float, most: int = sys.maxsize) -> list[dict[str, Any]]:
        """Take messages to send, in order; they count as sent.

        Args:
            now: Seconds of the registry's clock.
            most: Bytes of pieces behind which the rest goes on waiting, one answer behind the
                other.
        """
        messages, self._outbox = self._outbox, []
        while self._marked and most > 0:
            answer = next(iter(self._marked))
            del self._marked[answer]
            pieces = answer.replay.take(most)
            most -= sum(piece.size for piece in pieces)
            messages += [_delta(answer, piece) for piece in pieces]
            if answer.replay.is_waiting:
                self._marked[answer] = None
            elif answer.end is not None:
                messages.append(answer.last_message())
                self._release(answer)
                self._recent.append(answer.id)
                self._registry.leave(answer, now)
        return messages

    def leave(self, now: float, *, for_good: bool) -> list[Action]:
        """Release all requests after the connection ended.

        Args:
            now: Seconds of the registry's clock.
            for_good: True if the client closed normally: its requests end. Otherwise they run on
                for the grace period, unless the server drains and no client could come back.
        """
        actions: list[Action] = []
        for answer in tuple(self._answers.values()):
            self._release(answer)
            # Before `accepted` the client has no token and cannot resume the request.
            if for_good or self.is_draining or not answer.is_accepted:
                self._registry.drop(answer)
                if answer.end is None:
                    actions.append(StopRequest(answer))
            else:
                self._registry.leave(answer, now)
        self._outbox.clear()
        self._marked.clear()
        return actions

    def _send_hello(self) -> None:
        settings = self._settings
        hello = Hello(
            model=settings.model_name,
            limits=settings.limits,
            heartbeat_seconds=settings.heartbeat_seconds,
            authenticated=self._find is not None,
            fingerprint=self._fingerprint,
            takes_over=bool(settings.resume_secret),
        )
        self._put(hello.model_dump())

    def _authenticate(self, message: ClientMessage | Fault) -> list[Action]:
        """Authenticate the client by its first message; a second attempt is not allowed."""
        if not isinstance(message, Auth):
            fault = Fault("not_authenticated", "the first message must be `auth` with a token")
            return self.refuse(fault, CloseCode.POLICY)
        client = ANYBODY if self._find is None else self._find(message.token)
        if client is None:
            return self.refuse(BAD_TOKEN, CloseCode.POLICY)
        self.client = client
        self._send_hello()
        return []

    def _start(
        self,
        request_id: str,
        wanted: Wanted,
        client: Client,
        is_checked: bool,
        resume_point: ResumePoint | Fault | None = None,
        last_seq: int = 0,
        replaced: Answer | None = None,
    ) -> list[Action]:
        """Start a request, or send the error that refuses it."""
        allow_priority = self._settings.allow_priority or client.may_prioritise
        fault = (
            self._refusal(request_id)
            or check_priority(wanted.params, allow_priority=allow_priority)
            or (None if is_checked else check_params(wanted.params))
        )
        if isinstance(resume_point, Fault):
            fault, resume_point = fault or resume_point, None
        if fault is not None:
            self._put(fault.message_for(request_id))
            return []
        answer = self._registry.create(self, request_id)
        answer.client = client
        answer.with_tokens = wanted.events == "tokens"
        answer.replay.last_seq = last_seq
        self._answers[request_id] = answer
        return [StartRequest(answer, wanted, resume_point, replaced)]

    def _refusal(self, request_id: str) -> Fault | None:
        """Return the error for a request of this name that cannot be accepted."""
        if request_id in self._answers:
            return DUPLICATE
        if self.is_draining:
            return DRAINING
        most = self._settings.max_requests
        if len(self._answers) >= most:
            message = f"{most} requests run on this connection, the most of this server"
            return Fault("too_many_requests", message, retry_after=1.0)
        return None

    def _cancel(self, message: Cancel) -> list[Action]:
        answer = self._answers.get(message.id)
        if answer is not None:
            return [StopRequest(answer)] if answer.end is None else []
        if message.id not in self._recent:
            fault = Fault("unknown_id", "no request of this id is on this connection")
            self._put(fault.message_for(message.id))
        return []

    def _resume(self, message: Resume, client: Client, is_checked: bool) -> list[Action]:
        """Resume a request of another connection, or else one of another server."""
        answer = self._registry.find(message.resume_token)
        if answer is not None and client.may_resume(answer.client):
            fault = self._attach(message, answer)
        else:
            # An error of another kind would end the running request of this id for its client.
            answer, fault = None, DUPLICATE if message.id in self._answers else UNKNOWN_REQUEST
        if fault is None:
            return []
        if message.request is None or fault.code not in ("resume_unknown", "resume_gone"):
            self._put(fault.message_for(message.id))
            return []
        longest = self._settings.resume_seconds
        resume_point = check_resume(message, client, self._registry.signer, longest)
        # If too little of an answer was kept here, it is generated again and the old one ends.
        return self._start(
            message.id, message.request, client, is_checked, resume_point, message.after, answer
        )

    def _attach(self, message: Resume, answer: Answer) -> Fault | None:
        """Move a request of another connection to this one; return an error if that fails."""
        if answer.channel is self:
            return Fault("resume_attached", "this connection has the request already")
        refusal = self._refusal(message.id)
        if refusal is not None and refusal.code != "draining":
            return refusal
        replay = answer.replay
        last = replay.last_seq + (answer.end is not None and answer.end["type"] == "done")
        if message.after > last:
            return Fault("resume_ahead", f"`after` is {message.after}: the last `seq` is {last}")
        if message.after < replay.first_kept - 1:
            text = f"`after` is {message.after}: kept is what comes after {replay.first_kept - 1}"
            return Fault("resume_gone", text)
        if answer.channel is not None:
            if self.has_left():  # what it sent was read late: its client asks elsewhere by now
                return Fault("resume_moved", "another connection has the request by now")
            answer.channel.give_up(answer)
        self._registry.stay(answer)
        answer.id, answer.channel = message.id, self
        self._answers[message.id] = answer
        # Set both before the next call: its ``on_ready`` may flush at once.
        replay.rewind(message.after)
        self._marked[answer] = None
        self.put_accepted(answer, None)
        return None

    def give_up(self, answer: Answer) -> None:
        """Release an answer that another connection resumes, and tell the client."""
        text = "another connection has resumed this request"
        request_id = answer.id
        self._release(answer)  # first, because sending the message may flush at once
        self._put(Fault("resume_moved", text).message_for(request_id))

    def _release(self, answer: Answer) -> None:
        """Detach an answer from this connection."""
        del self._answers[answer.id]
        self._marked.pop(answer, None)
        answer.replay.rewind(answer.replay.last_seq)
        answer.channel = None

    def _put(self, message: dict[str, Any]) -> None:
        self._outbox.append(message)
        self.on_ready()


def _delta(answer: Answer, piece: Piece) -> dict[str, Any]:
    """Build the ``delta`` message of a piece."""
    delta: dict[str, Any] = {
        "type": "delta",
        "id": answer.id,
        "seq": piece.seq,
        "text": piece.text,
        "index": piece.index,
    }
    if piece.position is not None:
        delta["position"] = piece.position
    if piece.first_seq != piece.seq:
        delta["first_seq"] = piece.first_seq
    if piece.token_ids is not None:
        delta["token_ids"] = piece.token_ids
        delta["time"] = piece.time
    if piece.reasoning:
        delta["reasoning"] = piece.reasoning
    if piece.tool_calls:
        delta["tool_calls"] = [_without_nones(call) for call in piece.tool_calls]
    if piece.logprobs is not None:
        delta["logprobs"] = piece.logprobs  # dataclasses with the fields of the protocol
    if piece.prompt_logprobs is not None:
        delta["prompt_logprobs"] = piece.prompt_logprobs
    return delta


def _without_nones(call: ToolCallDelta) -> dict[str, Any]:
    """Return a piece of a tool call as the protocol sends it."""
    return {name: value for name, value in asdict(call).items() if value is not None}
