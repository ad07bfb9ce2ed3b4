"""The serving end of ``bench websocket``: one engine, read in its own process or over WebSockets.

Both ways go through the same engine, loop, threads and cores, so that what is left of the one in
the other is what the sockets cost. Knows the server; not who reads from it.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import socket
import zlib
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import anyio

from asyncgen_apps.websocket.answers import Answer

if TYPE_CHECKING:
    from asyncgen_apps.websocket.replay import Piece


QUIET = 3600.0
"""Seconds between heartbeats: so many that the measuring client, which answers none, meets none."""
LOOK = 0.02
"""Seconds between two looks at the memory."""
STATM = Path("/proc/self/statm")


class ServerSide:
    """An ``AsyncLLM`` and a server around it."""

    use_uvloop = True

    def __init__(self) -> None:
        """Nothing is loaded yet."""
        self._stack = AsyncExitStack()
        self._serving = AsyncExitStack()
        self._llm: Any = None
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
        from asyncgen import AsyncLLM

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        llm = AsyncLLM(folder, dtype=dtype, device="cpu", max_running=streams)
        self._llm = await self._stack.enter_async_context(llm)

    async def serve(
        self, send_seconds: float = 20.0, send_buffer: int | None = None
    ) -> dict[str, object]:
        """Start a server, instead of the one that runs.

        Args:
            send_seconds: How long a client may read nothing.
            send_buffer: Bytes that the kernel takes for a client; ``None`` leaves it to the kernel.

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

    async def run(self, prompts: list[list[int]], params: dict[str, object]) -> dict[str, object]:
        """Answer all prompts at once without a socket, each read by a task of its own.

        Args:
            prompts: Token ids, one list for each stream.
            params: Of every stream.
        """
        first: list[float] = []
        start = perf_counter()

        async def read(prompt: list[int]) -> None:
            async with self._llm.stream(prompt, **params) as stream:
                is_first = True
                async for _ in stream:
                    if is_first:
                        first.append(perf_counter() - start)
                        is_first = False
            if stream.result.usage.completion_tokens != params["max_new_tokens"]:
                raise RuntimeError("a stream has another length")

        async with anyio.create_task_group() as tasks:
            for prompt in prompts:
                tasks.start_soon(read, prompt)
        return {"total": perf_counter() - start, "first": first}

    async def note(self, on: bool) -> dict[str, object]:
        """Begin or cease to note when a stream's text is put to be sent.

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
        gc.collect()
        return {"bytes": _resident()}

    async def watch(self) -> dict[str, object]:
        """Begin to look at memory and dropped clients, again and again."""
        gc.collect()
        self._seen = {"grown": 0, "full": 0.0, "dropped": 0.0}
        self._watch = asyncio.create_task(self._look())
        return {}

    async def watched(self) -> dict[str, object]:
        """Cease to.

        Returns:
            ``grown``: bytes that the process grew by at most; ``full`` and ``dropped``: seconds of
            the clock at which a socket took no more, and a client was given up; 0 if none.
        """
        assert self._watch is not None
        self._watch.cancel()
        with suppress(asyncio.CancelledError):
            await self._watch
        return dict(self._seen)

    async def _look(self) -> None:
        start = _resident()
        figures = self._server.service.figures
        dropped = figures.dropped
        while True:
            self._seen["grown"] = max(self._seen["grown"], _resident() - start)
            is_full = any(one.paused for one in self._server._server.connections)
            if is_full and not self._seen["full"]:
                self._seen["full"] = perf_counter()
            if figures.dropped > dropped and not self._seen["dropped"]:
                self._seen["dropped"] = perf_counter()
            await asyncio.sleep(LOOK)

    async def aclose(self) -> None:
        """Stop serving and release the model."""
        await self._serving.aclose()
        await self._stack.aclose()


def _noting(add: Any, put: dict[str, list[tuple[float, str]]]) -> Any:
    """Wrap the place where a server puts a stream's text: notes when, and which."""

    def noting(answer: Answer, piece: Piece) -> bool:
        put.setdefault(answer.id, []).append((perf_counter(), piece.text))
        taken: bool = add(answer, piece)
        return taken

    noting.__wrapped__ = add  # type: ignore[attr-defined]
    return noting


def _summed(texts: list[tuple[float, str]]) -> tuple[int, list[tuple[float, int]]]:
    """Checksum, and the characters there were at each time."""
    check = length = 0
    found = []
    for moment, text in texts:
        check = zlib.crc32(text.encode(), check)
        length += len(text)
        found.append((moment, length))
    return check, found


def _resident() -> int:
    """Bytes of this process in memory."""
    return int(STATM.read_text().split()[1]) * resource.getpagesize()
