"""Run this library as an application does: one stream for each request, read to its end."""

from __future__ import annotations

import asyncio
import os
from importlib.metadata import version
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Unpack

    from asyncgen_apps.bench.peers.programs.protocol import Task


class Streams:
    """Program that reads a stream in a task for each request; a token counts when it was read."""

    def __init__(self) -> None:
        """Load nothing yet."""
        self._runner = asyncio.Runner()
        self._llm: Any = None

    def load(self, **task: Unpack[Task]) -> dict[str, str]:
        """Open the model with the library's defaults, but for its sizes and packing."""
        from asyncgen import AsyncLLM, cpu_kernels

        make: Any = AsyncLLM  # it checks the format itself
        self._llm = make(
            task["folder"],
            dtype=task["dtype"],
            quantize=task.get("weights"),
            device="cpu",
            num_threads=task["threads"],
            max_running=task["streams"],
            kv_cache_memory=task["cache_bytes"],
            progress=False,
        )
        self._runner.run(self._llm.start())
        return {"version": version("asyncgen"), "kernels": str(cpu_kernels())}

    def run(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        """Answer all requests, each from its arrival on."""
        return self._runner.run(self._run(requests))

    async def _run(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        times: list[list[float]] = [[] for _ in requests]
        tokens: list[list[int]] = [[] for _ in requests]
        start = perf_counter()

        async def read(index: int) -> None:
            request = requests[index]
            await asyncio.sleep(request["arrival"])
            options = {"max_new_tokens": request["new_tokens"], "do_sample": False}
            async with self._llm.stream(request["prompt"], **options) as stream:
                async for event in stream.events():
                    times[index] += [perf_counter() - start] * len(event.token_ids)
                    tokens[index] += event.token_ids

        async with asyncio.TaskGroup() as tasks:
            for index in range(len(requests)):
                tasks.create_task(read(index))
        return {"times": times, "tokens": tokens}


class TorchKernels(Streams):
    """The same program with torch's kernels, as on a machine without a compiler."""

    def __init__(self) -> None:
        """Choose torch's kernels, before the library is imported."""
        os.environ["ASYNCGEN_KERNELS"] = "torch"
        super().__init__()
