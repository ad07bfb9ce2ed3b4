"""Run the requests of all connections on one engine.

A request is a task of the service, because it may outlive its connection. Runs on asyncio and trio.
Knows streams; no socket.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Self, cast

import anyio

from asyncgen import PromptParams
from asyncgen_apps.serving.client_turns import ClientTurns, TurnsOnLoop
from asyncgen_apps.serving.limits import (
    LARGE_AT_ONCE,
    MOST_LARGE,
    MOST_MESSAGE,
    MOST_OF_LARGE,
)
from asyncgen_apps.serving.resumption import count_samples
from asyncgen_apps.serving.row_budget import RowBudget, rows_of
from asyncgen_apps.serving.shared_budget import SharedBudget
from asyncgen_apps.websocket.authentication import Authenticator
from asyncgen_apps.websocket.engine_messages import done_message, piece_of, prompt_pieces
from asyncgen_apps.websocket.errors import DRAINING, Fault, from_exception
from asyncgen_apps.websocket.messages import CloseCode
from asyncgen_apps.websocket.metrics import Counters
from asyncgen_apps.websocket.replay import Piece
from asyncgen_apps.websocket.resumable_requests import Answer, Registry
from asyncgen_apps.websocket.resume_tokens import TokenClaims, digest
from asyncgen_apps.websocket.session import Session, too_many_large
from asyncgen_apps.websocket.settings import StreamSettings
from asyncgen_apps.websocket.structured_logs import log_event
from asyncgen_apps.websocket.takeover import CHANGED_REQUEST, engine_mark, params_at

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from asyncgen import Prompt
    from asyncgen_apps.engine import Engine, EngineStream
    from asyncgen_apps.serving.clients import Client
    from asyncgen_apps.websocket.core import StartRequest
    from asyncgen_apps.websocket.session import LargeMessage


FLUSH_SECONDS = 2.0
"""Seconds for sending the last messages after the time of a drain is over."""

_BUSY_SECONDS = 1.0
_FIRST_DELAY, _LONGEST_DELAY = 0.002, 0.1


class StreamService:
    """Requests and limits shared by all connections; enter it to start, leave it to stop.

    Attributes:
        llm: The engine.
        settings: Settings of the server.
        registry: Requests that run or can be resumed.
        counters: Numbers for the metrics.
        authenticator: Decides which clients may connect.
        is_draining: True if the server shuts down and refuses new requests.
        places: Connections at a time.
        readers: Worker threads that parse large messages.
        large: Bytes of large messages, to the end of what they ask for.
        rows: Samples of all requests that wait or run.
        turns: Turns of the loop, in which those between small and large are parsed.
    """

    def __init__(self, llm: Engine, settings: StreamSettings | None = None) -> None:
        """Configure it; nothing runs yet.

        Args:
            llm: An open engine; closing it is up to the caller.
            settings: Limits, tokens, times.
        """
        self.llm = llm
        self.settings = settings or StreamSettings()
        self.registry = Registry(self.settings)
        self.counters = Counters()
        self.authenticator = Authenticator(self.settings)
        self.is_draining = False
        self.readers = ClientTurns(LARGE_AT_ONCE)
        self.turns = TurnsOnLoop()
        # Who has not sent the key yet is another client than its owner.
        one = None if self.settings.has_several_clients else self.settings.tokens[0]
        owner = None if one is None else self.authenticator.find(one)
        self.places = SharedBudget(
            self.settings.max_connections, owner=None if owner is None else owner.id
        )
        self.large = SharedBudget(
            MOST_LARGE,
            is_shared=self.settings.has_several_clients,
        )
        self.rows = RowBudget(is_shared=self.settings.has_several_clients)
        self._sessions: dict[Session, str | None] = {}  # and whose place each has
        self._streams: dict[Answer, EngineStream] = {}
        self._aborting: set[Answer] = set()
        self._group: TaskGroup | None = None
        self._expiry = anyio.Event()
        self._is_timing = False
        self._idle: anyio.Event | None = None

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of the engine, if it is loaded."""
        return self.llm.fingerprint if self.llm.is_healthy else None

    async def __aenter__(self) -> Self:
        """Begin."""
        self.settings = self.settings.sized(self.llm)
        longest = self.settings.max_message_bytes or MOST_MESSAGE
        self.large.most = max(MOST_LARGE, MOST_OF_LARGE * longest)
        group = anyio.create_task_group()
        await group.__aenter__()
        group.start_soon(self._expire)
        self._group = group
        return self

    async def __aexit__(self, *details: object) -> None:
        """End all requests and tell the connected clients."""
        with anyio.move_on_after(2 * FLUSH_SECONDS, shield=True):
            await self.drain(0)
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)
        self._group = None

    def now(self) -> float:
        """Return the time of the registry's clock, in seconds."""
        return time.monotonic()

    def open(
        self,
        *,
        authorization: str | None,
        origin: str | None,
        host: str | None,
        peer: str | None = None,
        remote: str | None = None,
        forwarded_for: str | None = None,
    ) -> Session:
        """Open the session of a connection after its handshake.

        Args:
            authorization: Header ``Authorization``.
            origin: Header ``Origin``.
            host: Header ``Host``.
            peer: Name of the other end, for the log.
            remote: Address of the other end; ``None`` on a Unix socket.
            forwarded_for: Header ``X-Forwarded-For``.

        Returns:
            Its session; for a refused connection, one that sends the error and then closes.
        """
        self.counters.connections_total += 1
        admitted = self.authenticator.admit(
            authorization, origin, host, remote=remote, forwarded_for=forwarded_for
        )
        client = None if isinstance(admitted, Fault) else admitted
        owner = client or self.authenticator.address(remote, forwarded_for)
        session = Session(self, client=client, peer=peer)
        busy = self._take_place(owner)
        if busy is not None:
            session.refuse(busy, CloseCode.OVERLOADED)
            return session
        if isinstance(admitted, Fault):
            self.places.give_back(owner.id)
            session.refuse(admitted, CloseCode.POLICY)
            return session
        self._sessions[session] = owner.id
        self.counters.connections += 1
        return session

    def has_place(self, session: Session) -> bool:
        """Tell whether a session was let in."""
        return session in self._sessions

    def forget(self, session: Session) -> None:
        """Remove a session that has ended; the session calls this."""
        if session in self._sessions:
            self._free_place(session)
            del self._sessions[session]
            self.counters.connections -= 1
            self._notice_idle()

    def identify(self, session: Session, client: Client) -> Fault | None:
        """Count a session for its client, who was known by an address only; or say why not."""
        if session not in self._sessions:
            return None
        self._free_place(session)
        busy = self._take_place(client)
        self._sessions[session] = client.id if busy is None else None
        return busy

    def _free_place(self, session: Session) -> None:
        owner = self._sessions[session]
        if owner is not None:
            self.places.give_back(owner)
            self._sessions[session] = None

    def begin(
        self, action: StartRequest, session: Session, large: LargeMessage | None = None
    ) -> None:
        """Start a request.

        Args:
            action: The request.
            session: Where it came.
            large: The message of a large one.
        """
        answer, request = action.answer, action.request
        self.counters.requests_total += 1
        rows = count_samples(request.params) + rows_of(request.params)
        busy = self._hold(answer.client.id, rows, large)
        if busy is not None:
            answer.fail(busy)
            return
        params: dict[str, Any] = {
            name: value for name, value in request.params.items() if value is not None
        }
        secret: dict[str, Any] = {}
        if self.settings.log_prompts:
            secret = {"prompt": request.source, "params": params}
        log_event("request", connection=session.name, request=answer.id, **secret)
        resume_point, sent = action.resume_point, params
        try:
            if resume_point is not None:
                sent = params_at(resume_point, params, self.fingerprint, self.registry.signer)
            sent = answer.client.marked(sent)
            stream = self.llm.stream(cast("Prompt", request.source), **sent)
        except Exception as error:
            answer.fail(from_exception(error, frozenset(params)))
            self._let_go(answer.client.id, rows, large)
            return
        # The request can be stopped from here on, although its task has not begun.
        self._streams[answer] = stream
        self._tasks.start_soon(self._run, action, stream, params, session.name, rows, large)

    def _hold(self, client: str, rows: int, large: LargeMessage | None) -> Fault | None:
        """Count what a request holds to its end, or return the error that refuses it."""
        if not self.rows.take(client, rows):
            return Fault("overloaded", self.rows.refusal(client, rows), retry_after=_BUSY_SECONDS)
        if large is not None and not self.large.take(client, large.size):
            self.rows.give_back(client, rows)
            return too_many_large(self.large, client)
        return None

    def _let_go(self, client: str, rows: int, large: LargeMessage | None) -> None:
        """Count it no more."""
        self.rows.give_back(client, rows)
        if large is not None:
            self.large.give_back(client, large.size)

    def stop(self, answer: Answer) -> None:
        """Stop a request in the engine, at its next step."""
        stream = self._streams.get(answer)
        if stream is not None:
            stream.cancel()

    def watch_expiry(self) -> None:
        """Start the timer if a first grace period has begun; called at every flush."""
        if not self._is_timing and self.registry.next_expiry is not None:
            self._expiry.set()

    async def drain(self, seconds: float | None = None) -> None:
        """Refuse new requests, let running ones finish, then end the rest.

        Args:
            seconds: Time for running requests; by default ``drain_seconds`` of the settings. If
                this is called again meanwhile, the shorter time counts.
        """
        limit = self.settings.drain_seconds if seconds is None else seconds
        if not self.is_draining:
            self.is_draining = True
            log_event("drain", requests=self.registry.num_running, seconds=limit)
            for answer in self.registry.running:
                if answer.channel is None:  # its client cannot reconnect any more
                    self.registry.drop(answer)
                    self.stop(answer)
            for session in tuple(self._sessions):
                session.drain()
        with anyio.move_on_after(limit):
            await self._wait_idle()
        for answer in tuple(self._streams):
            self._aborting.add(answer)
            self.stop(answer)
        with anyio.move_on_after(FLUSH_SECONDS):
            await self._wait_idle()
        for session in tuple(self._sessions):
            session.abort()

    @property
    def _tasks(self) -> TaskGroup:
        if self._group is None:
            raise RuntimeError("the service does not run: enter it first")
        return self._group

    async def _wait_idle(self) -> None:
        """Return when no request runs and no client is connected."""
        while self._streams or self._sessions:
            self._idle = self._idle or anyio.Event()
            await self._idle.wait()

    def _notice_idle(self) -> None:
        if self._idle is not None and not self._streams and not self._sessions:
            self._idle.set()
            self._idle = None

    def _take_place(self, client: Client) -> Fault | None:
        """Take a place for a connection, or return the error that refuses it."""
        if self.is_draining:
            return DRAINING
        if self.places.take(client.id):
            return None
        message = self.places.refusal(client.id, "connections are open") + "; try again"
        return Fault("overloaded", message, retry_after=_BUSY_SECONDS)

    async def _run(
        self,
        action: StartRequest,
        stream: EngineStream,
        params: dict[str, Any],
        connection: str,
        rows: int,
        large: LargeMessage | None,
    ) -> None:
        """Run one request until it has ended or failed."""
        answer = action.answer
        began = time.monotonic()
        try:
            await self._check_length(action)
            wanted = _digest(action, large)
            if action.replaced is not None:
                self._replace(action.replaced)
            async with stream:
                answer.seed = stream.seed
                self.registry.rename(answer, self._token(action, params, wanted))
                answer.accepted(await self._queue_position())
                await self._read(answer, stream, params)
            answer.finish(done_message(stream.result, aborted=answer in self._aborting))
        except _Refused as refused:
            answer.fail(refused.fault)
        except Exception as error:
            answer.fail(from_exception(error, frozenset(params)))
        finally:
            self._streams.pop(answer, None)
            self._aborting.discard(answer)
            self._let_go(answer.client.id, rows, large)
            self._notice_idle()
        end = answer.end or {}
        usage = end.get("usage", {})
        log_event(
            "end",
            connection=connection,
            request=answer.id,
            reason=end.get("finish_reason"),
            error=end.get("code"),
            prompt_tokens=usage.get("prompt_tokens"),
            tokens=usage.get("completion_tokens"),
            seconds=time.monotonic() - began,
        )

    async def _read(self, answer: Answer, stream: EngineStream, params: dict[str, Any]) -> None:
        """Pass the output of a stream to its answer, until one of them ends."""
        if count_samples(params) == 1 and not (answer.with_tokens or stream.is_separated):
            # The cheapest way to read: one piece has all the new text.
            async for text in stream:
                if not answer.add(Piece(0, text, position=stream.position[0])):
                    return
            return
        async for event in stream.events():
            if answer.with_tokens and event.prompt_logprobs is not None:
                for part in prompt_pieces(event):
                    if not answer.add(part):
                        return
                    await _wait_until_sent(answer)
            position = stream.position[event.index]
            piece = piece_of(event, position, with_tokens=answer.with_tokens)
            if piece is not None and not answer.add(piece):
                return

    def _replace(self, answer: Answer) -> None:
        """End an answer that is now generated again."""
        if answer.channel is not None:
            answer.channel.give_up(answer)
        self.registry.drop(answer)
        self.stop(answer)

    def _token(self, action: StartRequest, params: dict[str, Any], wanted: bytes) -> str:
        """Return the resume token of a request that the engine has accepted."""
        answer, resume_point, signer = action.answer, action.resume_point, self.registry.signer
        began = signer.clock() if resume_point is None else resume_point.claims.began
        owner = signer.owner(answer.client)
        engine = engine_mark(resume_point, params, self.fingerprint, signer)
        assert answer.seed is not None
        return signer.sign(TokenClaims(began, answer.seed, owner, engine, wanted))

    async def _queue_position(self) -> int | None:
        """Return the place in the queue of a new request, as of the engine's last step."""
        waiting = (await self.llm.measure()).requests_waiting
        return waiting + 1 if waiting else None

    async def _check_length(self, action: StartRequest) -> None:
        """Check the length of the prompt against ``max_prompt_tokens``.

        Raises:
            _Refused: The prompt is longer.
        """
        most = self.settings.max_prompt_tokens
        source = action.request.source
        if most is None:
            return
        if isinstance(source, list) and isinstance(source[0], int):
            count = len(source)
        else:
            params = action.request.params
            given = {name: params.get(name) for name in PromptParams.__annotations__}
            count = await self.llm.count_tokens(
                cast("Prompt", source), **cast("PromptParams", given)
            )
        if count > most:
            message = f"the prompt has {count} tokens, and this server takes {most}: shorten it"
            raise _Refused(Fault("context_length", message, param="prompt"))

    async def _expire(self) -> None:
        """End requests whose grace period is over."""
        while True:
            expiry = self.registry.next_expiry
            self._is_timing = expiry is not None
            if expiry is None:
                self._expiry = anyio.Event()
                await self._expiry.wait()
                continue
            await anyio.sleep(max(0.0, expiry - self.now()))
            for answer in self.registry.expire(self.now()):
                log_event("expired", level=logging.WARNING, request=answer.id)
                self.stop(answer)


async def _wait_until_sent(answer: Answer) -> None:
    """Return when all pieces were sent: those of a long prompt are more than may wait at once."""
    delay = _FIRST_DELAY
    while answer.channel is not None and answer.end is None and answer.replay.is_waiting:
        await anyio.sleep(delay)
        delay = min(2 * delay, _LONGEST_DELAY)


def _digest(action: StartRequest, large: LargeMessage | None) -> bytes:
    """Return the digest of a request.

    Raises:
        _Refused: It differs from the request that another server began.
    """
    known = None if large is None else large.digest
    found = digest(action.request) if known is None else known
    if action.resume_point is not None and found != action.resume_point.claims.wanted:
        raise _Refused(CHANGED_REQUEST)
    return found


class _Refused(Exception):
    """Raised for a request that this server refuses.

    Attributes:
        fault: Error for the client.
    """

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault
