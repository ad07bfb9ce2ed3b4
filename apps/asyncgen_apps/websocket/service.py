"""Runs the requests of all connections on one engine. Knows streams; no socket.

A request is a task of the service, not of its connection, because it may outlive that. Runs on
asyncio and trio.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Self, cast

import anyio
import anyio.to_thread

from asyncgen import PromptParams
from asyncgen_apps.serving.limits import LARGE_AT_ONCE
from asyncgen_apps.serving.resumption import count_samples
from asyncgen_apps.websocket.authentication import Door
from asyncgen_apps.websocket.engine_messages import done_message, piece_of, prompt_pieces
from asyncgen_apps.websocket.errors import RESTART_SECONDS, Fault, from_exception
from asyncgen_apps.websocket.messages import CloseCode
from asyncgen_apps.websocket.metrics import Figures
from asyncgen_apps.websocket.replay import Piece
from asyncgen_apps.websocket.resumable_requests import Answer, Registry
from asyncgen_apps.websocket.resume_tokens import Ticket, digest, digest_large
from asyncgen_apps.websocket.session import Session
from asyncgen_apps.websocket.settings import StreamSettings
from asyncgen_apps.websocket.structured_logs import say
from asyncgen_apps.websocket.takeover import CHANGED, engine_of, params_behind

if TYPE_CHECKING:
    from types import TracebackType

    from anyio.abc import TaskGroup

    from asyncgen import Prompt
    from asyncgen_apps.engine import Engine, EngineStream
    from asyncgen_apps.websocket.core import Begin


LAST_WORDS = 2.0
"""Seconds for the last messages to go out after a drain was cut short."""

_BUSY_SECONDS = 1.0
_SOON = 0.002


class StreamService:
    """Requests and limits shared by all connections; enter it to start, leave it to stop.

    Attributes:
        settings: As given.
        registry: The requests.
        figures: Counts.
        door: Who is let in.
        is_draining: Whether the server is about to leave.
        readers: Threads that read large messages.
    """

    def __init__(self, llm: Engine, settings: StreamSettings | None = None) -> None:
        """Set it up; nothing runs yet.

        Args:
            llm: An open engine; closing it is up to the caller.
            settings: Limits, tokens, times.
        """
        self.settings = settings or StreamSettings()
        self.registry = Registry(self.settings)
        self.figures = Figures()
        self.door = Door(self.settings)
        self.is_draining = False
        self.readers = anyio.CapacityLimiter(LARGE_AT_ONCE)
        self._llm = llm
        self._sessions: set[Session] = set()
        self._streams: dict[Answer, EngineStream] = {}
        self._aborting: set[Answer] = set()
        self._group: TaskGroup | None = None
        self._expiry = anyio.Event()
        self._is_timing = False
        self._calm: anyio.Event | None = None

    @property
    def is_healthy(self) -> bool:
        """True if the engine is alive."""
        return self._llm.is_healthy

    @property
    def is_degraded(self) -> bool:
        """True if long texts are refused, because threads hang over others."""
        return self._llm.is_degraded

    @property
    def fingerprint(self) -> str | None:
        """That of the engine, where it is loaded."""
        return self._llm.fingerprint if self._llm.is_healthy else None

    @property
    def is_ready(self) -> bool:
        """True if the server takes new clients."""
        return self.is_healthy and not self.is_draining

    @property
    def llm(self) -> Engine:
        """The engine."""
        return self._llm

    async def __aenter__(self) -> Self:
        """Begin."""
        self.settings = self.settings.sized(self._llm)
        group = anyio.create_task_group()
        await group.__aenter__()
        group.start_soon(self._expire)
        self._group = group
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End all that runs; every client that is still there is told."""
        with anyio.move_on_after(2 * LAST_WORDS, shield=True):
            await self.drain(0)
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)
        self._group = None

    def now(self) -> float:
        """The registry's clock, in seconds."""
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
        """Take up a connection whose handshake is done.

        Args:
            authorization: Header ``Authorization``.
            origin: Header ``Origin``.
            host: Header ``Host``.
            peer: Who it is, for the log.
            remote: Address of the other end; ``None`` on a Unix socket.
            forwarded_for: Header ``X-Forwarded-For``.

        Returns:
            Its session; where it was refused, one that says why and wants to be closed.
        """
        self.figures.connections_total += 1
        admitted = self.door.admit(
            authorization, origin, host, remote=remote, forwarded_for=forwarded_for
        )
        client = None if isinstance(admitted, Fault) else admitted
        fault = self._refusal() or (admitted if isinstance(admitted, Fault) else None)
        session = Session(self, client=client, peer=peer)
        if fault is not None:
            busy = fault.code in ("overloaded", "draining")
            session.refuse(fault, CloseCode.OVERLOADED if busy else CloseCode.POLICY)
            return session
        self._sessions.add(session)
        self.figures.connections += 1
        return session

    def forget(self, session: Session) -> None:
        """A session has ended; called by it."""
        if session in self._sessions:
            self._sessions.remove(session)
            self.figures.connections -= 1
            self._notice_calm()

    def begin(self, order: Begin, session: Session) -> None:
        """Start a request."""
        answer, request = order.answer, order.request
        self.figures.requests_total += 1
        params: dict[str, Any] = {
            name: value for name, value in request.params.items() if value is not None
        }
        secret = self.settings.log_prompts
        say(
            "request",
            connection=session.name,
            request=answer.id,
            prompt=request.source if secret else None,
            params=params if secret else None,
        )
        behind = order.behind
        try:
            asked = params
            if behind is not None:
                asked = params_behind(params, behind, self.fingerprint, self.registry.signer)
            mine = answer.client.marked(asked)
            stream = self._llm.stream(cast("Prompt", request.source), **mine)
        except Exception as error:
            answer.fail(from_exception(error, frozenset(params)))
            return
        # From here on it can be stopped, though its task has not begun.
        self._streams[answer] = stream
        self._tasks.start_soon(self._run, order, stream, params, session.name)

    def stop(self, answer: Answer) -> None:
        """Have the engine stop a request, at its next step."""
        stream = self._streams.get(answer)
        if stream is not None:
            stream.cancel()

    def watch_expiry(self) -> None:
        """A time of grace may have begun, and may be the only one. Called at every flush."""
        if not self._is_timing and self.registry.next_expiry is not None:
            self._expiry.set()

    async def drain(self, seconds: float | None = None) -> None:
        """Take nothing new, let what runs go on, and end what is left.

        Args:
            seconds: How long it may go on; by default what the settings say. If it is called
                again meanwhile, the shorter time counts.
        """
        limit = self.settings.drain_seconds if seconds is None else seconds
        if not self.is_draining:
            self.is_draining = True
            say("drain", requests=self.registry.num_running, seconds=limit)
            for answer in self.registry.running:
                if answer.channel is None:  # nobody can come back for it
                    self.registry.drop(answer)
                    self.stop(answer)
            for session in tuple(self._sessions):
                session.drain()
        with anyio.move_on_after(limit):
            await self._wait_calm()
        for answer in tuple(self._streams):
            self._aborting.add(answer)
            self.stop(answer)
        with anyio.move_on_after(LAST_WORDS):
            await self._wait_calm()
        for session in tuple(self._sessions):
            session.abort()

    @property
    def _tasks(self) -> TaskGroup:
        if self._group is None:
            raise RuntimeError("the service does not run: enter it first")
        return self._group

    async def _wait_calm(self) -> None:
        """Return when nothing runs and nobody is there."""
        while self._streams or self._sessions:
            self._calm = self._calm or anyio.Event()
            await self._calm.wait()

    def _notice_calm(self) -> None:
        if self._calm is not None and not self._streams and not self._sessions:
            self._calm.set()
            self._calm = None

    def _refusal(self) -> Fault | None:
        """Return the error that refuses all clients, if any."""
        if self.is_draining:
            message = "the server is about to leave; try another, or later"
            return Fault("draining", message, retry_after=RESTART_SECONDS)
        most = self.settings.max_connections
        if len(self._sessions) >= most:
            message = f"{most} clients are connected, the most of this server; try again"
            return Fault("overloaded", message, retry_after=_BUSY_SECONDS)
        return None

    async def _run(
        self, order: Begin, stream: EngineStream, params: dict[str, Any], connection: str
    ) -> None:
        """Run one request to its end, whatever that is."""
        answer = order.answer
        began = time.monotonic()
        try:
            await self._check_length(order)
            wanted = await self._digest(order)
            if order.replaced is not None:
                self._replace(order.replaced)
            async with stream:
                answer.seed = stream.seed
                self.registry.rename(answer, self._token(order, params, wanted))
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
            self._notice_calm()
        end = answer.end or {}
        usage = end.get("usage", {})
        say(
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
        """Hand on what a stream says, until it ends or nobody can take it."""
        if count_samples(params) == 1 and not (answer.with_tokens or stream.is_separated):
            # The cheapest way to read: all the text that is there, in one piece.
            async for text in stream:
                if not answer.add(Piece(0, text, position=stream.position[0])):
                    return
            return
        async for event in stream.events():
            if answer.with_tokens and event.prompt_logprobs is not None:
                for part in prompt_pieces(event):
                    if not answer.add(part):
                        return
                    await _taken(answer)
            position = stream.position[event.index]
            piece = piece_of(event, position, with_tokens=answer.with_tokens)
            if piece is not None and not answer.add(piece):
                return

    async def _digest(self, order: Begin) -> bytes:
        """The digest of a request; of a large one on a worker thread.

        Raises:
            _Refused: It is not the one that another server has begun.
        """
        if order.is_large:
            found = await anyio.to_thread.run_sync(
                digest_large, order.request, limiter=self.readers
            )
        else:
            found = digest(order.request)
        if order.behind is not None and found != order.behind.ticket.wanted:
            raise _Refused(CHANGED)
        return found

    def _replace(self, answer: Answer) -> None:
        """End what is generated once more."""
        if answer.channel is not None:
            answer.channel.give_up(answer)
        self.registry.drop(answer)
        self.stop(answer)

    def _token(self, order: Begin, params: dict[str, Any], wanted: bytes) -> str:
        """The token of a request that the engine has taken."""
        answer, behind, signer = order.answer, order.behind, self.registry.signer
        began = signer.clock() if behind is None else behind.ticket.began
        engine = engine_of(params, behind, self.fingerprint, signer)
        assert answer.seed is not None
        return signer.sign(Ticket(began, answer.seed, signer.owner(answer.client), engine, wanted))

    async def _queue_position(self) -> int | None:
        """Place of a request that was posted now, as of the engine's last step."""
        waiting = (await self._llm.measure()).requests_waiting
        return waiting + 1 if waiting else None

    async def _check_length(self, order: Begin) -> None:
        """Refuse a prompt beyond the limit of the settings.

        Raises:
            _Refused: It is longer.
        """
        most = self.settings.max_prompt_tokens
        source = order.request.source
        if most is None:
            return
        if isinstance(source, list) and isinstance(source[0], int):
            count = len(source)
        else:
            params = order.request.params
            said = {name: params.get(name) for name in PromptParams.__annotations__}
            count = await self._llm.count_tokens(
                cast("Prompt", source), **cast("PromptParams", said)
            )
        if count > most:
            message = f"the prompt has {count} tokens, and this server takes {most}: shorten it"
            raise _Refused(Fault("context_length", message, param="prompt"))

    async def _expire(self) -> None:
        """End requests whose time of grace is over."""
        while True:
            expiry = self.registry.next_expiry
            self._is_timing = expiry is not None
            if expiry is None:
                self._expiry = anyio.Event()
                await self._expiry.wait()
                continue
            await anyio.sleep(max(0.0, expiry - self.now()))
            for answer in self.registry.expire(self.now()):
                say("expired", level=logging.WARNING, request=answer.id)
                self.stop(answer)


async def _taken(answer: Answer) -> None:
    """Return when what was said has been sent: a long prompt is more than may be unread at once."""
    delay = _SOON
    while answer.channel is not None and answer.end is None and answer.replay.is_waiting:
        await anyio.sleep(delay)
        delay = min(2 * delay, 0.1)


class _Refused(Exception):
    """A request that this server does not take.

    Attributes:
        fault: Why.
    """

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault
