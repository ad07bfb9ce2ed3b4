"""The streams over WebSocket inside of the server: its keys, its limits, its drain.

They hang at ``/v1/stream`` of the application and, where it is wanted, on a port of their own.
Knows how the two are set up alike; the protocol is that of :mod:`asyncgen_apps.websocket`.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from starlette.routing import Route

from asyncgen_apps.openai_http.chat_page import GatedEngine, GatedStream
from asyncgen_apps.openai_http.errors import ApiError
from asyncgen_apps.serving.limits import MOST_BODY
from asyncgen_apps.serving.sockets import room
from asyncgen_apps.websocket import StreamService, StreamSettings
from asyncgen_apps.websocket.asgi import stream_route
from asyncgen_apps.websocket.connection_server import ConnectionServer
from asyncgen_apps.websocket.server import listening

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Coroutine
    from typing import Any, NoReturn, Unpack

    from fastapi import FastAPI
    from starlette.requests import Request

    from asyncgen import Prompt, StreamParams
    from asyncgen_apps.engine import Engine
    from asyncgen_apps.openai_http.concurrency_limit import Gate
    from asyncgen_apps.openai_http.settings import ServerSettings


_PATH = "/v1/stream"


class CountedEngine(GatedEngine):
    """An engine for the streams: they count at the gate, and end by a drain of their own."""

    def stream(self, prompt: Prompt, **params: Unpack[StreamParams]) -> GatedStream:
        """Answer a prompt."""
        return _CountedStream(self._llm.stream(prompt, **params), self._gate, params.get("client"))


class _CountedStream(GatedStream):
    def abort(self, error: ApiError) -> None:
        """Do nothing: the drain of the streams ends them in time and tells their clients."""


def stream_settings(
    settings: ServerSettings, drain_seconds: float, resume_secret: str = ""
) -> StreamSettings:
    """Settings for the streams of a server.

    Args:
        settings: Settings of the server.
        drain_seconds: Longest time for requests after a signal.
        resume_secret: Shared by servers that take each other's streams up; empty: none do.

    Raises:
        ValueError: A key that no client of a stream could send, or a secret that is too short.
    """
    return StreamSettings(
        model_name=settings.model_names[0],
        tokens=settings.api_keys,
        origins=settings.cors_origins,
        allowed_hosts=settings.allowed_hosts,
        trusted_proxies=settings.trusted_proxies,
        allow_priority=settings.allow_priority,
        priority_keys=settings.priority_keys,
        open_metrics=settings.open_metrics,
        max_connections=min(settings.max_requests, settings.max_connections),
        max_message_bytes=settings.max_body_bytes,
        open_seconds=settings.head_seconds,
        drain_seconds=drain_seconds,
        resume_secret=resume_secret,
    )


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams of a server.

    Attributes:
        drain: Lets what runs continue for so many seconds, and then ends it; to be called before
            the application ends.
        sockets: Makes the connections of sockets that an HTTP server of ours hands over.
    """

    drain: Callable[[float], Coroutine[Any, Any, None]]
    sockets: Callable[..., Any]


async def _ask_for_websocket(_: Request) -> NoReturn:
    """Refuse a request at the path of the streams that is no handshake."""
    raise ApiError(426, "a WebSocket is served here: connect with one", code="upgrade_required")


@asynccontextmanager
async def with_streams(
    app: FastAPI,
    llm: Engine,
    gate: Gate,
    settings: StreamSettings,
    listener: socket.socket | None = None,
) -> AsyncIterator[Streams]:
    """Add the streams to an application for as long as the block runs.

    Args:
        app: The application; what is mounted at ``/`` must come later.
        llm: An open engine.
        gate: Counts the streams together with the other requests.
        settings: For the streams.
        listener: A socket for a server of streams alone; its ``GET /`` gives their page.

    Yields:
        The streams. A server that is not ours serves them by a route of the application.
    """
    model = CountedEngine(llm, gate)
    settings = settings.sized(llm, MOST_BODY)
    if listener is not None:  # as many on each port, if so many files may be open
        most = settings.max_connections
        settings = replace(settings, max_connections=max(most, min(2 * most, room(2))))
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(StreamService(model, settings))
        app.router.routes += [stream_route(service, _PATH), Route(_PATH, _ask_for_websocket)]
        app.description += f" Streams over WebSocket, which can be resumed: `{_PATH}`."
        connections = ConnectionServer(service, page=None, paths=(_PATH,))
        if listener is not None:
            host = listener.getsockname()[0]
            await stack.enter_async_context(listening(service, host, sock=listener))
        try:
            yield Streams(service.drain, connections.upgraded)
        finally:
            await connections.close()
