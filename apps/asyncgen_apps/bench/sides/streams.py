"""Side that reads many streams of one ``AsyncLLM`` at once."""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from asyncgen_apps.bench.figures import gaps
from asyncgen_apps.bench.jobs import Run
from asyncgen_apps.bench.sides.llm import LLMSide, all_at_once
from asyncgen_apps.bench.sides.threads import in_thread

if TYPE_CHECKING:
    from asyncgen_apps.bench.jobs import Job


class AsyncgenStreams(LLMSide):
    """Side that reads one ``AsyncLLM.stream`` per prompt in a task, as a server does."""

    def __init__(self) -> None:
        """Load nothing yet."""
        super().__init__()
        self._model: Any = None
        self._made_of: tuple[str, ...] = ()

    async def load(
        self,
        folder: str,
        dtype: str,
        streams: int,
        length: int,
        device: str = "cpu",
        made: bool = False,
        **options: Any,
    ) -> None:
        """Open the model; again, to open it with other options.

        Args:
            folder: A checkpoint, or with ``made`` only the description of one.
            dtype: Name of the type to compute in.
            streams: Most streams at a time.
            length: Most tokens of a stream, prompt included.
            device: Device to compute on.
            made: True draws the weights on the device.
            **options: Options of ``AsyncLLM``.
        """
        if not made:
            await self._open(folder, dtype=dtype, device=device, max_running=streams, **options)
            return
        from asyncgen import load_tokenizer
        from asyncgen_apps.bench.random_models import asyncgen_model

        await self.aclose()
        if self._made_of != (folder, dtype, device):
            self._model = await in_thread(partial(asyncgen_model, folder, dtype, device))
            self._made_of = (folder, dtype, device)
        tokenizer = load_tokenizer(folder)
        await self._open(self._model, tokenizer=tokenizer, max_running=streams, **options)

    async def run(self, job: Job) -> Run:
        """Answer all prompts at once, greedily, and note when each token reached its reader."""
        times: list[list[float]] = [[] for _ in job.prompts]
        start = perf_counter()

        async def read(index: int) -> None:
            async with self._llm.stream(job.prompts[index], **job.options) as stream:
                async for event in stream.events():
                    times[index] += [perf_counter()] * len(event.token_ids)

        await all_at_once(read, range(len(times)))
        total = perf_counter() - start
        assert {len(one) for one in times} == {job.new_tokens}
        return Run(total, [one[0] - start for one in times], gaps(times))

    async def limits(self) -> dict[str, float]:
        """Return the bytes of weights that a token needs, and the device's bytes per second."""
        from asyncgen_apps.bench.random_models import bandwidth, bytes_per_token

        return {
            "bytes_per_token": bytes_per_token(self._model),
            "bandwidth": await in_thread(partial(bandwidth, str(self._model.device))),
        }
