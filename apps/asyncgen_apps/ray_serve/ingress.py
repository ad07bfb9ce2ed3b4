"""Run the servers of this library in a Ray Serve ingress, over replicas in other processes."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

from asyncgen_apps.metrics import exposition_of
from asyncgen_apps.openai_http import ServerSettings, create_app
from asyncgen_apps.openai_http.websocket_streams import stream_settings, with_streams
from asyncgen_apps.ray_serve.calls import RayCalls
from asyncgen_apps.ray_serve.readiness import ReadinessMiddleware
from asyncgen_apps.remote import RemoteLLM
from asyncgen_apps.serving.origins import hosts_for

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

    from asyncgen_apps.ray_serve.settings import RaySettings

_log = logging.getLogger(__name__)


class Ingress:
    """Keeps the application open while Serve runs this replica of the ingress."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, settings: RaySettings, replicas: DeploymentHandle, board: DeploymentHandle
    ) -> None:
        """Wait for the first replica, and open the application.

        Args:
            settings: Settings of the application.
            replicas: Handle of the engines.
            board: Handle of their metrics board.
        """
        self._settings = settings
        self._calls = RayCalls(replicas, board)
        self._facts = await replicas.facts.remote()
        self._app: Any = None
        self._is_open, self._is_over = asyncio.Event(), asyncio.Event()
        # The task that opens the application must also close it.
        self._owner = asyncio.create_task(self._keep_open())
        opening = asyncio.create_task(self._is_open.wait())
        await asyncio.wait((self._owner, opening), return_when=asyncio.FIRST_COMPLETED)
        opening.cancel()
        if self._owner.done():
            await self._owner

    async def _keep_open(self) -> None:
        settings = self._settings
        server = ServerSettings(
            model_names=tuple(settings.model_names) or (settings.model,),
            api_keys=tuple(settings.api_keys),
            allowed_hosts=hosts_for(
                "127.0.0.1",
                settings.allowed_hosts,
                is_guarded=bool(settings.api_keys) and not settings.with_chat,
            ),
            with_chat=settings.with_chat,
        )
        async with AsyncExitStack() as stack:
            llm = await stack.enter_async_context(RemoteLLM(self._calls, self._facts))

            async def read_metrics() -> bytes:
                return exposition_of(await llm.metrics_by_engine(), server.model_names[0])

            app = create_app(llm, server, figures=read_metrics)
            gate = app.state.gate
            streams = stream_settings(server, settings.drain_seconds, settings.resume_secret)
            await stack.enter_async_context(with_streams(app, llm, gate, streams))
            if settings.with_chat:
                from asyncgen_apps.openai_http.chat_mount import mount_chat

                app = mount_chat(app, llm, gate, name=server.model_names[0])
            self._app = ReadinessMiddleware(app, llm)
            self._is_open.set()
            await self._is_over.wait()

    def __serve_build_asgi_app__(self) -> Any:
        """Return the application; Serve calls this."""
        return self._app

    async def __del__(self) -> None:
        """Close the application; Serve calls this when the ingress stops."""
        self._is_over.set()
        with suppress(asyncio.CancelledError):
            await self._owner
