"""The bundled model behind a real server, in a thread: clients run on whatever loop they like."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import TYPE_CHECKING, Any, Self

from asyncgen import AsyncLLM
from asyncgen_apps.websocket import StreamSettings, serve_websocket

if TYPE_CHECKING:
    from types import TracebackType

    from asyncgen import Completion
    from asyncgen_apps.websocket import StreamServer


class RealServer:
    """A context manager; several may follow each other.

    Attributes:
        url: Where clients connect to.
        port: The same, for a proxy.
        llm: The engine behind it.
        server: The server itself.
    """

    llm: AsyncLLM
    server: StreamServer

    def __init__(self, settings: StreamSettings | None = None, **options: Any) -> None:
        self._settings = settings or StreamSettings()
        self._options: dict[str, Any] = {"num_threads": 1, **options}
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.url = ""
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive()

    def generate(self, prompt: str, **params: Any) -> Completion:
        """Ask the engine, past the server."""
        question = self.llm.generate(prompt, **params)
        # The caller may run on trio, and its context says so; that would travel along.
        send = asyncio.run_coroutine_threadsafe
        asked = contextvars.Context().run(send, question, self._loop)
        return asked.result(300)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with (
            AsyncLLM("demo", **self._options) as self.llm,
            serve_websocket(self.llm, settings=self._settings) as self.server,
        ):
            self.port = self.server.port
            self.url = self.server.url
            self._ready.set()
            await self._stop.wait()
