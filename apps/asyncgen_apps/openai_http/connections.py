"""Limit the size, the slowness and the number of connections before authentication.

uvicorn's protocol, which in addition counts the bytes of a head and looks at the clock. All
connections of a server share a few timers; none has a task. What they send is parsed within the
budget of the loop, one request after the other: behind one that is not answered yet nothing is
read. A client that leaves is noticed all the same, and so is one that closes only its half of the
connection: its requests are cancelled. Knows HTTP's heads and bodies; no paths but those of health.

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

import asyncio
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from asyncgen_apps.openai_http import refusals
from asyncgen_apps.openai_http.concurrency_limit import leaving
from asyncgen_apps.openai_http.deadlines import Deadlines
from asyncgen_apps.openai_http.hangups import HangupWatch
from asyncgen_apps.openai_http.old_clients import unframed
from asyncgen_apps.serving.get_turns import HAS_LEFT
from asyncgen_apps.serving.read_budget import running_budget
from asyncgen_apps.serving.sockets import LINGER_BYTES, RESERVE

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Receive, Scope, Send
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from asyncgen_apps.openai_http.errors import ApiError
    from asyncgen_apps.openai_http.settings import ServerSettings


IDLE_SECONDS = 5.0
"""How long a client whose requests are all answered keeps its connection; uvicorn's default."""

LINGER_SECONDS = 2.0
"""How long a client that was refused may go on sending, so that it hears why."""

FLUSH_SECONDS = 60.0
"""How long a client may read nothing of an answer that fills the socket, or behind which the
connection ends."""


_END = b"\r\n\r\n"
"""Ends a head, and a body in chunks."""


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
        flushing: Those whose client has to read before they go on, or end.
        hangups: Notices clients that leave while they are not read.
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
        self.hangups = HangupWatch(LimitedProtocol.leave)
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


class _Flow(FlowControl):
    """Flow control that asks the budget to read on, and never stops the socket itself.

    The budget does, once there is something that it may not parse.
    """

    def __init__(self, connection: LimitedProtocol, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._connection = connection

    def pause_reading(self) -> None:
        self.read_paused = True

    def resume_reading(self) -> None:
        self.read_paused = False
        self._connection.budget.resume(self._connection)


class LimitedProtocol(HttpToolsProtocol):
    """A connection within limits.

    A request that comes whole in one read, and is short, touches no table.

    Attributes:
        budget: Budget of the event loop.
        peer: Address of the other end.
    """

    least_slice, most_slice = 4096, 16384  # a header or a chunk may have five bytes
    most_unread = 128 * 1024  # behind a request: so that its client is seen to leave

    # Beside the dictionary of uvicorn's own: a longer one would be slower for every attribute.
    __slots__ = (
        "_body_bytes",
        "_head_bytes",
        "_has_deadline",
        "_is_held",
        "_is_over_limit",
        "_limits",
        "_max_head_bytes",
        "_other_bytes",
        "_running",
        "_state",
        "_unread_bytes",
        "budget",
        "peer",
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
        self.budget = running_budget()
        self.peer = ""
        self._max_head_bytes = limits.settings.max_head_bytes
        self._state = _HEAD
        self._has_deadline = False  # in a table of deadlines
        self._is_over_limit = False
        self._is_held = False  # by the budget: the socket is not read
        self._running: RequestResponseCycle | None = None  # the request that was started last
        self._head_bytes = 0
        self._body_bytes = 0  # in this window
        self._other_bytes = 0  # since the last ones of a body, or since a refusal
        self._unread_bytes = -1

    # How it comes and goes.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Register the connection; over the limit, put it into the reserve."""
        super().connection_made(transport)
        self.flow = _Flow(self, transport)
        self.peer = self.client[0] if self.client else ""
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
        self.app = refusals.FullApp(self.app)
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
        """Remove the closed connection from the tables, and cancel its requests."""
        if self._has_deadline or self._is_over_limit:
            self._limits.forget(self)
        self.budget.forget(self)
        self._limits.hangups.discard(self)
        self._cancel()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """Cancel the requests of a client that sends nothing more: it has left."""
        self.leave()

    def pause_writing(self) -> None:
        """Start the time of a client that reads nothing: the socket is full."""
        super().pause_writing()
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._set_deadline(self._limits.flushing)

    def resume_writing(self) -> None:
        """Stop that time: the client reads."""
        if not self.transport.is_closing():
            self._limits.flushing.discard(self)
        super().resume_writing()

    def leave(self) -> None:
        """Cancel the requests, and close once what is written is read."""
        self._cancel()
        if not self.transport.is_closing():
            self.transport.close()
            if self.transport.get_write_buffer_size():
                self._set_deadline(self._limits.flushing)

    def _cancel(self) -> None:
        """Tell the requests under way that the client has left; start no other."""
        self.pipeline.clear()
        for cycle in (self._running, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.flow.resume_writing()

    def handle_websocket_upgrade(self) -> None:
        """Hand it to the protocol of WebSockets, if there is room."""
        if self._is_over_limit:
            self._refuse(refusals.full())
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
        """Hand received bytes to the budget."""
        if self._state is _REFUSED:
            self._other_bytes += len(data)
            if self._other_bytes > LINGER_BYTES:
                self.abort()
            return
        self.budget.take(self, data)

    @property
    def may_feed(self) -> bool:
        """See `Reader`: no request waits for its answer, or its body is wanted."""
        if self.transport.is_closing():
            return False
        if self._state is _REFUSED:
            return True
        if self.flow.read_paused:
            return False
        running = self._running
        if running is None or running.response_complete:
            return True
        return self._state is _BODY and running is self.cycle

    def cut(self, data: bytes | bytearray, most: int) -> int:
        """See `Reader`: no more than one request, if another follows, and no more of a head than
        may come.
        """
        most = min(len(data), most)
        if self._state is not _BODY:
            most = min(most, max(self._max_head_bytes - self._head_bytes, 1))
        end = data.find(_END, 0, most) + len(_END)
        return end if end >= len(_END) and data.find(_END, end, most) >= 0 else most

    def hold(self) -> None:
        """See `Reader`."""
        self._is_held = True
        if not self.transport.is_closing():
            self.transport.pause_reading()
            self._limits.hangups.add(self)

    def release(self) -> None:
        """See `Reader`."""
        self._is_held = False
        self._limits.hangups.discard(self)
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def feed(self, data: bytes) -> None:
        """See `Reader`: parse bytes, within the limits."""
        state = self._state
        if state is _BODY:
            self._other_bytes += len(data)
        elif state is _REFUSED:
            return
        else:
            if state is _IDLE:
                self._limits.idle.discard(self)
            self._state = _HEAD
            self._head_bytes += len(data)
        self._parse(data)
        if self._state is not _IDLE:
            self._look_at_rest()

    def _parse(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            if self._should_upgrade():
                self._become_websocket(rest)
            elif self._ignores_upgrade():
                head = refusals.without_upgrade(
                    self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers
                )
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn
                self._parse(head + rest)
            elif rest:  # behind a CONNECT, which is answered as any other method
                self._parse(rest)
        except httptools.HttpParserError:
            self._refuse(refusals.invalid())

    def _should_upgrade(self) -> bool:
        """Tell whether the head asks for a WebSocket; HTTP/1.0 cannot (RFC 9110, 7.8)."""
        return super()._should_upgrade() and self.parser.get_http_version() != "1.0"

    def _ignores_upgrade(self) -> bool:
        """Tell whether the head asks for a protocol that is not spoken here, such as h2c.

        The parser takes what follows for that protocol, but it is the body of the request.
        """
        return any(name == b"upgrade" for name, _ in self.headers) and not self._should_upgrade()

    def _become_websocket(self, rest: bytes) -> None:
        """Hand the socket over, with what the client has sent behind the head."""
        if self._is_answering():  # to a request before it, which is not to blame
            self.abort()
            return
        rest += self.budget.forget(self)
        if self._is_held:
            self.release()  # first: whether the socket is read is up to the next protocol then
        self.handle_websocket_upgrade()
        protocol: Any = self.transport.get_protocol()
        if protocol is not self and rest:
            protocol.data_received(rest)

    def _look_at_rest(self) -> None:
        """Start the deadline of a request that the read did not complete."""
        if self._state is _HEAD:
            self._set_deadline(self._limits.heads)
            if self._head_bytes >= self._max_head_bytes:
                self._refuse(refusals.long_head(self._max_head_bytes))
        elif self._state is _BODY:
            self._set_deadline(self._limits.bodies)
            if self._other_bytes > self._max_head_bytes:
                self._refuse(refusals.no_content(self._max_head_bytes))

    def on_headers_complete(self) -> None:
        """Note that the head is whole."""
        if self.parser.should_upgrade() and self._ignores_upgrade():
            return  # it is parsed again, without that
        self._state = _BODY
        self._head_bytes = self._body_bytes = self._other_bytes = 0
        if self._has_deadline:
            self._limits.heads.discard(self)
            self._has_deadline = False
        if self._is_over_limit:
            self._limits.reserved.pop(self, None)
        version = self.parser.get_http_version()
        if version == "1.0":
            self.expect_100_continue = False  # such a client would take it for the answer
        refused = refusals.of_head(self.url, self.headers, version)
        if refused is not None:
            del self.headers[:]
            self.url = b"/"
            app, self.app = self.app, refusals.application(refused)
            super().on_headers_complete()
            self.app = app
        else:
            super().on_headers_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of a head; those behind a body would join the ones that were checked."""
        if self._state is not _BODY:
            super().on_header(name, value)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Start a request."""
        self._running = cycle
        super()._start_asgi_task(cycle, partial(self._run, cycle, app))

    async def _run(
        self, cycle: RequestResponseCycle, app: ASGIApp, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Run a request; one that the end of the server cuts off hears of it."""
        scope[HAS_LEFT] = lambda: cycle.disconnected
        try:
            await app(scope, receive, unframed(cycle) if scope["http_version"] == "1.0" else send)
        except asyncio.CancelledError:
            if not cycle.response_started:
                cycle.response_started = True  # else uvicorn would answer with a 500
                self._send_error(leaving())
            raise

    def on_body(self, body: bytes) -> None:
        """Count a piece of the body."""
        self._body_bytes += len(body)
        self._other_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the body is whole; a head in the same read counts from the next read on."""
        if self._state is not _BODY:
            return
        self._state = _IDLE
        if self._has_deadline:
            self._limits.bodies.discard(self)
            self._has_deadline = False
        super().on_message_complete()

    # When its time is over.

    def end_slow_head(self) -> None:
        """Refuse a connection whose head did not come in time."""
        if self._is_held or self._is_answering():  # the client is not to blame
            self._set_deadline(self._limits.heads)
        elif self._head_bytes:
            self._send_error(refusals.slow_head(self._limits.settings.head_seconds))
            self._close()
        else:
            self._close()

    def check_body_rate(self) -> None:
        """See whether enough of a body has come."""
        settings = self._limits.settings
        # Where this side does not read, or has not asked yet, the client is not to blame.
        is_paused = self._is_held or self.flow.read_paused
        waits_for_us = is_paused or self.cycle.waiting_for_100_continue
        is_enough = self._body_bytes >= settings.body_rate * settings.head_seconds
        if waits_for_us or (is_enough and not self.cycle.response_complete):
            self._body_bytes = 0
            self._set_deadline(self._limits.bodies)
        elif self.cycle.response_started:
            self.abort()
        else:
            self._send_error(refusals.slow_body(settings.body_rate))
            self._close()

    def check_flush(self) -> None:
        """Close the connection if its client has read nothing."""
        left = self.transport.get_write_buffer_size()
        if left and left >= self._unread_bytes >= 0:
            self.abort()
        else:
            self._unread_bytes = left
            self._set_deadline(self._limits.flushing)

    def abort(self) -> None:
        """Close the connection at once."""
        self._cancel()
        self.transport.abort()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _close(self) -> None:
        self._state = _REFUSED
        self.transport.close()
        self._set_deadline(self._limits.flushing)

    def _refuse(self, error: ApiError) -> None:
        """Send the error, and close once the client has read it."""
        if self._is_answering():
            if self._state is not _BODY or self.cycle.response_started:
                self.abort()  # the words would get into the answer
                return
            self._cancel()
        self._limits.forget(self)
        self._unset_keepalive_if_required()
        self._state = _REFUSED
        self._other_bytes = 0
        self._send_error(error)
        # To close at once would throw away what the client has not read yet, if it still sends.
        self.transport.write_eof()
        self._set_deadline(self._limits.leaving)

    def _send_error(self, error: ApiError) -> None:
        self.transport.write(refusals.response(error, self.server_state.default_headers))
