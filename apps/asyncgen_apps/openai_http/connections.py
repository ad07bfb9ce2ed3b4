"""Limit the size, the slowness and the number of connections before authentication.

uvicorn's protocol, which in addition counts the bytes of a head and looks at the clock. All
connections of a server share a few timers; none has a task. Knows HTTP's heads and bodies; no
paths but those of health.

A connection is in one of these states:

========= ============================= ========================================================
state     until                         its time
========= ============================= ========================================================
head      the last line of a head       ``head_seconds`` from the connection, or the first byte
body      the end of the body           each ``head_seconds`` bring ``body_rate`` bytes a second
idle      the next byte                 ``IDLE_SECONDS`` once everything is answered
refused   the client is gone            ``LINGER_SECONDS``; it was refused, nothing is parsed
========= ============================= ========================================================
"""

from __future__ import annotations

import json
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from asyncgen_apps.openai_http.deadlines import Deadlines
from asyncgen_apps.openai_http.errors import SERVER, ApiError
from asyncgen_apps.openai_http.response_writer import ResponseWriter
from asyncgen_apps.serving.sockets import LINGER_BYTES, RESERVE

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from starlette.types import Message, Receive, Scope, Send

    from asyncgen_apps.openai_http.settings import ServerSettings


ALWAYS_OPEN = frozenset({"/health", "/ready"})
"""Paths that are answered also when there are too many connections."""

FULL_SECONDS = 2.0
"""When to come back to a server that has too many connections."""

IDLE_SECONDS = 5.0
"""How long a client whose requests are all answered keeps its connection; uvicorn's default."""

LINGER_SECONDS = 2.0
"""How long a client that was refused may go on sending, so that it hears why."""

FLUSH_SECONDS = 60.0
"""How long a client may read nothing of an answer behind which the connection ends."""


class ConnectionState(Enum):
    """State of a connection."""

    HEAD = auto()
    BODY = auto()
    IDLE = auto()
    REFUSED = auto()


# Looked up many times a request, and an enumeration's members are slow to find.
_HEAD, _BODY, _IDLE, _REFUSED = ConnectionState


class ConnectionLimits:
    """Counts and timers shared by the connections of a server.

    Attributes:
        settings: Limits of the connections.
        heads: Those whose head is coming.
        bodies: Those whose body is coming.
        idle: Those that may ask again.
        leaving: Those that were refused.
        flushing: Those that end as soon as their client has read the answer.
        reserved: Those beyond the limit that have not said yet what they want, oldest first.
    """

    def __init__(self, settings: ServerSettings) -> None:
        """Start without connections."""
        self.settings = settings
        self.heads = Deadlines(settings.head_seconds, LimitedProtocol.end_slow_head)
        self.bodies = Deadlines(settings.head_seconds, LimitedProtocol.check_body_rate)
        self.idle = Deadlines(IDLE_SECONDS, LimitedProtocol.timeout_keep_alive_handler)
        self.leaving = Deadlines(LINGER_SECONDS, LimitedProtocol.abort)
        self.flushing = Deadlines(FLUSH_SECONDS, LimitedProtocol.check_flush)
        self.reserved: dict[LimitedProtocol, None] = {}

    def forget(self, connection: LimitedProtocol) -> None:
        """Remove a connection that is closed, or that left HTTP."""
        for deadlines in (self.heads, self.bodies, self.idle, self.leaving, self.flushing):
            deadlines.discard(connection)
        self.reserved.pop(connection, None)


def limited_protocol(settings: ServerSettings) -> Callable[..., LimitedProtocol]:
    """Return the factory of connections for ``http=`` of uvicorn's configuration.

    Args:
        settings: Limits of the connections.
    """
    return partial(LimitedProtocol, ConnectionLimits(settings))


class LimitedProtocol(HttpToolsProtocol):
    """A connection within limits.

    A request that comes whole in one read touches no clock and no table.
    """

    # Beside the dictionary of uvicorn's own: a longer one would be slower for every attribute.
    __slots__ = (
        "_body_bytes",
        "_head_bytes",
        "_has_deadline",
        "_is_over_limit",
        "_limits",
        "_max_head_bytes",
        "_other_bytes",
        "_state",
        "_unread_bytes",
    )

    def __init__(self, limits: ConnectionLimits, *args: Any, **kwargs: Any) -> None:
        """Make a connection; uvicorn calls this.

        Args:
            limits: Counts and timers that all connections share.
            *args: As uvicorn gives them.
            **kwargs: As uvicorn gives them.
        """
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._max_head_bytes = limits.settings.max_head_bytes
        self._state = _HEAD
        self._has_deadline = False  # in a table of deadlines
        self._is_over_limit = False
        self._head_bytes = 0
        self._body_bytes = 0  # in this window
        self._other_bytes = 0  # since the last ones of a body, or since a refusal
        self._unread_bytes = -1

    # How it comes and goes.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Register the connection; over the limit, put it into the reserve."""
        super().connection_made(transport)
        self._set_deadline(self._limits.heads)
        beyond = len(self.connections) - self._limits.settings.max_connections
        if beyond > 0:
            self._enter_reserve(beyond)

    def _set_deadline(self, table: Deadlines[LimitedProtocol]) -> None:
        """Start its time in a table, unless it has started."""
        self._has_deadline = True
        table.add(self)

    def _enter_reserve(self, beyond: int) -> None:
        """Enter the reserve; if it is full, close the connection silent for longest."""
        self._is_over_limit = True
        self.app = _RefusalApp(self.app)
        reserved = self._limits.reserved
        if beyond > RESERVE:
            if not reserved:
                self.abort()
                return
            oldest = next(iter(reserved))
            del reserved[oldest]
            oldest.abort()
        reserved[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the closed connection from the tables."""
        if self._has_deadline or self._is_over_limit:
            self._limits.forget(self)
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """Hand it to the protocol of WebSockets, if there is room."""
        if self._is_over_limit:
            self._refuse(_full())
            return
        self._limits.forget(self)
        super().handle_websocket_upgrade()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        super().timeout_keep_alive_handler()
        self._set_deadline(self._limits.flushing)

    def on_response_complete(self) -> None:
        """Wait for what it asks next, or see that it goes, if this was the last answer."""
        if self._state is _IDLE and not self.pipeline and not self.transport.is_closing():
            # All that uvicorn does here, but for its timer: one a request costs more than a table.
            self.server_state.total_requests += 1
            self.flow.resume_reading()
            self._set_deadline(self._limits.idle)
            return
        super().on_response_complete()
        if self.transport.is_closing():
            if self.transport.get_write_buffer_size():
                self._set_deadline(self._limits.flushing)
        elif self._state is _BODY:  # nobody reads the rest: it has one more window
            self._limits.bodies.discard(self)
            self._set_deadline(self._limits.bodies)

    # What comes in.

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, within the limits."""
        state = self._state
        if state is _BODY:
            self._other_bytes += len(data)
        elif state is _REFUSED:
            self._other_bytes += len(data)
            if self._other_bytes > LINGER_BYTES:
                self.abort()
            return
        elif len(data) > (rest := self._max_head_bytes - self._head_bytes):
            # What may be too much is parsed only as far as it may come.
            self.data_received(data[:rest])
            if self.transport.get_protocol() is self:  # else it is a WebSocket now
                self.data_received(data[rest:])
            return
        else:
            if state is _IDLE:
                self._limits.idle.discard(self)
            self._state = _HEAD
            self._head_bytes += len(data)
        super().data_received(data)
        if self._state is not _IDLE:
            self._look_at_rest()

    def _look_at_rest(self) -> None:
        """Start the deadline of a request that the read did not complete."""
        if self._state is _HEAD:
            self._set_deadline(self._limits.heads)
            if self._head_bytes >= self._max_head_bytes:
                self._refuse(_long_head(self._max_head_bytes))
        elif self._state is _BODY:
            self._set_deadline(self._limits.bodies)
            if (
                self._other_bytes > self._max_head_bytes
            ):  # trailers, or chunks that are all but content
                self.abort()

    def on_headers_complete(self) -> None:
        """Note that the head is whole."""
        self._state = _BODY
        self._head_bytes = self._body_bytes = self._other_bytes = 0
        if self._has_deadline:
            self._limits.heads.discard(self)
            self._has_deadline = False
        if self._is_over_limit:
            self._limits.reserved.pop(self, None)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count a piece of the body."""
        self._body_bytes += len(body)
        self._other_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the body is whole; a head in the same read counts from the next read on."""
        self._state = _IDLE
        if self._has_deadline:
            self._limits.bodies.discard(self)
            self._has_deadline = False
        super().on_message_complete()

    # When its time is over.

    def end_slow_head(self) -> None:
        """Refuse a connection whose head did not come in time."""
        if self._is_answering():  # to the request before it, which is not to blame
            self._set_deadline(self._limits.heads)
        elif self._head_bytes:
            self._send_error(_slow_head(self._limits.settings.head_seconds))
            self._close()
        else:
            self._close()

    def check_body_rate(self) -> None:
        """See whether enough of a body has come."""
        settings = self._limits.settings
        # Where this side does not read, or has not asked yet, the client is not to blame.
        waits_for_us = self.flow.read_paused or self.cycle.waiting_for_100_continue
        is_enough = self._body_bytes >= settings.body_rate * settings.head_seconds
        if waits_for_us or (is_enough and not self.cycle.response_complete):
            self._body_bytes = 0
            self._set_deadline(self._limits.bodies)
        elif self.cycle.response_started:
            self.abort()
        else:
            self._send_error(_slow_body(settings.body_rate))
            self._close()

    def check_flush(self) -> None:
        """Close the connection if its client has read nothing."""
        left = self.transport.get_write_buffer_size()
        if left == self._unread_bytes:
            self.abort()
        else:
            self._unread_bytes = left
            self._set_deadline(self._limits.flushing)

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _close(self) -> None:
        self._state = _REFUSED
        self.transport.close()
        self._set_deadline(self._limits.flushing)

    def _refuse(self, error: ApiError) -> None:
        """Send the error, and close once the client has read it."""
        if self._is_answering():  # the words would get into the answer
            self.abort()
            return
        self._limits.forget(self)
        self._unset_keepalive_if_required()
        self._state = _REFUSED
        self._other_bytes = 0
        self._send_error(error)
        # To close at once would throw away what the client has not read yet, if it still sends.
        self.transport.write_eof()
        self._set_deadline(self._limits.leaving)

    def _send_error(self, error: ApiError) -> None:
        body = json.dumps(error.body()).encode()
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            *((name.encode(), value.encode()) for name, value in error.headers().items()),
        ]
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        self.transport.write(STATUS_LINE[error.status] + lines + b"\r\n" + body)


class _RefusalApp:
    """Application that answers on connections beyond the limit."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the health paths only; then close the connection."""

        async def last(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        if scope["path"] in ALWAYS_OPEN:
            await self._app(scope, receive, last)
        else:
            await ResponseWriter(last).fail(_full())


def _full() -> ApiError:
    message = "the server has as many connections as it takes; try again"
    return ApiError(503, message, SERVER, code="overloaded", retry_after=FULL_SECONDS)


def _long_head(most: int) -> ApiError:
    message = f"the head of the request is longer than {most} bytes, the most of this server"
    return ApiError(431, message, code="head_too_large")


def _slow_head(seconds: float) -> ApiError:
    message = f"the head of the request did not come in {seconds:g} s"
    return ApiError(408, message, code="head_timeout")


def _slow_body(rate: int) -> ApiError:
    return ApiError(408, f"the body came slower than {rate} bytes a second", code="body_timeout")
