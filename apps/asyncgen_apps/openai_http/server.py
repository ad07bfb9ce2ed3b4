"""Runs the application on a socket until a signal comes, and lets those inside finish.

On the first SIGTERM or SIGINT nobody is let in any more, and requests under way go on; after
``drain_seconds``, or on a second signal, they are ended with an error that says so. Where there is
to be a notice, ``/ready`` alone says at first that the server leaves. Knows uvicorn; not what the
application does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import anyio
import uvicorn
from starlette.requests import ClientDisconnect

from asyncgen_apps.serving.accepting import Accepting
from asyncgen_apps.serving.limits import MOST_BODY
from asyncgen_apps.serving.sockets import listen

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from starlette.types import ASGIApp

    from asyncgen_apps.openai_http.concurrency_limit import Gate
    from asyncgen_apps.openai_http.settings import ServerSettings


BACKLOG = 2048
LAST_WORDS = 2.0
"""Seconds for the last events to go out after a drain was cut short, however many parts wait."""


def bind(host: str, port: int) -> socket.socket:
    """Open the socket; clients may connect from now on, and wait.

    Args:
        host: Name or address.
        port: 0 chooses one.

    Raises:
        OSError: The port is taken, or the address is not of this machine.
    """
    return listen(host, port, BACKLOG)


class Server(uvicorn.Server):
    """uvicorn, with a drain that tells the clients and signals that wake the loop."""

    def __init__(
        self,
        app: ASGIApp,
        gate: Gate,
        settings: ServerSettings,
        *,
        drain_seconds: float = 30.0,
        notice_seconds: float = 0.0,
        drain_streams: Callable[[float], Awaitable[None]] | None = None,
        sockets: Callable[..., Any] | None = None,
        verbose: bool = False,
    ) -> None:
        """Set it up.

        Args:
            app: The application.
            gate: Closed on a drain.
            settings: Limits of the connections.
            drain_seconds: Longest time for requests after the start of the drain.
            notice_seconds: How long after the first signal it begins: until then ``/ready`` says
                that the server leaves, and all that comes is taken.
            drain_streams: Lets WebSockets finish within so many seconds; called before their
                connections are closed, and again with 0 if they are to end at once.
            sockets: Makes the connection of a socket that becomes a WebSocket
                (`ConnectionServer.upgraded`); ``None``: the application serves them.
            verbose: Log every request.
        """
        config = uvicorn.Config(
            app,
            log_level="info" if verbose else "warning",
            access_log=verbose,
            server_header=False,
            backlog=BACKLOG,
            # Whose word is taken is a setting, the same for all servers; uvicorn would trust this
            # machine, where anybody may say anything.
            forwarded_allow_ips=list(settings.trusted_proxies),
            http=_protocol(settings),
            ws="websockets-sansio" if sockets is None else sockets,  # type: ignore[arg-type]
            ws_max_size=settings.max_body_bytes or MOST_BODY,
            ws_per_message_deflate=False,  # messages are tiny
        )
        super().__init__(config)
        self._gate = gate
        self._drain_seconds = drain_seconds
        self._notice_seconds = notice_seconds
        self._drain_streams = drain_streams
        self._hurried = anyio.Event()
        self._cut_at: float | None = None

    def leave(self) -> None:
        """Give notice, where there is time for it; called again, drain; then, end at once."""
        if self._notice_seconds > 0 and self._gate.ready:
            self._gate.ready = False
            asyncio.get_running_loop().call_later(self._notice_seconds, self._drain)
            return
        if self.should_exit:
            self._force()
            self._abort_all()
            self._hurried.set()
        self._drain()

    def _drain(self) -> None:
        """Take nothing new."""
        self._gate.drain()
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to :func:`serve`: uvicorn's way would end the process on return."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and accept all that waits."""
        for listener in sockets or ():
            made: Any = Accepting(listener, self.config.http_protocol_class)
            self.config.http_protocol_class = made
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let those inside finish, within limits."""
        self._gate.drain()
        async with anyio.create_task_group() as group:
            group.start_soon(self._end_late)
            group.start_soon(self._hurry)
            if self._drain_streams is not None:
                # First: shutting down closes WebSockets at once, whatever they are doing.
                await self._drain_streams(self._drain_seconds)
            await super().shutdown(sockets)
            group.cancel_scope.cancel()
        since = 0.0 if self._cut_at is None else time.monotonic() - self._cut_at
        with anyio.move_on_after(max(0.0, LAST_WORDS - since)):
            await self._gate.wait_empty()

    async def _hurry(self) -> None:
        """End WebSockets as well when all is to end at once."""
        await self._hurried.wait()
        if self._drain_streams is not None:
            await self._drain_streams(0)

    async def _end_late(self) -> None:
        """End what is still inside when the time is over, and what does not listen to that."""
        await anyio.sleep(self._drain_seconds)
        self._abort_all()
        await anyio.sleep(LAST_WORDS)
        self._force()

    def _abort_all(self) -> None:
        """End what is inside with an error; from now on it has `LAST_WORDS`."""
        self._cut_at = self._cut_at or time.monotonic()
        self._gate.abort_all()

    def _force(self) -> None:
        """Wait for nobody any more; that requests are cut off is no error, and is not logged."""
        logging.getLogger("uvicorn.error").addFilter(_is_no_cut)
        self.force_exit = True


def _protocol(settings: ServerSettings) -> Any:
    """Connections within limits; uvicorn's own where its parser is not installed (on Windows)."""
    if find_spec("httptools") is None:
        return "auto"
    from asyncgen_apps.openai_http.connections import limited_protocol

    return limited_protocol(settings)


_CUTS = ("CancelledError", "returned without completing response.")


def _is_no_cut(record: logging.LogRecord) -> bool:
    """Tell whether a record is of something else than a request that was cut off.

    uvicorn logs what a request raised, what its lifespan raised as a text, and answers without end.
    """
    error = record.exc_info[1] if record.exc_info else None
    while error is not None:
        if isinstance(error, asyncio.CancelledError | ClientDisconnect):
            return False
        error = error.__cause__ or error.__context__
    return not record.getMessage().rstrip().endswith(_CUTS)


async def serve(server: Server, listener: socket.socket) -> None:
    """Serve until a signal comes.

    Args:
        server: Not started yet.
        listener: Open; closed on return.
    """
    async with anyio.create_task_group() as group:
        if sys.platform != "win32":
            await group.start(_watch_signals, server)
        try:
            await server.serve(sockets=[listener])
        finally:
            listener.close()
            group.cancel_scope.cancel()


async def _watch_signals(
    server: Server, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
        task_status.started()
        await _leave_on_each(received, server)


async def _leave_on_each(received: AsyncIterator[signal.Signals], server: Server) -> None:
    async for _ in received:
        server.leave()
