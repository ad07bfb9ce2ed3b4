"""What an ingress says of its replicas: whether there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from asyncgen_apps.remote import RemoteLLM

READY = "/ready"


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
        if scope["type"] == "http" and scope["path"] == READY and not await self._llm.figures():
            response = PlainTextResponse("no engine is there yet\n", 503)
            return await response(scope, receive, send)
        await self._app(scope, receive, send)
