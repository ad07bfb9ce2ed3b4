"""The worker of ``bench scale``: many streams on one loop, and what they cost beside the model.

The cost is CPU time of the two threads that schedule and stream, without the model's forward
passes: what a stream costs the host however fast the model is. Preparing a request (tokenizing,
checking) happens on worker threads, once a request, and is not counted.
"""

from __future__ import annotations

import gc
import threading
import time
from functools import wraps
from pathlib import Path
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from asyncgen_apps.bench.ticker import ticking

if TYPE_CHECKING:
    from collections.abc import Callable


FORWARD = ("decode", "decode_packed", "embed", "hidden", "project")
"""What an engine may call of a model's core."""
BLOCKING_SECONDS = 0.02
BLOCKING_TOKENS = 1900
WAITING_TOKENS = 64
WARM_UP_STREAMS = 64
STATM = Path("/proc/self/statm")


class ForwardMeter:
    """Measures the CPU time that one thread spends outside of a model's forward passes.

    Attributes:
        delay: Seconds that every pass sleeps in addition, to hold an engine back.
    """

    def __init__(self, core: Any) -> None:
        """Put a stopwatch around every way into the model.

        Args:
            core: The module that computes.
        """
        self.delay = 0.0
        self._inside = False
        self._cpu = 0.0
        self._wall = 0.0
        self._thread: int | None = None
        for name in FORWARD:
            if hasattr(core, name):
                setattr(core, name, self._timed(getattr(core, name)))

    def read(self) -> tuple[float, float]:
        """Return CPU seconds outside and wall seconds inside of the passes, both from the start.

        Raises:
            RuntimeError: The model has not been called yet.
        """
        if self._thread is None:
            raise RuntimeError("the model has not been called in any way that is known here")
        clock = time.pthread_getcpuclockid(self._thread)
        return time.clock_gettime(clock) - self._cpu, self._wall

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def timed(*arguments: Any, **named: Any) -> Any:
            if self._inside:
                return call(*arguments, **named)
            self._inside, self._thread = True, threading.get_ident()
            cpu, wall = thread_time(), perf_counter()
            try:
                if self.delay:
                    time.sleep(self.delay)
                return call(*arguments, **named)
            finally:
                self._cpu += thread_time() - cpu
                self._wall += perf_counter() - wall
                self._inside = False

        return timed


class ScaleSide:
    """Runs an ``AsyncLLM`` with very many streams."""

    def __init__(self) -> None:
        """Nothing is loaded yet."""
        self._llm: Any = None
        self._model: Any = None
        self._tokenizer: Any = None
        self._meter: Any = None

    async def load(self, folder: str, dtype: str, streams: int) -> None:
        """Load the model and open an engine around it.

        Args:
            folder: A checkpoint.
            dtype: Name of the type to compute in.
            streams: Most streams at a time.
        """
        from asyncgen import load_model, load_tokenizer

        self._model = load_model(folder, device="cpu", dtype=dtype, progress=False)
        self._tokenizer = load_tokenizer(folder)
        self._meter = ForwardMeter(self._model.core)
        await self._open(streams)

    async def run(
        self, prompts: list[list[int]], new_tokens: int, ticks: bool, **floor: int
    ) -> dict[str, object]:
        """Answer all prompts at once, greedily.

        Args:
            prompts: One for each stream.
            new_tokens: Tokens of each answer.
            ticks: Whether to measure how late the loop is; without, what the threads cost.
            **floor: What keeps an answer from ending early.
        """
        if ticks:
            async with ticking() as lateness:
                lost, total = await self._answer(prompts, new_tokens, floor)
            return {"total": total, "lost": lost, "lateness": lateness}
        loop, (decode, forward) = thread_time(), self._meter.read()
        lost, total = await self._answer(prompts, new_tokens, floor)
        after, now = self._meter.read(), thread_time()
        return {
            "total": total,
            "lost": lost,
            "loop": now - loop,
            "decode": after[0] - decode,
            "outside": total - (after[1] - forward),
        }

    async def waiting(self, prompts: list[list[int]], has_end: bool) -> dict[str, float | None]:
        """Return the bytes that a stream takes which waits for its turn, its reader included.

        One stream runs, slowly; all others wait behind it.

        Args:
            prompts: One for each waiting stream.
            has_end: Whether the model may end an answer by itself.
        """
        await self._open(1)
        context = self._llm.config.max_position_embeddings or BLOCKING_TOKENS
        blocking = min(BLOCKING_TOKENS, context - len(prompts[0]))
        floor = {"min_new_tokens": blocking} if has_end else {}
        self._meter.delay = BLOCKING_SECONDS
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read, prompts[0], blocking, floor)
                await self._until_waiting(0)
                # The first ones wake threads and make room that the others then use.
                first = min(WARM_UP_STREAMS, len(prompts) // 2)
                for prompt in prompts[:first]:
                    tasks.start_soon(self._read, prompt, WAITING_TOKENS, {})
                await self._until_waiting(first)
                before = _resident()
                for prompt in prompts[first:]:
                    tasks.start_soon(self._read, prompt, WAITING_TOKENS, {})
                await self._until_waiting(len(prompts))
                after = _resident()
                tasks.cancel_scope.cancel()
        finally:
            self._meter.delay = 0.0
        if before is None or after is None:
            return {"bytes": None}
        # A process may give memory back meanwhile, that of others.
        return {"bytes": max(0.0, (after - before) / (len(prompts) - first))}

    async def aclose(self) -> None:
        """Release the model."""
        if self._llm is not None:
            await self._llm.aclose()

    async def _open(self, streams: int) -> None:
        """Replace the engine."""
        from asyncgen import AsyncLLM

        await self.aclose()
        self._llm = AsyncLLM(self._model, tokenizer=self._tokenizer, max_running=streams)
        await self._llm.start()
        await self._llm.generate([1, 2, 3], max_new_tokens=2, do_sample=False)

    async def _answer(
        self, prompts: list[list[int]], new_tokens: int, floor: dict[str, int]
    ) -> tuple[int, float]:
        """Read all answers; return how many were not complete, and the seconds it took."""
        lengths: list[int] = []

        async def read(prompt: list[int]) -> None:
            lengths.append(await self._read(prompt, new_tokens, floor))

        start = perf_counter()
        async with anyio.create_task_group() as tasks:
            for prompt in prompts:
                tasks.start_soon(read, prompt)
        return len(prompts) - lengths.count(new_tokens), perf_counter() - start

    async def _read(self, prompt: list[int], new_tokens: int, floor: dict[str, int]) -> int:
        """Read one answer as text; return the number of its tokens."""
        options = {"max_new_tokens": new_tokens, "do_sample": False, **floor}
        async with self._llm.stream(prompt, **options) as stream:
            async for _ in stream:
                pass
        return len(stream.result.token_ids)

    async def _until_waiting(self, count: int) -> None:
        """Return when so many requests wait while one runs."""
        while True:
            shot = await self._llm.measure()
            if shot.requests_waiting == count and shot.requests_running == 1:
                return
            await anyio.sleep(0.01)


def _resident() -> int | None:
    """Bytes of this process in memory; ``None`` where nobody can tell."""
    gc.collect()
    try:
        pages = int(STATM.read_text().split()[1])
    except OSError:
        return None
    import resource

    return pages * resource.getpagesize()
