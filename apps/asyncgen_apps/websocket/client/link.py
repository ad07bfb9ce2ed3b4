"""Open the connection of a client, keep it alive and reconnect; one task does all of it.

Frames go out through one queue and come in through one reader. The request tracker interprets
them. Nothing here is public.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import anyio

from asyncgen import EngineDiedError, InvalidRequestError, OverloadedError
from asyncgen_apps.websocket.client.errors import (
    ConnectionLostError,
    Failure,
    error_from_server,
    failure_from,
)
from asyncgen_apps.websocket.client.outbox import Outbox
from asyncgen_apps.websocket.client.request import GapError
from asyncgen_apps.websocket.client.request_tracker import RequestTracker, read_message
from asyncgen_apps.websocket.client.socket import SocketError, open_socket
from asyncgen_apps.websocket.messages import (
    SUBPROTOCOL,
    Accepted,
    Delta,
    Done,
    Error,
    Hello,
    Ping,
    Pong,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from ssl import SSLContext

    from anyio.abc import TaskGroup

    from asyncgen import AsyncgenError
    from asyncgen_apps.websocket.client.request import Request
    from asyncgen_apps.websocket.client.socket import Socket


logger = logging.getLogger("asyncgen.websocket.client")

CLOSE_SECONDS = 2.0
"""Longest time for the last cancellations and the closing handshake."""


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a server, and the credentials for it.

    Attributes:
        url: ``ws://`` or ``wss://``.
        headers: HTTP headers of the opening request, with the token.
        tls: Trusted certificates; ``None`` for those of the system.
    """

    url: str
    headers: Mapping[str, str]
    tls: SSLContext | None = None


@dataclass(frozen=True, slots=True)
class Patience:
    """Timeouts of the client in seconds, all above 0.

    Attributes:
        open: Time for a connection and the server's first message.
        heartbeat: Longest time between two pings; a server may ask for more of them.
        silence: Time without a message after a ping was due; then the connection is lost.
        outage: Time for the server to come back, before the streams fail.
        first_delay: Upper end of the first random pause between two attempts; doubled each time.
        longest_delay: Upper end of the later pauses.
    """

    open: float = 10.0
    heartbeat: float = 15.0
    silence: float = 10.0
    outage: float = 60.0
    first_delay: float = 0.2
    longest_delay: float = 5.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidRequestError: One is not above 0.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise InvalidRequestError(field.name, value, "seconds, above 0")


class Link:
    """Connection that reconnects after a loss.

    Attributes:
        hello: First message of the server on the latest connection.
        first: Error of the first attempt, if it failed.
        settled: Set when the first attempt has succeeded or failed.
        closed: True if the client was closed.
        may_move: True if there is another server to connect to.
        engine_died: True if the server reported a dead engine on the latest connection.
    """

    def __init__(self, addresses: Sequence[Address], patience: Patience) -> None:
        """Bind it to the running loop; :meth:`run` connects.

        Args:
            addresses: Servers of the same model, at least one; after a failure the next is tried.
            patience: Timeouts.
        """
        self.hello: Hello | None = None
        self.first: AsyncgenError | None = None
        self.settled = anyio.Event()
        self.closed = False
        self.engine_died = False
        self._addresses = addresses
        self._index = 0
        self._tried = 0
        self._is_hopeless = False
        self._is_useful = False
        self._patience = patience
        self.may_move = len(addresses) > 1
        self._tracker = RequestTracker(moves=self.may_move)
        self._outbox: Outbox[Request] = Outbox(self.update)
        self._frames: deque[str] = deque()
        self._changed = anyio.Event()  # wakes the writer, or a link that waits for a request
        self._interrupt: anyio.CancelScope | None = None
        self._last_received = 0.0
        self._failed_since: float | None = None
        self._failures = 0
        self._reported: AsyncgenError | None = None

    def update(self, request: Request) -> None:
        """Send or cancel a request, as its state requires; in the event loop of the client."""
        if self.closed:
            request.stop("aborted")
        else:
            self._send(self._tracker.update(request))
            self._changed.set()

    def update_soon(self, request: Request) -> None:
        """Call :meth:`update` soon; from any thread, and from a finalizer."""
        self._outbox.post(request)

    def close(self) -> None:
        """End all streams, tell the server, and let :meth:`run` return soon."""
        if not self.closed:
            self.closed = True
            self._send(self._tracker.close())
            if self._interrupt is not None:
                self._interrupt.cancel()

    async def run(self) -> None:
        """Connect and reconnect until :meth:`close`.

        It is shielded from cancellation, because the closing handshake needs the connection and, on
        trio, the tasks of the library. :meth:`close` makes it return within ``CLOSE_SECONDS``.
        """
        with anyio.CancelScope(shield=True):
            try:
                while not self.closed:
                    failure = await self._connect_once()
                    if not self.closed:
                        await self._recover(failure)
            finally:
                self._tracker.fail_all(ConnectionLostError("the client has ended"))
                self.settled.set()

    async def _connect_once(self) -> Failure:
        """Open and use one connection; return the reason for its end."""
        self._reported = None
        address = self._addresses[self._index]
        self._tried += 1
        failure = Failure(ConnectionLostError("the connection was interrupted"))
        with anyio.CancelScope() as attempt:
            self._interrupt = attempt
            try:
                async with open_socket(
                    address.url,
                    subprotocol=SUBPROTOCOL,
                    headers=address.headers,
                    tls=address.tls,
                    open_seconds=self._patience.open,
                    close_seconds=CLOSE_SECONDS,
                ) as socket:
                    failure = await self._use(socket)
            except SocketError as error:
                failure = failure_from(error.__cause__ or error, self._reported)
        return failure

    async def _use(self, socket: Socket) -> Failure:
        """Use an open connection until its end, and close it."""
        try:
            with anyio.fail_after(self._patience.open):
                # A server that waits for a token answers this ping with its error.
                # The ping fails if the server has closed already; its error is still read.
                with suppress(SocketError):
                    await socket.send(Ping(nonce=0).model_dump_json())
                self.hello = await self._receive_hello(socket)
        except TimeoutError:
            await socket.abort()
            text = f"it did not greet within {self._patience.open:g} seconds"
            return failure_from(TimeoutError(text))
        except SocketError as error:
            return failure_from(error.__cause__ or error, self._reported)
        except ValueError as error:
            await socket.abort()
            text = f"the server does not speak {SUBPROTOCOL}: {error}"
            return Failure(ConnectionLostError(text), fatal=True)
        except BaseException:
            await socket.abort()  # a closing handshake would be cancelled as well
            raise
        self.engine_died = False
        tried, failed_since, failures = self._tried, self._failed_since, self._failures
        self._tried, self._is_useful = 0, False
        self.settled.set()
        self._frames.clear()
        began = anyio.current_time()
        self._send(self._tracker.connected(self.hello, self._index))
        failure = await self._talk(socket, self.hello)
        if self._tracker.move_reason is not None:
            self._tried = 1
            if not self._is_useful:  # counts as not reached: the outage continues
                self._tried, self._failures = tried, failures
                if failed_since is not None:
                    self._failed_since = failed_since + anyio.current_time() - began
        if not self.closed:
            self._tracker.disconnected()
            await socket.abort()
            return failure
        with anyio.move_on_after(CLOSE_SECONDS, shield=True) as closing:
            with suppress(SocketError):
                while self._frames:
                    await socket.send(self._frames.popleft())
                await socket.close()
        if closing.cancelled_caught:
            await socket.abort()
        return failure

    async def _receive_hello(self, socket: Socket) -> Hello:
        """Wait for the first message.

        Raises:
            SocketError: The connection was closed.
            ValueError: The server says something else.
        """
        while True:
            message = read_message(await socket.receive())
            if isinstance(message, Hello):
                return message
            if isinstance(message, Error):
                self._note(message)

    async def _talk(self, socket: Socket, hello: Hello) -> Failure:
        """Read, write and ping until the connection ends or the client is closed."""
        failures: list[Failure] = []

        async def write() -> None:
            try:
                while True:
                    while self._frames:
                        await socket.send(self._frames.popleft())
                    self._changed = anyio.Event()
                    await self._changed.wait()
            except SocketError:
                pass  # the reader finds out why

        async def ping() -> None:
            await self._ping_until_silence(self._interval(hello))
            error = ConnectionLostError("the server has fallen silent")
            failures.append(Failure(error))
            tasks.cancel_scope.cancel()

        self._last_received = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            self._interrupt = tasks.cancel_scope
            tasks.start_soon(write)
            tasks.start_soon(ping)
            failures.append(await self._read(socket, tasks))
            tasks.cancel_scope.cancel()
        return failures[0] if failures else Failure(ConnectionLostError("the client is closed"))

    async def _ask_again(self, seconds: float) -> None:
        """Send refused requests again after a pause."""
        await anyio.sleep(seconds)
        self._send(self._tracker.ask_again())

    async def _read(self, socket: Socket, tasks: TaskGroup) -> Failure:
        """Pass every message to the tracker; return the reason for the end of the connection."""
        while True:
            try:
                text = await socket.receive()
            except SocketError as error:
                return failure_from(error.__cause__ or error, self._reported)
            self._last_received = anyio.current_time()
            try:
                message = read_message(text)
                if message is None:
                    continue
                if isinstance(message, Error):
                    self._note(message)
                if isinstance(message, Delta | Done | Pong):
                    self._failed_since, self._failures = None, 0
                waited = self._tracker.pause
                self._send(self._tracker.receive(message))
                if waited is None and (pause := self._tracker.pause) is not None:
                    tasks.start_soon(self._ask_again, pause)
                self._is_useful = self._is_useful or isinstance(message, Accepted | Delta)
                if (reason := self._tracker.move_reason) is not None:
                    later = reason.retry_after if isinstance(reason, OverloadedError) else 0.0
                    is_fatal = isinstance(reason, EngineDiedError)
                    return Failure(reason, fatal=is_fatal, retry_after=later or 0.0)
            except (ValueError, GapError) as error:
                text = f"the server breaks the protocol: {error}"
                return Failure(ConnectionLostError(text))

    def _note(self, message: Error) -> None:
        """Remember an error of the server about the connection or its engine."""
        error = error_from_server(
            message.code, message.message, retry_after=message.retry_after, parameter=message.param
        )
        self.engine_died = self.engine_died or isinstance(error, EngineDiedError)
        if message.id is None:
            self._reported = error
            logger.info("the server reports %s", message.code)

    def _interval(self, hello: Hello) -> float:
        """Return the seconds between pings: the shorter one of client and server."""
        wish = hello.heartbeat_seconds
        return min(self._patience.heartbeat, wish) if wish > 0 else self._patience.heartbeat

    async def _ping_until_silence(self, interval: float) -> None:
        """Ping at every interval; return when no message has come for too long."""
        number = 0
        while True:
            number += 1  # 0 was the ping before `hello`
            self._send([Ping(nonce=number).model_dump_json()])
            due = anyio.current_time() + interval
            while (now := anyio.current_time()) < due:
                lost_at = self._last_received + interval + self._patience.silence
                if now >= lost_at:
                    return
                wake_at = min(due, lost_at)
                await anyio.sleep_until(wake_at)
                if anyio.current_time() > wake_at + self._patience.silence / 2:
                    # This event loop was blocked; messages may have come that are not read yet.
                    self._last_received = anyio.current_time()

    def _send(self, frames: list[str]) -> None:
        self._frames.extend(frames)
        if frames:
            self._changed.set()

    async def _recover(self, failure: Failure) -> None:
        """Wait before the next attempt; fail all streams after a too long outage."""
        count = len(self._addresses)
        if failure.fatal and not self._tried:
            self._tried = 1  # it was reached, and will refuse again
        first = not self._tried or self._tried % count == 1 % count
        self._is_hopeless = failure.fatal and (first or self._is_hopeless)
        if self._tried:
            # This server was not reached. Try all others before the next pause.
            self._index = (self._index + 1) % count
            if self._tried % count:
                return
        if not self.settled.is_set():
            self.first = failure.error
            self.closed = True
            return
        now = anyio.current_time()
        if self._failed_since is None:
            self._failed_since = now
        ceiling = self._patience.first_delay * 2.0 ** min(self._failures, 30)
        delay = random.uniform(0.0, min(ceiling, self._patience.longest_delay))
        delay += failure.retry_after
        self._failures += 1
        given_up = now + delay - self._failed_since > self._patience.outage
        if self._is_hopeless or given_up:
            logger.warning("giving up: %s", failure.error)
            self._tracker.fail_all(failure.error)
            self._failed_since, self._failures = None, 0
            await self._rest()
        else:
            logger.info("%s; connecting again in %.1f s", failure.error, delay)
            with anyio.CancelScope() as pause:
                self._interrupt = pause
                await anyio.sleep(delay)

    async def _rest(self) -> None:
        """Wait until a stream needs the server."""
        with anyio.CancelScope() as pause:
            self._interrupt = pause
            while not self._tracker.busy:
                self._changed = anyio.Event()
                await self._changed.wait()
