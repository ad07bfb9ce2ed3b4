"""Base of the sides that read streams of one ``AsyncLLM``, and the readers of a single stream."""

from __future__ import annotations

from contextlib import AsyncExitStack
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any

import anyio

from asyncgen_apps.bench.jobs import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from asyncgen_apps.bench.jobs import Job


class LLMSide:
    """Side with one ``AsyncLLM``."""

    def __init__(self) -> None:
        """Load nothing yet."""
        self._stack = AsyncExitStack()
        self._llm: Any = None

    async def aclose(self) -> None:
        """Release the model."""
        await self._stack.aclose()

    async def _open(self, source: Any, **options: Any) -> None:
        """Open an ``AsyncLLM``, in the place of the one before."""
        from asyncgen import AsyncLLM

        await self.aclose()
        self._llm = await self._stack.enter_async_context(AsyncLLM(source, **options))

    async def _read(self, prompt: list[int], options: dict[str, Any]) -> int:
        """Read one answer as text; return the number of its tokens."""
        async with self._llm.stream(prompt, **options) as stream:
            async for _ in stream:
                pass
        return len(stream.result.token_ids)


async def all_at_once(
    read: Callable[[Any], Coroutine[Any, Any, None]], items: Iterable[Any]
) -> None:
    """Call ``read`` for all items at once, each in a task."""
    async with anyio.create_task_group() as tasks:
        for item in items:
            tasks.start_soon(read, item)


class AsyncgenReader(LLMSide):
    """Side that reads ``AsyncLLM.stream`` with ``async for``, as an application does."""

    async def load(self, folder: str, dtype: str) -> None:
        """Load the model on the decode thread of the library."""
        await self._open(folder, dtype=dtype)

    async def run(self, job: Job) -> Run:
        """Read one greedy answer to its end."""
        start = perf_counter()
        first, pieces = None, []
        async for piece in self._llm.stream(job.prompts[0], **job.options):
            first = first or perf_counter()
            pieces.append(piece)
        end = perf_counter()
        return Run(end - start, ((first or end) - start,), text="".join(pieces))


class AsyncgenLoop:
    """Side that asks a manager for the whole answer: the same steps without streaming.

    The thread that loads the model ends, so that the manager's alone has OpenMP threads; the
    difference to the reader is the streaming layer.
    """

    def __init__(self) -> None:
        """Load nothing yet."""
        self._manager: Any = None

    async def load(self, folder: str, dtype: str) -> None:
        """Load the model and start the manager."""
        loading = Thread(target=self._load, args=(folder, dtype))
        loading.start()
        loading.join()

    def _load(self, folder: str, dtype: str) -> None:
        from asyncgen import load_model

        self._manager = load_model(folder, dtype=dtype).init_continuous_batching()
        self._manager.start()

    async def run(self, job: Job) -> Run:
        """Generate one greedy answer."""
        start = perf_counter()
        name = self._manager.add_request(job.prompts[0], **job.options)
        result = self._manager.get_result(name)
        total = perf_counter() - start
        assert len(result.generated_tokens) == job.new_tokens
        return Run(total, (total,))

    async def aclose(self) -> None:
        """Release the model."""
        if self._manager is not None:
            self._manager.stop()
