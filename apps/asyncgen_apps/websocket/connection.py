"""A server's end of a WebSocket that sends many messages in one write, and none to a full socket.

The library's ``send`` waits for one message after the other, and one write is one system call.
Here a turn of the event loop gathers what all streams of the connection have to say and writes it
at once; while the socket takes no more, nothing is encoded at all, so that the protocol's core
merges. A client that reads nothing for ``send_seconds`` is given up: the library's own keep-alive
does not notice it.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from websockets.asyncio.server import ServerConnection
from websockets.protocol import State

from asyncgen_apps.serving.sockets import HEAD_BYTES, LINGER_BYTES, RESERVE

if TYPE_CHECKING:
    import asyncio

    from asyncgen_apps.websocket.session import Session


TOGETHER = 8
"""Connections of one stream each that are flushed together; more would let the first ones wait."""


class Lobby:
    """Counts the sockets of a server, those included that have not shaken hands yet.

    There are a few more than connections that may stay: what is one too many hears of it, and who
    asks for health gets an answer. Beyond, the one goes that has said nothing for longest.
    """

    def __init__(self, most: int) -> None:
        """Nobody is here.

        Args:
            most: Connections that may stay.
        """
        self._most = most + RESERVE
        self._open: set[StreamConnection] = set()
        self._silent: dict[StreamConnection, None] = {}

    def enter(self, connection: StreamConnection) -> None:
        """A socket was opened."""
        self._open.add(connection)
        self._silent[connection] = None
        if len(self._open) > self._most:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.abort()

    def greet(self, connection: StreamConnection) -> None:
        """It has said what it wants."""
        self._silent.pop(connection, None)

    def leave(self, connection: StreamConnection) -> None:
        """It is gone."""
        self._open.discard(connection)
        self._silent.pop(connection, None)


class StreamConnection(ServerConnection):
    """A connection that takes its messages from a session."""

    def __init__(self, lobby: Lobby, *args: Any, **kwargs: Any) -> None:
        """Make it; the library does.

        Args:
            lobby: Counts those of the server.
            *args: As the library gives them.
            **kwargs: As the library gives them.
        """
        super().__init__(*args, **kwargs)
        self._lobby = lobby
        self._head_bytes = 0
        self._session: Session | None = None
        self._send_seconds = 0.0
        self._is_scheduled = False
        self._deadline: asyncio.TimerHandle | None = None
        self._writable: asyncio.Future[None] | None = None
        self._turns = Turns()

    def attach(self, session: Session, send_seconds: float, turns: Turns | None = None) -> None:
        """Send what a session has to say, from now on.

        Args:
            session: Its frames are taken.
            send_seconds: How long the socket may take nothing.
            turns: Those of all connections of the server; its own if left out.
        """
        if turns is not None:
            self._turns = turns
        self._session = session
        self._send_seconds = send_seconds
        session.bind(self._schedule, self.abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        super().connection_made(transport)
        self._lobby.enter(self)

    def data_received(self, data: bytes) -> None:
        """Read on; the library's own limit of a head is a MiB, and what follows has none."""
        if self.request is None and not self._may_read(len(data)):
            return
        super().data_received(data)
        if self.request is not None:
            self._lobby.greet(self)

    def _may_read(self, count: int) -> bool:
        """Count a piece of the head; whether it is not too much."""
        self._head_bytes += count
        if self._head_bytes <= HEAD_BYTES:
            return True
        if self._head_bytes > HEAD_BYTES + LINGER_BYTES:
            self.abort()
        elif not self.protocol.eof_sent:  # else the library has refused it before
            message = f"the head of the request is longer than {HEAD_BYTES} bytes\n"
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self.protocol.send_response(self.protocol.reject(status, message))
            self.send_data()
        return False

    def abort(self) -> None:
        """End the connection at once."""
        self.transport.abort()

    async def wait_writable(self) -> None:
        """Return when the socket takes more, or the connection is gone."""
        if self.paused:
            self._writable = self._writable or self.loop.create_future()
            await self._writable

    def pause_writing(self) -> None:
        """The socket takes no more: the client's time runs."""
        super().pause_writing()
        if self._session is not None and self._deadline is None:
            self._deadline = self.loop.call_later(self._send_seconds, self._give_up)

    def resume_writing(self) -> None:
        """The socket takes more."""
        super().resume_writing()
        if self.protocol.state is State.OPEN:
            self._stop_waiting()
        self._schedule()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        super().connection_lost(exc)
        self._lobby.leave(self)
        self._stop_waiting()

    def flush(self) -> None:
        """Send what there is, if the socket takes it."""
        self._is_scheduled = False
        session = self._session
        if session is None or self.paused or self.protocol.state is not State.OPEN:
            return
        for frame in session.take():
            self.protocol.send_text(frame)
        closing = session.closing
        if closing is not None:
            self.protocol.send_close(closing.code, closing.reason)
            # For a client that does not answer: the library times only a close that a task awaits.
            self._deadline = self.loop.call_later(self.close_timeout or 0.0, self.abort)
        if data := b"".join(self.protocol.data_to_send()):
            self.transport.write(data)

    def _schedule(self) -> None:
        if self._is_scheduled:
            return
        self._is_scheduled = True
        if self._session is not None and self._session.num_requests == 1:
            self._turns.add(self)
        else:
            # Behind everything that is ready in this turn of the loop: it goes out together.
            self.loop.call_soon(self.flush)

    def _give_up(self) -> None:
        if self._session is not None:
            self._session.give_up()
        self.abort()

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._writable is not None:
            if not self._writable.done():
                self._writable.set_result(None)
            self._writable = None


class Turns:
    """Lets connections that have one stream each send a few at a time.

    They have nothing to gather, so that the first need not wait until the last has something to
    say. To flush each at once would cost a third more: between two of them other code runs, and
    the receivers fall asleep.
    """

    def __init__(self) -> None:
        """Nobody waits."""
        self._waiting: list[StreamConnection] = []

    def add(self, connection: StreamConnection) -> None:
        """Flush a connection soon, at the latest when this turn of the loop is over."""
        self._waiting.append(connection)
        if len(self._waiting) >= TOGETHER:
            self._flush()
        elif len(self._waiting) == 1:
            connection.loop.call_soon(self._flush)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            try:
                connection.flush()
            except Exception as error:  # of that connection alone; the others do not notice
                context = {"message": "a flush has failed", "exception": error}
                connection.loop.call_exception_handler(context)
                connection.abort()
