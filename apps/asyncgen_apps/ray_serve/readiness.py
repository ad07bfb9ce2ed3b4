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
"""How long the board may take to say which replicas there are."""


class TellReadiness:
    """In front of the application: ``/ready`` is no while no replica is there.

    That is not death: ``/health`` stays well, and requests wait.
    """

    def __init__(self, app: Any, llm: RemoteLLM) -> None:
        """Stand in front of an application over some engines."""
        self._app = app
        self._llm = llm

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer, or hand on."""
        if scope["type"] == "http" and scope["path"] == READY and not await self._is_there():
            response = PlainTextResponse("no engine is there yet\n", 503)
            return await response(scope, receive, send)
        await self._app(scope, receive, send)

    async def _is_there(self) -> bool:
        """Tell whether a replica is known; false if the metrics board does not answer."""
        with anyio.move_on_after(ASKING_SECONDS):
            try:
                return bool(await self._llm.figures())
            except AsyncgenError:
                pass
        return False
