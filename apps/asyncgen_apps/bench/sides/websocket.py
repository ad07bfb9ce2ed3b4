"""Serving side of ``bench websocket``: one engine, read in its process or over WebSockets.

Both ways go through the same engine, loop, threads and cores: they differ in the sockets alone.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import socket
import zlib
from contextlib import AsyncExitStack, suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any

from asyncgen_apps.bench.jobs import Run
from asyncgen_apps.bench.memory import resident_bytes
from asyncgen_apps.bench.sides.llm import LLMSide, all_at_once
from asyncgen_apps.websocket.resumable_requests import Answer

if TYPE_CHECKING:
    from asyncgen_apps.bench.jobs import Job
    from asyncgen_apps.websocket.replay import Piece


QUIET = 3600.0
"""Seconds between heartbeats: longer than any run, because the measuring client answers none."""
LOOK = 0.02
"""Seconds between two looks at the memory."""


class ServerSide(LLMSide):
    """Side with an ``AsyncLLM`` and a server around it."""

    use_uvloop = True

    def __init__(self) -> None:
        """Load nothing yet."""
        super().__init__()
        self._serving = AsyncExitStack()
        self._server: Any = None
        self._put: dict[str, list[tuple[float, str]]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._seen = {"grown": 0, "full": 0.0, "dropped": 0.0}

    async def load(self, folder: str, dtype: str, streams: int) -> None:
        """Open the model.

        Args:
            folder: A checkpoint.
            dtype: Name of the type to compute in.
            streams: Most streams at a time.
        """
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        await self._open(folder, dtype=dtype, device="cpu", max_running=streams)

    async def serve(
        self, send_seconds: float = 20.0, send_buffer: int | None = None
    ) -> dict[str, object]:
        """Start a server, instead of the one that runs.

        Args:
            send_seconds: Longest time in which a client may read nothing.
            send_buffer: Bytes that the kernel buffers for a client; ``None``: its default.

        Returns:
            ``port``; ``bound``, the bytes that the server keeps for each request at most.
        """
        from asyncgen_apps.websocket import StreamSettings, serve_websocket

        await self._serving.aclose()
        sock = socket.create_server(("127.0.0.1", 0), backlog=1024)
        if send_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)  # accepted ones too
        settings = StreamSettings(send_seconds=send_seconds, heartbeat_seconds=QUIET)
        self._server = await self._serving.enter_async_context(
            serve_websocket(self._llm, settings=settings, sock=sock)
        )
        return {"port": self._server.port, "bound": settings.replay_bytes}

    async def run(self, job: Job) -> Run:
        """Answer all prompts at once without a socket, each read in a task."""
        first: list[float] = []
        start = perf_counter()

        async def read(prompt: list[int]) -> None:
            async with self._llm.stream(prompt, **job.options) as stream:
                is_first = True
                async for _ in stream:
                    if is_first:
                        first.append(perf_counter() - start)
                        is_first = False
            if stream.result.usage.completion_tokens != job.new_tokens:
                raise RuntimeError("a stream has another length")

        await all_at_once(read, job.prompts)
        return Run(perf_counter() - start, first)

    async def note(self, on: bool) -> dict[str, object]:
        """Start or stop noting when a stream's text is put to be sent.

        Returns:
            For each request that was noted: a checksum of its text, and for each text the seconds
            of the clock and how many characters there were.
        """
        put, self._put = self._put, {}
        if on:
            Answer.add = _noting(Answer.add, self._put)  # type: ignore[method-assign]
        elif hasattr(Answer.add, "__wrapped__"):
            Answer.add = Answer.add.__wrapped__  # type: ignore[method-assign]
        return {name: _summed(texts) for name, texts in put.items()}

    async def memory(self) -> dict[str, object]:
        """Return the resident ``bytes`` of this process."""
        return {"bytes": resident_bytes()}

    async def watch(self) -> dict[str, object]:
        """Start looking at memory and dropped clients, again and again."""
        gc.collect()
        self._seen = {"grown": 0, "full": 0.0, "dropped": 0.0}
        self._watch = asyncio.create_task(self._look())
        return {}

    async def watched(self) -> dict[str, object]:
        """Stop looking.

        Returns:
            ``grown``: most bytes that the process grew by; ``full`` and ``dropped``: seconds of the
            clock at which a socket was full, and at which a client was dropped; 0 if none.
        """
        assert self._watch is not None
        self._watch.cancel()
        with suppress(asyncio.CancelledError):
            await self._watch
        return dict(self._seen)

    async def _look(self) -> None:
        start = resident_bytes(collect=False) or 0
        counters = self._server.service.counters
        dropped = counters.dropped
        while True:
            self._seen["grown"] = max(
                self._seen["grown"], (resident_bytes(collect=False) or 0) - start
            )
            is_full = any(one.paused for one in self._server._connections.connections)
            if is_full and not self._seen["full"]:
                self._seen["full"] = perf_counter()
            if counters.dropped > dropped and not self._seen["dropped"]:
                self._seen["dropped"] = perf_counter()
            await asyncio.sleep(LOOK)

    async def aclose(self) -> None:
        """Stop serving and release the model."""
        await self._serving.aclose()
        await super().aclose()


def _noting(add: Any, put: dict[str, list[tuple[float, str]]]) -> Any:
    """Wrap the method that takes a stream's text: note the time and the text."""

    def noting(answer: Answer, piece: Piece) -> bool:
        put.setdefault(answer.id, []).append((perf_counter(), piece.text))
        taken: bool = add(answer, piece)
        return taken

    noting.__wrapped__ = add  # type: ignore[attr-defined]
    return noting


def _summed(texts: list[tuple[float, str]]) -> tuple[int, list[tuple[float, int]]]:
    """Return the checksum, and how many characters there were at each time."""
    check = length = 0
    found = []
    for moment, text in texts:
        check = zlib.crc32(text.encode(), check)
        length += len(text)
        found.append((moment, length))
    return check, found
