"""Answer plain ``GET`` requests: health, readiness, metrics, the page.

Knows paths and replies as values; not how they are sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST

from asyncgen_apps.metrics import exposition
from asyncgen_apps.serving.origins import PROBES, is_host_of, unknown_host
from asyncgen_apps.websocket.metrics import FiguresCollector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from asyncgen_apps.websocket.service import StreamService


PAGE = Path(__file__).parent / "page.html"
"""A page that chats over the protocol."""

STREAM_PATHS = frozenset({"/", "/v1/stream"})
"""Where WebSockets connect."""

_TEXT = "text/plain; charset=utf-8"
_PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
"""What a page cannot say of itself."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply as a value.

    Attributes:
        status: HTTP status.
        body: The content.
        content_type: Its type.
        headers: Further ones.
    """

    status: int
    body: bytes
    content_type: str = _TEXT
    headers: Mapping[str, str] = field(default_factory=lambda: {"Cache-Control": "no-store"})


class PlainReplies:
    """The replies of one server."""

    def __init__(self, service: StreamService, *, page: Path | None = PAGE) -> None:
        """Set them up.

        Args:
            service: Whose health and figures.
            page: What ``GET /`` gives; ``None`` gives nothing.
        """
        self._service = service
        self._is_open = service.settings.open_metrics or not service.door.needs_token
        self._paths: dict[str, Callable[[], Reply]] = {
            "/": partial(_page, page),
            "/healthz": self._health,
            "/readyz": self._ready,
        }

    def refusal(self, path: str, host: str | None) -> Reply | None:
        """Refuse a request or a handshake to a host that this server is not called.

        Args:
            path: Path of the request, perhaps with a query.
            host: ``Host``.
        """
        names = self._service.settings.allowed_hosts
        if path.partition("?")[0] in PROBES or is_host_of(host, names):
            return None
        return _say(unknown_host(host), 421)

    async def reply(self, path: str, authorization: str | None = None) -> Reply:
        """Answer a ``GET`` that is no WebSocket handshake.

        Args:
            path: Path of the request, perhaps with a query.
            authorization: ``Authorization``.
        """
        path = path.partition("?")[0]
        if path == "/metrics" and not self._is_open:
            if self._service.door.client_of(authorization) is None:
                told = b"no key, or a wrong one: send `Authorization: Bearer <key>`\n"
                return Reply(401, told, headers={"WWW-Authenticate": "Bearer"})
        if path == "/metrics":
            return await self._figures()
        make = self._paths.get(path)
        if make is not None:
            return make()
        if path in STREAM_PATHS:
            return _say("a WebSocket is served here: connect with one", 426)
        return _say("nothing is here", 404)

    def _health(self) -> Reply:
        """Reply whether the engine is alive; if not, only a restart helps."""
        if not self._service.is_healthy:
            return _say("the engine is dead", 503)
        # No failure: it serves all but long texts, and a restart would end what runs.
        return _say("degraded" if self._service.is_degraded else "ok")

    def _ready(self) -> Reply:
        """Reply whether the server takes new clients."""
        if not self._service.is_healthy:
            return _say("the engine is dead", 503)
        return _say("draining", 503) if self._service.is_draining else _say("ok")

    async def _figures(self) -> Reply:
        service = self._service
        own = FiguresCollector(service.figures, service.registry)
        told = await exposition(service.llm, service.settings.model_name, own)
        return Reply(200, told, CONTENT_TYPE_LATEST)


def _page(file: Path | None) -> Reply:
    if file is None or not file.is_file():
        return _say("no page is here; a WebSocket may connect")
    return Reply(200, file.read_bytes(), "text/html; charset=utf-8", _PAGE_HEADERS)


def _say(text: str, status: int = 200) -> Reply:
    return Reply(status, text.encode() + b"\n")
