"""Answer ``/ready`` of an ingress: 503 while no replica is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from asyncgen_apps.remote import RemoteLLM

from asyncgen import AsyncgenError

READY = "/ready"

ASKING_SECONDS = 2.0
"""Longest wait for the metrics board."""


class ReadinessMiddleware:
    """Middleware that answers ``/ready`` with 503 while no replica is known.

    ``/health`` stays 200, because requests can wait for a replica.
    """

    def __init__(self, app: Any, llm: RemoteLLM) -> None:
        """Wrap an application.

        Args:
            app: The application.
            llm: Engines of the application.
        """
        self._app = app
        self._llm = llm

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer ``/ready``, or call the application."""
        if scope["type"] == "http" and scope["path"] == READY and not await self._has_replica():
            response = PlainTextResponse("no engine is there yet\n", 503)
            return await response(scope, receive, send)
        await self._app(scope, receive, send)

    async def _has_replica(self) -> bool:
        """Tell whether a replica is known; false if the metrics board does not answer."""
        with anyio.move_on_after(ASKING_SECONDS):
            try:
                return bool(await self._llm.metrics_by_engine())
            except AsyncgenError:
                pass
        return False
