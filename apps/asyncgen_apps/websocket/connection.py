"""Send many WebSocket messages in one write, none to a full socket, and read within a budget.

The ``send`` of the library makes one system call for each message. Here one write has the messages
of all streams of a connection, once per turn of the event loop. While the socket takes no more,
nothing is encoded, so that the core of the protocol merges messages, and soon nothing is read:
answers to pings would fill the memory. A client that reads nothing for ``send_seconds`` is
disconnected: the keep-alive of the library does not notice it.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import InvalidMessage
from websockets.frames import CloseCode, Frame
from websockets.protocol import State

from asyncgen_apps.serving.limits import LARGE
from asyncgen_apps.serving.sockets import HEAD_BYTES, LINGER_BYTES, has_left
from asyncgen_apps.websocket.flush_queue import FlushQueue

if TYPE_CHECKING:
    import asyncio

    from websockets.http11 import Request

    from asyncgen_apps.serving.read_budget import ReadBudget
    from asyncgen_apps.websocket.connection_limit import ConnectionLimit
    from asyncgen_apps.websocket.session import Session


CLOSE_SECONDS = 5.0
"""Longest time of a closing handshake, and of a client that reads why it was refused."""

MOST_FRAGMENTS = 16384
"""Frames of one message: empty ones would fill the memory without end."""

_MOST_UNSENT = 256 * 1024
"""Bytes that wait for a client behind which nothing more is read from it."""

_HEAD_END = b"\r\n\r\n"

_FIRST_CONTROL = 8
"""Codes of frames from here on are of pings, pongs and closes."""

_BAD_REQUEST = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 33\r\n\r\nthis is no request of WebSockets\n"
)


class StreamConnection(ServerConnection):
    """A connection that takes its messages from a session."""

    least_slice, most_slice = 512, 4096  # a frame may have two bytes
    most_unread = 0

    def __init__(
        self,
        limit: ConnectionLimit[StreamConnection],
        budget: ReadBudget,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Make it; the server does.

        Args:
            limit: Counter of the server's sockets.
            budget: Shares the time of the loop with the server's other connections.
            *args: Arguments of the library.
            **kwargs: Arguments of the library.
        """
        super().__init__(*args, **kwargs)
        self.peer = ""
        self._limit = limit
        self._budget = budget
        self._holds: set[str] = set()
        self._fragments = 0
        self._is_refused = False
        self._head_bytes = 0
        self._head_tail = b""
        self._early = b""
        self._session: Session | None = None
        self._send_seconds = 0.0
        self._is_scheduled = False
        self._deadline: asyncio.TimerHandle | None = None
        self._writable: asyncio.Future[None] | None = None
        self._flush_queue = FlushQueue()
        self._message_bytes = 0  # of the message whose frames come
        self._sizes: deque[int] = deque()  # of the messages that wait
        self._waiting_bytes = 0  # of both, and of the message that is read
        self._taken_bytes = 0  # of the message that is read

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
        if session.has_place:
            self._limit.note_place(self)
        self._session = session
        self._send_seconds = send_seconds
        session.bind(self._schedule, self.abort, partial(has_left, self.transport))
        if self.paused:
            self._limit_stall()
        self._count_kept()

    async def receive(self) -> str | bytes:
        """Return the next message; the one before counts as read.

        Raises:
            ConnectionClosed: The connection has ended; what its client sent before is not read.
        """
        self._waiting_bytes -= self._taken_bytes
        self._taken_bytes = 0
        self._count_kept()
        while True:
            message = await self.recv()
            size = self._sizes.popleft()
            if self.state is State.OPEN:
                self._taken_bytes = size
                return message
            self._waiting_bytes -= size

    def _count_kept(self) -> None:
        """Count what waits for the session; read no more while that is too much."""
        session = self._session
        if session is None or self.protocol.state is not State.OPEN:
            return
        kept = len(self.protocol.reader.buffer) + self._waiting_bytes
        has_message = bool(self._sizes) or self._taken_bytes > 0
        is_full = len(self._sizes) > 1 and self._waiting_bytes > LARGE
        if session.keep(kept, has_message=has_message) and not is_full:
            if "memory" in self._holds:
                self._drop_hold("memory")
                self._budget.resume(self)
        elif "memory" not in self._holds:
            self._set_hold("memory")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the opened socket."""
        super().connection_made(transport)
        self.recv_messages.pause = self._hold_messages
        self.recv_messages.resume = self._take_messages
        peer = self.transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) else ""
        self._limit.add(self)

    def data_received(self, data: bytes) -> None:
        """Hand the data to the budget."""
        self._budget.take(self, data)

    @property
    def may_feed(self) -> bool:
        """See `Reader`: its output does not pile up, and not too many messages wait."""
        if self.paused and self.transport.get_write_buffer_size() > _MOST_UNSENT:
            return False
        return not self._holds or self._holds.isdisjoint(("handshake", "messages", "memory"))

    def cut(self, data: bytes | bytearray, most: int) -> int:
        """See `Reader`."""
        return min(len(data), most)

    def feed(self, data: bytes) -> None:
        """See `Reader`; what follows the head of the request waits for its answer.

        The library allows a head of 1 MiB and then reads without end.
        """
        if self.request is not None:
            super().data_received(data)
            self._count_kept()
            return
        if not self._may_read(len(data)):
            return
        super().data_received(self._take_head(data))

    def _take_head(self, data: bytes) -> bytes:
        """Return the bytes of the head; keep what comes behind it."""
        tail = self._head_tail
        end = (tail + data).find(_HEAD_END)
        self._head_tail = (tail + data)[1 - len(_HEAD_END) :]
        if end < 0:
            return data
        end += len(_HEAD_END) - len(tail)
        self._early = data[end:]
        return data[:end]

    def _read_on(self) -> None:
        """Read frames, since the handshake is answered.

        The library would answer pings before it, and fail with others.
        """
        self._drop_hold("handshake")
        early, self._early = self._early, b""
        if early and self.protocol.state is State.OPEN:
            super().data_received(early)
        self._budget.resume(self)

    def hold(self) -> None:
        """See `Reader`."""
        self._set_hold("budget")

    def release(self) -> None:
        """See `Reader`."""
        self._drop_hold("budget")

    def _hold_messages(self) -> None:
        """Stop reading: the library does so while too many messages wait."""
        self._set_hold("messages")

    def _take_messages(self) -> None:
        """Read on: few messages wait."""
        self._drop_hold("messages")
        self._budget.resume(self)

    def _set_hold(self, reason: str) -> None:
        if not self._holds:
            self.transport.pause_reading()
        self._holds.add(reason)

    def _drop_hold(self, reason: str) -> None:
        self._holds.discard(reason)
        if not self._holds and not self.transport.is_closing():
            self.transport.resume_reading()

    def process_event(self, event: Frame | Request) -> None:  # type: ignore[override]
        """Count the frames of a message; more than `MOST_FRAGMENTS` end the connection."""
        if not isinstance(event, Frame):
            self._set_hold("handshake")
            super().process_event(event)
            return
        if event.opcode < _FIRST_CONTROL:
            self._fragments = 0 if event.fin else self._fragments + 1
            if self._fragments > MOST_FRAGMENTS:
                self.protocol.fail(CloseCode.MESSAGE_TOO_BIG, "too many fragments")
                self.send_data()
                return
            self._message_bytes += len(event.data)
            self._waiting_bytes += len(event.data)
            if event.fin:
                self._sizes.append(self._message_bytes)
                self._message_bytes = 0
        Connection.process_event(self, event)

    def send_data(self) -> None:
        """Tell a client whose request cannot be read why its connection ends; limit each end."""
        is_broken = self.request is None and self.protocol.handshake_exc is not None
        if is_broken and not self._is_refused:
            self._is_refused = True
            if isinstance(self.protocol.handshake_exc, InvalidMessage):  # others are answered
                self.transport.write(_BAD_REQUEST)
        if self.transport.is_closing():
            self.protocol.data_to_send()  # asyncio would log each write
        super().send_data()
        if self.protocol.eof_sent:  # what still comes is thrown away
            self._limit_end()
            self._take_messages()
        if "handshake" in self._holds:
            if self.protocol.eof_sent or self.protocol.state is not State.CONNECTING:
                self._read_on()

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
        if self._session is not None:
            self._limit_stall()

    def resume_writing(self) -> None:
        """Send the waiting frames: the socket takes more again."""
        super().resume_writing()
        if self.protocol.state is State.OPEN:
            self._stop_waiting()
        self._budget.resume(self)
        self._schedule()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the closed socket."""
        super().connection_lost(exc)
        if self._session is not None:
            self._session.keep(0, has_message=False)
        self._budget.forget(self)
        self._limit.remove(self)
        self._stop_waiting()

    def flush(self) -> None:
        """Send all waiting frames if the socket takes them."""
        self._is_scheduled = False
        session = self._session
        if session is None or self.paused or self.protocol.state is not State.OPEN:
            return
        most = self._flush_queue.allowance
        if most <= 0:
            self._is_scheduled = True
            self._flush_queue.defer(self)
            return
        frames = session.take(most)
        self._flush_queue.spend(sum(map(len, frames)), self.loop)
        for frame in frames:
            self.protocol.send_text(frame)
        closing = session.closing
        if session.has_more:
            self._is_scheduled = True
            self._flush_queue.defer(self)
        elif closing is not None:
            self.protocol.send_close(closing.code, closing.reason)
            self._limit_end()
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

    def _limit_stall(self) -> None:
        if self._deadline is None:
            unsent = self.transport.get_write_buffer_size()
            self._deadline = self.loop.call_later(self._send_seconds, self._give_up, unsent)

    def _limit_end(self) -> None:
        # The library limits the time of a closing handshake only while a task awaits it.
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.close_timeout or 0.0, self.abort)

    def _give_up(self, unsent: int) -> None:
        """End the connection unless its client has read anything."""
        if self.transport.get_write_buffer_size() < unsent:
            self._deadline = None
            self._limit_stall()
            return
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
