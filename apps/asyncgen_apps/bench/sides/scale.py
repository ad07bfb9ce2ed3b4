"""Side of ``bench scale``: many streams on one loop, and the host time that they take.

That is CPU time of the two threads that schedule and stream, without the model's forward passes: it
does not depend on the speed of the model. Preparing a request (tokenizing, checking) happens on
worker threads, once a request, and is not counted.
"""

from __future__ import annotations

import threading
import time
from functools import wraps
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any

import anyio

from asyncgen_apps.bench.memory import resident_bytes
from asyncgen_apps.bench.sides.llm import LLMSide, all_at_once
from asyncgen_apps.bench.ticker import ticking

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen_apps.bench.jobs import Job


FORWARD = ("decode", "decode_packed", "embed", "hidden", "project")
"""Methods of a model's core that an engine calls."""
BLOCKING_SECONDS = 0.02
BLOCKING_TOKENS = 1900
WAITING_TOKENS = 64
WARM_UP_STREAMS = 64


class ForwardMeter:
    """Meter of the CPU time that one thread spends outside of a model's forward passes.

    Attributes:
        delay: Seconds that every pass sleeps in addition, to hold an engine back.
    """

    def __init__(self, core: Any) -> None:
        """Time every method that computes with the model.

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


class ScaleSide(LLMSide):
    """Side that runs an ``AsyncLLM`` with very many streams."""

    def __init__(self) -> None:
        """Load nothing yet."""
        super().__init__()
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
        await self._replace(streams)

    async def run(self, job: Job, ticks: bool) -> dict[str, object]:
        """Answer all prompts at once, greedily.

        Args:
            job: The answers.
            ticks: True measures how late the loop is, False the time of the threads.
        """
        if ticks:
            async with ticking() as lateness:
                lost, total = await self._answer(job)
            return {"total": total, "lost": lost, "lateness": lateness}
        loop, (decode, forward) = thread_time(), self._meter.read()
        lost, total = await self._answer(job)
        after, now = self._meter.read(), thread_time()
        return {
            "total": total,
            "lost": lost,
            "loop": now - loop,
            "decode": after[0] - decode,
            "outside": total - (after[1] - forward),
        }

    async def waiting(self, prompts: list[list[int]], has_end: bool) -> dict[str, float | None]:
        """Return the bytes of a stream that waits for its turn, its reader included.

        One stream runs, slowly; all others wait behind it.

        Args:
            prompts: One for each waiting stream.
            has_end: True if the model may end an answer by itself.
        """
        await self._replace(1)
        context = self._llm.config.max_position_embeddings or BLOCKING_TOKENS
        blocking = min(BLOCKING_TOKENS, context - len(prompts[0]))
        floor = {"min_new_tokens": blocking} if has_end else {}
        long = {"max_new_tokens": blocking, "do_sample": False, **floor}
        short = {"max_new_tokens": WAITING_TOKENS, "do_sample": False}
        self._meter.delay = BLOCKING_SECONDS
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read, prompts[0], long)
                await self._until_waiting(0)
                # The first ones start threads and allocate memory that the others then use.
                first = min(WARM_UP_STREAMS, len(prompts) // 2)
                for prompt in prompts[:first]:
                    tasks.start_soon(self._read, prompt, short)
                await self._until_waiting(first)
                before = resident_bytes()
                for prompt in prompts[first:]:
                    tasks.start_soon(self._read, prompt, short)
                await self._until_waiting(len(prompts))
                after = resident_bytes()
                tasks.cancel_scope.cancel()
        finally:
            self._meter.delay = 0.0
        if before is None or after is None:
            return {"bytes": None}
        # The process may release other memory meanwhile.
        return {"bytes": max(0.0, (after - before) / (len(prompts) - first))}

    async def _replace(self, streams: int) -> None:
        """Open an engine in the place of the one before, and use it once."""
        await self._open(self._model, tokenizer=self._tokenizer, max_running=streams)
        await self._llm.generate([1, 2, 3], max_new_tokens=2, do_sample=False)

    async def _answer(self, job: Job) -> tuple[int, float]:
        """Read all answers; return how many were not complete, and the seconds it took."""
        lengths: list[int] = []

        async def read(prompt: list[int]) -> None:
            lengths.append(await self._read(prompt, job.options))

        start = perf_counter()
        await all_at_once(read, job.prompts)
        return len(job.prompts) - lengths.count(job.new_tokens), perf_counter() - start

    async def _until_waiting(self, count: int) -> None:
        """Wait until ``count`` requests wait while one runs."""
        while True:
            shot = await self._llm.measure()
            if shot.requests_waiting == count and shot.requests_running == 1:
                return
            await anyio.sleep(0.01)
