"""One connection between its socket and the service: frames in, frames out.

The same for every kind of socket. The owner of the socket hands in frames, is told by
``on_ready`` when there are some to send, takes them with :meth:`Session.take`, and closes when
:attr:`Session.closing` says so.
"""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.to_thread

from asyncgen_apps.serving.limits import LARGE, MOST_MESSAGE
from asyncgen_apps.websocket.core import Begin, Channel, Close, Order, Stop
from asyncgen_apps.websocket.errors import Fault
from asyncgen_apps.websocket.frames import encode, read, read_large
from asyncgen_apps.websocket.messages import CloseCode, Resume
from asyncgen_apps.websocket.structured_logs import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen_apps.serving.clients import Client
    from asyncgen_apps.websocket.authentication import Door
    from asyncgen_apps.websocket.messages import ClientMessage
    from asyncgen_apps.websocket.metrics import Figures
    from asyncgen_apps.websocket.resumable_requests import Answer, Registry
    from asyncgen_apps.websocket.settings import StreamSettings


_FOR_GOOD = (1000, 1005)
"""What a client closes with that will not come back: normal, or nothing said. A page that is
reloaded or left sends 1001, a broken connection nothing at all."""

MOST_BACKLOG = 64
"""Messages that may wait for a slow client before the server stops reading from it."""


_NO_TOKEN = Fault("invalid_message", "no token is as long")


class Service(Protocol):
    """Part of the service that a session uses."""

    settings: StreamSettings
    registry: Registry
    figures: Figures
    door: Door
    readers: anyio.CapacityLimiter

    @property
    def fingerprint(self) -> str | None:
        """That of the engine."""

    def now(self) -> float:
        """The registry's clock, in seconds."""

    def begin(self, order: Begin, session: Session, /) -> None:
        """Start a request."""

    def stop(self, answer: Answer, /) -> None:
        """Have the engine stop a request."""

    def watch_expiry(self) -> None:
        """A time of grace may have begun."""

    def forget(self, session: Session, /) -> None:
        """A session has ended."""


class Session:
    """One connection.

    Attributes:
        name: For the log.
        closing: Set when the owner should send what there is and close.
    """

    __slots__ = ("_channel", "_service", "abort", "closing", "name")

    def __init__(self, service: Service, *, client: Client | None, peer: str | None) -> None:
        """Begin; the service does it when a handshake is done."""
        find = service.door.find if service.door.needs_token else None
        self._service = service
        self._channel = Channel(
            service.settings,
            service.registry,
            find=find,
            client=client,
            fingerprint=service.fingerprint,
        )
        self.name = secrets.token_hex(4)
        self.closing: Close | None = None
        self.abort: Callable[[], None] = _nothing
        say("open", connection=self.name, peer=peer)

    def bind(self, on_ready: Callable[[], None], abort: Callable[[], None]) -> None:
        """Say who owns the socket.

        Args:
            on_ready: Called when there is something to send, or to close; it must be quick.
            abort: Ends the connection without ceremony.
        """
        self._channel.on_ready = on_ready
        self.abort = abort
        on_ready()

    @property
    def is_authenticated(self) -> bool:
        """True if the client is authenticated."""
        return self._channel.is_authenticated

    @property
    def num_requests(self) -> int:
        """Requests whose end was not sent yet."""
        return self._channel.num_requests

    @property
    def is_congested(self) -> bool:
        """True if the server should not read from the client until the client has read."""
        return self._channel.backlog > MOST_BACKLOG

    def receive(self, frame: str | bytes) -> None:
        """Take in a frame; ``str`` is a text frame."""
        if self._may_read(frame):
            is_read = self.is_authenticated or len(frame) <= LARGE
            self._take_in(read(frame) if is_read else _NO_TOKEN)

    async def receive_large(self, frame: str | bytes) -> None:
        """Take in a frame; one that is large is read on a worker thread.

        The next frame must wait for it.
        """
        if len(frame) <= LARGE or not isinstance(frame, str) or not self.is_authenticated:
            self.receive(frame)
        elif self._may_read(frame):
            message = await anyio.to_thread.run_sync(
                read_large, frame, limiter=self._service.readers, abandon_on_cancel=True
            )
            if self.closing is None:
                self._take_in(message, is_checked=True)

    def _may_read(self, frame: str | bytes) -> bool:
        """Tell whether to read a frame; one that is too long ends the connection."""
        if self.closing is not None:
            return False
        limit = self._service.settings.max_message_bytes or MOST_MESSAGE
        if len(frame) > limit or (isinstance(frame, str) and len(frame.encode()) > limit):
            fault = Fault("message_too_big", f"a message has at most {limit} bytes here")
            self.refuse(fault, CloseCode.TOO_BIG)
            return False
        return True

    def _take_in(self, message: ClientMessage | Fault, *, is_checked: bool = False) -> None:
        """Take in what was read; whether its parameters were looked at."""
        before = self._channel.num_requests
        orders = self._channel.receive(message, self._service.now(), is_checked=is_checked)
        if isinstance(message, Resume) and self._channel.num_requests > before:
            self._service.figures.resumed += 1
            say("resumed", connection=self.name, request=message.id, after=message.after)
        self._obey(orders)

    def take(self) -> list[bytes]:
        """Take the frames to send, as UTF-8."""
        frames = [encode(message) for message in self._channel.flush(self._service.now())]
        figures = self._service.figures
        figures.messages_sent += len(frames)
        figures.bytes_sent += sum(map(len, frames))
        self._service.watch_expiry()
        self._close_if_drained()
        return frames

    def refuse(self, fault: Fault, code: CloseCode) -> None:
        """Tell the client why, and close."""
        self._obey(self._channel.refuse(fault, code))

    def too_late(self) -> None:
        """The client has not authenticated in time."""
        seconds = self._service.settings.open_seconds
        fault = Fault("not_authenticated", f"no token came within {seconds:g} s")
        self.refuse(fault, CloseCode.POLICY)

    def give_up(self) -> None:
        """The client reads nothing."""
        self._service.figures.dropped += 1
        seconds = self._service.settings.send_seconds
        say("stalled", level=logging.WARNING, connection=self.name, seconds=seconds)

    def drain(self) -> None:
        """The server is about to leave: take nothing new, and close when all is said."""
        self._channel.is_draining = True
        self._close_if_drained()

    def leave(self, code: int | None) -> None:
        """The connection is gone.

        Args:
            code: What it was closed with by the client; ``None`` if it broke.
        """
        orders = self._channel.leave(self._service.now(), for_good=code in _FOR_GOOD)
        self._obey(orders)
        self._service.watch_expiry()
        self._service.forget(self)
        say("close", connection=self.name, code=code)

    def _close_if_drained(self) -> None:
        if self._channel.is_draining and self.closing is None and not self._channel.num_requests:
            self._close(Close(CloseCode.GOING_AWAY, "draining"))

    def _obey(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case Begin():
                    self._service.begin(order, self)
                case Stop():
                    self._service.stop(order.answer)
                case Close():
                    self._service.figures.refuse(order.reason)
                    say("refused", level=logging.WARNING, connection=self.name, why=order.reason)
                    self._close(order)

    def _close(self, order: Close) -> None:
        self.closing = order
        self._channel.on_ready()


def _nothing() -> None:
    """No socket yet."""
