"""What an ingress says of its replicas: whether there is one, and the figures of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import PlainTextResponse, Response

from asyncgen_apps.metrics import exposition_of

if TYPE_CHECKING:
    from asyncgen_apps.remote import RemoteLLM

READY, FIGURES = "/ready", "/metrics"


class TellReplicas:
    """In front of the application: ``/ready`` is no while no replica is there.

    That is not death: ``/health`` stays well, and requests wait. ``/metrics`` has a sample for each
    replica, under a label of its own, so that whoever adds them up has the sum.
    """

    def __init__(self, app: Any, llm: RemoteLLM, model_name: str, *, open_figures: bool) -> None:
        """Stand in front.

        Args:
            app: The application.
            llm: The engines.
            model_name: Label of the figures.
            open_figures: Whether figures need no key; else the application is asked for them.
        """
        self._app = app
        self._llm = llm
        self._model_name = model_name
        self._open_figures = open_figures

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer, or hand on."""
        path = scope.get("path") if scope["type"] == "http" else None
        if path == READY and not await self._llm.figures():
            response: Response = PlainTextResponse("no engine is there yet\n", 503)
            return await response(scope, receive, send)
        if path == FIGURES and self._open_figures:
            told = exposition_of(await self._llm.figures(), self._model_name)
            response = Response(told, media_type=CONTENT_TYPE_LATEST)
            return await response(scope, receive, send)
        await self._app(scope, receive, send)
