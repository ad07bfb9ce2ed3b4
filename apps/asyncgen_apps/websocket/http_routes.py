"""Answer plain ``GET`` requests: health, readiness, metrics, the page. Knows values; no socket."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST

from asyncgen_apps.metrics import exposition
from asyncgen_apps.serving.origins import PROBES, is_host_of, unknown_host
from asyncgen_apps.websocket.chat_page import PAGE, joined
from asyncgen_apps.websocket.metrics import CountersCollector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from asyncgen_apps.websocket.service import StreamService


STREAM_PATHS = frozenset({"/", "/v1/stream"})
"""Paths at which WebSockets connect."""

_TEXT = "text/plain; charset=utf-8"
_PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
"""Headers for which HTML has no element."""


@dataclass(frozen=True, slots=True)
class HttpReply:
    """Reply to a request.

    Attributes:
        status: HTTP status.
        body: Content.
        content_type: Media type of the content.
        headers: Further headers.
    """

    status: int
    body: bytes
    content_type: str = _TEXT
    headers: Mapping[str, str] = field(default_factory=lambda: {"Cache-Control": "no-store"})


class HttpRoutes:
    """Routes of one server."""

    def __init__(self, service: StreamService, *, page: Path | None = PAGE) -> None:
        """Map paths to replies.

        Args:
            service: Service whose health and metrics are asked for.
            page: File for ``GET /``, or a folder of sources to join; ``None`` for no page.
        """
        self._service = service
        self._is_open = service.settings.open_metrics or not service.authenticator.needs_token
        self._paths: dict[str, Callable[[], HttpReply]] = {
            "/": partial(_page, page),
            "/healthz": self._health,
            "/readyz": self._ready,
        }

    def refusal(self, path: str, host: str | None) -> HttpReply | None:
        """Refuse a request or a handshake whose host is not a name of this server.

        Args:
            path: Path of the request, perhaps with a query.
            host: Header ``Host``.
        """
        names = self._service.settings.allowed_hosts
        if path.partition("?")[0] in PROBES or is_host_of(host, names):
            return None
        return text_reply(unknown_host(host), 421)

    async def reply(self, path: str, authorization: str | None = None) -> HttpReply:
        """Answer a ``GET`` that is no WebSocket handshake.

        Args:
            path: Path of the request, perhaps with a query.
            authorization: Header ``Authorization``.
        """
        path = path.partition("?")[0]
        if path == "/metrics" and not self._is_open:
            if self._service.authenticator.client_of(authorization) is None:
                text = b"no key, or a wrong one: send `Authorization: Bearer <key>`\n"
                return HttpReply(401, text, headers={"WWW-Authenticate": "Bearer"})
        if path == "/metrics":
            return await self._metrics()
        make = self._paths.get(path)
        if make is not None:
            return make()
        if path in STREAM_PATHS:
            return text_reply("a WebSocket is served here: connect with one", 426)
        return text_reply("nothing is here", 404)

    def _health(self) -> HttpReply:
        """Answer 200 while the engine is alive, else 503: only a restart helps then."""
        if not self._service.llm.is_healthy:
            return text_reply("the engine is dead", 503)
        # Status 200: it serves all but long texts, and a restart would end all streams.
        return text_reply("degraded" if self._service.llm.is_degraded else "ok")

    def _ready(self) -> HttpReply:
        """Answer 200 while the server takes new clients."""
        if not self._service.llm.is_healthy:
            return text_reply("the engine is dead", 503)
        return text_reply("draining", 503) if self._service.is_draining else text_reply("ok")

    async def _metrics(self) -> HttpReply:
        service = self._service
        own = CountersCollector(service.counters, service.registry)
        text = await exposition(service.llm, service.settings.model_name, own)
        return HttpReply(200, text, CONTENT_TYPE_LATEST)


def _page(file: Path | None) -> HttpReply:
    if file is None or not file.exists():
        return text_reply("no page is here; a WebSocket may connect")
    content = joined(file).encode() if file.is_dir() else file.read_bytes()
    return HttpReply(200, content, "text/html; charset=utf-8", _PAGE_HEADERS)


def text_reply(text: str, status: int = 200) -> HttpReply:
    """Return a reply of one line."""
    return HttpReply(status, text.encode() + b"\n")
