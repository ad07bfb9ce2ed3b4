"""Send many WebSocket messages in one write, and none to a full socket.

The ``send`` of the library makes one system call for each message. Here one write has the messages
of all streams of a connection, once per turn of the event loop. While the socket takes no more,
nothing is encoded, so that the protocol's core merges messages. A client that reads nothing for
``send_seconds`` is disconnected: the keep-alive of the library does not notice it.
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


FLUSH_BATCH = 8
"""Connections with one stream that are flushed together; with more the first would wait long."""


class ConnectionLimit:
    """Limits the sockets of a server, also those without a finished handshake.

    Some sockets beyond the limit stay open, to be told that the server is full and to ask for its
    health. Beyond those, the oldest socket that sent no request yet is closed.
    """

    def __init__(self, most: int) -> None:
        """Begin without sockets.

        Args:
            most: Connections that may stay open.
        """
        self._most = most + RESERVE
        self._open: set[StreamConnection] = set()
        self._waiting: dict[StreamConnection, None] = {}

    def add(self, connection: StreamConnection) -> None:
        """Count an opened socket; close the oldest without a request if there are too many."""
        self._open.add(connection)
        self._waiting[connection] = None
        if len(self._open) > self._most:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.abort()

    def note_request(self, connection: StreamConnection) -> None:
        """Note that a socket has sent the head of its request."""
        self._waiting.pop(connection, None)

    def remove(self, connection: StreamConnection) -> None:
        """Forget a closed socket."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)


class StreamConnection(ServerConnection):
    """A connection that takes its messages from a session."""

    def __init__(self, limit: ConnectionLimit, *args: Any, **kwargs: Any) -> None:
        """Make it; the library does.

        Args:
            limit: Counter of the server's sockets.
            *args: Arguments of the library.
            **kwargs: Arguments of the library.
        """
        super().__init__(*args, **kwargs)
        self._limit = limit
        self._head_bytes = 0
        self._session: Session | None = None
        self._send_seconds = 0.0
        self._is_scheduled = False
        self._deadline: asyncio.TimerHandle | None = None
        self._writable: asyncio.Future[None] | None = None
        self._flush_queue = FlushQueue()

    def attach(
        self, session: Session, send_seconds: float, flush_queue: FlushQueue | None = None
    ) -> None:
        """Send the frames of a session from now on.

        Args:
            session: Session whose frames are sent.
            send_seconds: Longest time for which the socket may take nothing.
            flush_queue: Queue that all connections of the server share; by default a new one.
        """
        if flush_queue is not None:
            self._flush_queue = flush_queue
        self._session = session
        self._send_seconds = send_seconds
        session.bind(self._schedule, self.abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the opened socket."""
        super().connection_made(transport)
        self._limit.add(self)

    def data_received(self, data: bytes) -> None:
        """Limit the head of the request; the library allows 1 MiB and then reads without end."""
        if self.request is None and not self._may_read(len(data)):
            return
        super().data_received(data)
        if self.request is not None:
            self._limit.note_request(self)

    def _may_read(self, count: int) -> bool:
        """Count bytes of the head; return whether they may be read."""
        self._head_bytes += count
        if self._head_bytes <= HEAD_BYTES:
            return True
        if self._head_bytes > HEAD_BYTES + LINGER_BYTES:
            self.abort()
        elif not self.protocol.eof_sent:  # the library may have refused it before
            message = f"the head of the request is longer than {HEAD_BYTES} bytes\n"
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self.protocol.send_response(self.protocol.reject(status, message))
            self.send_data()
        return False

    def abort(self) -> None:
        """End the connection at once."""
        self.transport.abort()

    async def wait_writable(self) -> None:
        """Return when the socket takes more, or the connection has ended."""
        if self.paused:
            self._writable = self._writable or self.loop.create_future()
            await self._writable

    def pause_writing(self) -> None:
        """Start the deadline of a client that reads nothing: the socket is full."""
        super().pause_writing()
        if self._session is not None and self._deadline is None:
            self._deadline = self.loop.call_later(self._send_seconds, self._give_up)

    def resume_writing(self) -> None:
        """Send the waiting frames: the socket takes more again."""
        super().resume_writing()
        if self.protocol.state is State.OPEN:
            self._stop_waiting()
        self._schedule()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the closed socket."""
        super().connection_lost(exc)
        self._limit.remove(self)
        self._stop_waiting()

    def flush(self) -> None:
        """Send all waiting frames if the socket takes them."""
        self._is_scheduled = False
        session = self._session
        if session is None or self.paused or self.protocol.state is not State.OPEN:
            return
        for frame in session.take():
            self.protocol.send_text(frame)
        closing = session.closing
        if closing is not None:
            self.protocol.send_close(closing.code, closing.reason)
            # The library limits the time of a closing handshake only while a task awaits it.
            self._deadline = self.loop.call_later(self.close_timeout or 0.0, self.abort)
        if data := b"".join(self.protocol.data_to_send()):
            self.transport.write(data)

    def _schedule(self) -> None:
        if self._is_scheduled:
            return
        self._is_scheduled = True
        if self._session is not None and self._session.num_requests == 1:
            self._flush_queue.add(self)
        else:
            # Flush after all callbacks of this turn of the loop, so that one write has everything.
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


class FlushQueue:
    """Queue of connections with one stream each, which are flushed a few at a time.

    Such a connection has nothing to gather, so it need not wait for the end of the turn. Flushing
    each one alone would cost a third more time: other code runs in between, and the receivers fall
    asleep.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self._waiting: list[StreamConnection] = []

    def add(self, connection: StreamConnection) -> None:
        """Flush a connection soon, at the latest when this turn of the loop is over."""
        self._waiting.append(connection)
        if len(self._waiting) >= FLUSH_BATCH:
            self._flush()
        elif len(self._waiting) == 1:
            connection.loop.call_soon(self._flush)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            try:
                connection.flush()
            except Exception as error:  # must not stop the flush of the other connections
                context = {"message": "a flush has failed", "exception": error}
                connection.loop.call_exception_handler(context)
                connection.abort()
