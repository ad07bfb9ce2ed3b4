"""Connect a socket of any kind to the service: frames in, frames out.

The owner of the socket passes frames to :meth:`Session.receive`. ``on_ready`` tells it that there
are frames to send, :meth:`Session.take` returns them, and it closes the socket once
:attr:`Session.closing` is set.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.lowlevel

from asyncgen_apps.serving.clients import ANYBODY
from asyncgen_apps.serving.limits import LARGE, MOST_MESSAGE, SMALL
from asyncgen_apps.websocket.core import Action, Channel, CloseConnection, StartRequest, StopRequest
from asyncgen_apps.websocket.errors import Fault
from asyncgen_apps.websocket.frames import encode, read, read_large
from asyncgen_apps.websocket.messages import CloseCode, Resume, Wanted
from asyncgen_apps.websocket.resume_tokens import digest_large
from asyncgen_apps.websocket.structured_logs import log_event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from asyncgen_apps.serving.client_turns import ClientTurns, TurnsOnLoop
    from asyncgen_apps.serving.clients import Client
    from asyncgen_apps.serving.shared_budget import SharedBudget
    from asyncgen_apps.websocket.authentication import Authenticator
    from asyncgen_apps.websocket.messages import ClientMessage
    from asyncgen_apps.websocket.metrics import Counters
    from asyncgen_apps.websocket.resumable_requests import Answer, Registry
    from asyncgen_apps.websocket.settings import StreamSettings


_FOR_GOOD = (1000, 1005)
"""Close codes of a client that will not come back: normal, or none given. A page that is reloaded
or left sends 1001; a broken connection has no close frame at all."""

MOST_BACKLOG = 64
"""Messages that may wait for a slow client before the server stops reading from it."""

_FRAMES_PER_TURN = 16
"""Frames that are read from one client before other tasks run."""

_MOST_UTF8 = 4
"""Bytes of a character, at most."""

MOST_UNKNOWN = 4096
"""Bytes that are read of a client before its first message, which has its token, is read."""

_LONG_TOKEN = Fault(
    "not_authenticated",
    f"the first message must be `auth` with a token, and has at most {MOST_UNKNOWN} bytes",
)
_NO_TOKEN = Fault("invalid_message", "no token is as long")


@dataclass(frozen=True, slots=True)
class LargeMessage:
    """What is known of a large message besides its content.

    Attributes:
        size: Its bytes.
        digest: Digest of the request in it, if there is one.
    """

    size: int
    digest: bytes | None


class Service(Protocol):
    """Part of the service that a session uses."""

    settings: StreamSettings
    registry: Registry
    counters: Counters
    authenticator: Authenticator
    readers: ClientTurns
    turns: TurnsOnLoop
    large: SharedBudget

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of the engine."""

    def now(self) -> float:
        """Return the time of the registry's clock, in seconds."""

    def begin(self, action: StartRequest, session: Session, large: LargeMessage | None, /) -> None:
        """Start a request."""

    def stop(self, answer: Answer, /) -> None:
        """Stop a request in the engine."""

    def watch_expiry(self) -> None:
        """Note that a grace period may have begun."""

    def has_place(self, session: Session, /) -> bool:
        """Tell whether a session was let in."""

    def forget(self, session: Session, /) -> None:
        """Remove a session that has ended."""

    def identify(self, session: Session, client: Client, /) -> Fault | None:
        """Count a session for its client, or say why not."""


class Session:
    """One connection.

    Attributes:
        name: Name of the connection in the log.
        abort: Closes the socket at once.
        closing: Set once the owner should send the waiting frames and close the socket.
    """

    __slots__ = ("_channel", "_kept", "_service", "abort", "closing", "name")

    def __init__(self, service: Service, *, client: Client | None, peer: str | None) -> None:
        """Begin after the handshake; :meth:`StreamService.open` does it."""
        find = service.authenticator.find if service.authenticator.needs_token else None
        self._service = service
        self._channel = Channel(
            service.settings,
            service.registry,
            find=find,
            client=client,
            fingerprint=service.fingerprint,
        )
        self._kept = 0
        self.name = secrets.token_hex(4)
        self.closing: CloseConnection | None = None
        self.abort: Callable[[], None] = _ignore
        log_event("open", connection=self.name, peer=peer)

    def bind(
        self,
        on_ready: Callable[[], None],
        abort: Callable[[], None],
        has_left: Callable[[], bool] = bool,
    ) -> None:
        """Set the callbacks of the owner of the socket.

        Args:
            on_ready: Called when there are frames to send, or to close; it must be quick.
            abort: Closes the socket at once, without a closing handshake.
            has_left: Tells whether the client is gone, also while something that it sent before is
                not read.
        """
        self._channel.on_ready = on_ready
        self._channel.has_left = has_left
        self.abort = abort
        on_ready()

    @property
    def is_authenticated(self) -> bool:
        """True if the client is authenticated."""
        return self._channel.is_authenticated

    @property
    def num_requests(self) -> int:
        """Number of requests whose end was not sent yet."""
        return self._channel.num_requests

    @property
    def is_congested(self) -> bool:
        """True if the server should not read from the client until the client has read."""
        return self._channel.backlog > MOST_BACKLOG

    def receive(self, frame: str | bytes) -> None:
        """Process a frame; ``str`` is a text frame."""
        if self._may_read(frame):
            is_read = self.is_authenticated or len(frame) <= LARGE
            self._process(read(frame) if is_read else _NO_TOKEN)

    async def receive_large(self, frame: str | bytes) -> None:
        """Process a frame; a large one is parsed on a worker thread.

        The caller passes the next frame only after this call has returned.
        """
        if len(frame) <= LARGE or not isinstance(frame, str) or not self.is_authenticated:
            self.receive(frame)
        elif self._may_read(frame):
            client = self._channel.client or ANYBODY
            found = await self._service.readers.run(client.id, self._read_large, frame)
            if found is not None and self.closing is None:
                message, wanted = found
                self._process(message, LargeMessage(_num_bytes(frame), wanted))

    def _read_large(self, frame: str) -> tuple[ClientMessage | Fault, bytes | None] | None:
        """Read a large frame on a worker thread, and the digest of the request in it.

        Returns:
            Both, or ``None`` if its client has left meanwhile.
        """
        if self._channel.has_left():
            return None
        message = read_large(frame)
        wanted = message.request if isinstance(message, Resume) else message
        return message, digest_large(wanted) if isinstance(wanted, Wanted) else None

    def keep(self, num_bytes: int, *, has_message: bool) -> bool:
        """Count the bytes of its messages that wait or are read; 0 if it is gone.

        Large ones share a budget with those of other connections, and with running requests. Too
        many end the connection, and so does a first message without an end: nobody is known then.

        Args:
            num_bytes: The bytes, also of a message that is not complete.
            has_message: Whether a complete one is among them.

        Returns:
            False if no more is to be read now.
        """
        if num_bytes > MOST_UNKNOWN and not self.is_authenticated:
            if not has_message and self.closing is None:
                self.refuse(_LONG_TOKEN, CloseCode.POLICY)
            return False
        kept = num_bytes if num_bytes > LARGE else 0
        more = kept - self._kept
        if more > 0:
            if self.closing is not None:
                return False
            client, budget = (self._channel.client or ANYBODY).id, self._service.large
            if not budget.take(client, more):
                self.refuse(too_many_large(budget, client), CloseCode.OVERLOADED)
                return False
        elif more < 0:
            self._service.large.give_back((self._channel.client or ANYBODY).id, -more)
        self._kept = kept
        return True

    async def read(
        self,
        receive: Callable[[], Awaitable[str | bytes]],
        wait_writable: Callable[[], Awaitable[None]],
    ) -> None:
        """Process frames until ``receive`` raises.

        Args:
            receive: Returns the next frame; raises once the connection has ended.
            wait_writable: Called while too much waits to be sent, before the next frame is read.
        """
        if not self.is_authenticated:
            with anyio.move_on_after(self._service.settings.open_seconds) as waiting:
                self.receive(await receive())
            if waiting.cancelled_caught:
                self.authentication_timed_out()
        for count in itertools.count(1):
            frame = await receive()
            if len(frame) > LARGE:
                await self.receive_large(frame)
            elif len(frame) > SMALL:
                client = self._channel.client or ANYBODY
                await self._service.turns.run(client.id, self._receive_in_turn, frame)
            else:
                self.receive(frame)
            if count % _FRAMES_PER_TURN == 0:
                await anyio.lowlevel.checkpoint()  # reading frames that have arrived does not yield
            if self.is_congested:
                await wait_writable()

    def _receive_in_turn(self, frame: str | bytes) -> None:
        """Process a frame, unless its client has left while it waited."""
        if not self._channel.has_left():
            self.receive(frame)

    def _may_read(self, frame: str | bytes) -> bool:
        """Tell whether to read a frame; one that is too long ends the connection."""
        if self.closing is not None:
            return False
        limit = self._service.settings.max_message_bytes or MOST_MESSAGE
        if _MOST_UTF8 * len(frame) > limit and _num_bytes(frame) > limit:
            fault = Fault("message_too_big", f"a message has at most {limit} bytes here")
            self.refuse(fault, CloseCode.TOO_BIG)
            return False
        return True

    def _process(self, message: ClientMessage | Fault, large: LargeMessage | None = None) -> None:
        """Pass a message to the protocol, and perform the actions that it returns."""
        channel = self._channel
        before, owner = channel.num_requests, channel.client
        actions = channel.receive(message, self._service.now(), is_checked=large is not None)
        if isinstance(message, Resume) and channel.num_requests > before:
            self._service.counters.resumed += 1
            log_event("resumed", connection=self.name, request=message.id, after=message.after)
        if actions:
            self._perform(actions, large)
        if owner is None and channel.client is not None:
            busy = self._service.identify(self, channel.client)
            if busy is not None:
                self.refuse(busy, CloseCode.OVERLOADED)

    @property
    def has_more(self) -> bool:
        """True if :meth:`take` left something."""
        return self._channel.has_more

    def take(self, most: int = sys.maxsize) -> list[bytes]:
        """Return frames to send, in UTF-8.

        Args:
            most: Bytes of answers behind which the rest goes on waiting.
        """
        frames = [encode(message) for message in self._channel.flush(self._service.now(), most)]
        counters = self._service.counters
        counters.messages_sent += len(frames)
        counters.bytes_sent += sum(map(len, frames))
        self._service.watch_expiry()
        self._close_if_drained()
        return frames

    @property
    def has_place(self) -> bool:
        """True if it was let in, and counts for its client."""
        return self._service.has_place(self)

    def refuse(self, fault: Fault, code: CloseCode) -> None:
        """Send an error, then close the connection."""
        self._perform(self._channel.refuse(fault, code))

    def authentication_timed_out(self) -> None:
        """Refuse the client, because it sent no token in time."""
        seconds = self._service.settings.open_seconds
        fault = Fault("not_authenticated", f"no token came within {seconds:g} s")
        self.refuse(fault, CloseCode.POLICY)

    def give_up(self) -> None:
        """Note that the connection is dropped because the client reads nothing."""
        self._service.counters.dropped += 1
        seconds = self._service.settings.send_seconds
        log_event("stalled", level=logging.WARNING, connection=self.name, seconds=seconds)

    def drain(self) -> None:
        """Refuse new requests, and close the connection once all others have ended."""
        self._channel.is_draining = True
        self._close_if_drained()

    def leave(self, code: int | None) -> None:
        """Release the requests after the connection ended.

        Args:
            code: Close code of the client; ``None`` if the connection broke.
        """
        actions = self._channel.leave(self._service.now(), for_good=code in _FOR_GOOD)
        self._perform(actions)
        self._service.watch_expiry()
        self._service.forget(self)
        log_event("close", connection=self.name, code=code)

    def _close_if_drained(self) -> None:
        if self._channel.is_draining and self.closing is None and not self._channel.num_requests:
            self._close(CloseConnection(CloseCode.GOING_AWAY, "draining"))

    def _perform(self, actions: list[Action], large: LargeMessage | None = None) -> None:
        for action in actions:
            match action:
                case StartRequest():
                    self._service.begin(action, self, large)
                case StopRequest():
                    self._service.stop(action.answer)
                case CloseConnection():
                    self._service.counters.refuse(action.reason)
                    log_event(
                        "refused", level=logging.WARNING, connection=self.name, why=action.reason
                    )
                    self._close(action)

    def _close(self, action: CloseConnection) -> None:
        self.closing = action
        self._channel.on_ready()


def too_many_large(budget: SharedBudget, client: str) -> Fault:
    """Return the error of a large message for which a budget has no room."""
    reason = budget.refusal(client, "MiB of large messages are read or answered", 2**20)
    return Fault("overloaded", f"{reason}; try again", retry_after=1.0)


def _num_bytes(frame: str | bytes) -> int:
    """Return the bytes of a frame on the wire."""
    return len(frame.encode() if isinstance(frame, str) else frame)


def _ignore() -> None:
    """Do nothing: the callback before there is a socket."""
