"""The three workers of ``bench concurrency``: each answers the same prompts, all at once.

They run in processes of their own; times are in seconds, from the first request to the last token.
"""

from __future__ import annotations

import inspect
from contextlib import AsyncExitStack
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

if TYPE_CHECKING:
    from collections.abc import Callable


PAGE_SIZE = 32
NO_END = -1
"""What transformers takes for "no end-of-sequence token"."""
PATIENCE = 600.0
"""Seconds without any finished request after which transformers' manager counts as dead."""


class AsyncgenStreams:
    """Reads one ``AsyncLLM.stream`` per prompt in a task of its own, as a server does."""

    def __init__(self) -> None:
        """Nothing is loaded yet."""
        self._stack = AsyncExitStack()
        self._llm: Any = None
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
            device: Where to compute.
            made: Whether the weights are drawn on the device.
            **options: Of ``AsyncLLM``.
        """
        from asyncgen import AsyncLLM

        await self._stack.aclose()
        if made:
            from asyncgen_apps.bench.random_models import asyncgen_model, asyncgen_tokenizer

            if self._made_of != (folder, dtype, device):
                self._model = await _in_thread(partial(asyncgen_model, folder, dtype, device))
                self._made_of = (folder, dtype, device)
            tokenizer = asyncgen_tokenizer(folder)
            llm = AsyncLLM(self._model, tokenizer=tokenizer, max_running=streams, **options)
        else:
            llm = AsyncLLM(folder, dtype=dtype, device=device, max_running=streams, **options)
        self._llm = await self._stack.enter_async_context(llm)

    async def run(
        self, prompts: list[list[int]], new_tokens: int, **floor: int
    ) -> dict[str, object]:
        """Answer all prompts at once, greedily, and note when each token reached its reader."""
        times: list[list[float]] = [[] for _ in prompts]
        start = perf_counter()

        async def read(index: int) -> None:
            options = {"max_new_tokens": new_tokens, "do_sample": False, **floor}
            async with self._llm.stream(prompts[index], **options) as stream:
                async for event in stream.events():
                    times[index] += [perf_counter()] * len(event.token_ids)

        async with anyio.create_task_group() as tasks:
            for index in range(len(prompts)):
                tasks.start_soon(read, index)
        total = perf_counter() - start
        assert {len(one) for one in times} == {new_tokens}
        gaps = [
            after - before for one in times for before, after in zip(one, one[1:], strict=False)
        ]
        return {"total": total, "first": [one[0] - start for one in times], "gaps": gaps}

    async def limits(self) -> dict[str, float]:
        """Return the bytes of weights that a token needs, and the device's bytes per second."""
        from asyncgen_apps.bench.random_models import bandwidth, bytes_per_token

        return {
            "bytes_per_token": bytes_per_token(self._model),
            "bandwidth": await _in_thread(partial(bandwidth, str(self._model.device))),
        }

    async def aclose(self) -> None:
        """Release the model."""
        await self._stack.aclose()


class TransformersContinuous:
    """The continuous batching of transformers, in the configuration that is its fastest here.

    One manager lives as long as the model, so neither the making of its cache nor the start of its
    thread is measured. The model is loaded by a thread that ends: only the manager's own thread
    then has a team of OpenMP threads, which is worth 13 %. Attention kernel (sdpa or eager), page
    size (32 or 256), tokens per batch and page sharing change less than 2 %.
    """

    def __init__(self) -> None:
        """Nothing is loaded yet."""
        self._manager: Any = None

    async def load(
        self,
        folder: str,
        dtype: str,
        streams: int,
        length: int,
        device: str = "cpu",
        made: bool = False,
    ) -> None:
        """Load the model and start its manager; arguments as of our side."""
        await _in_thread(partial(self._load, folder, dtype, streams * length, device, made))

    def _load(self, folder: str, dtype: str, tokens: int, device: str, made: bool) -> None:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        model = _transformers_model(folder, dtype, device, made)
        if device == "cpu":
            # Left to itself it takes 60 % of the memory, and minutes to fill it with zeros.
            # Half as much again, because it holds a part of the pages back.
            pages = 64 + tokens * 3 // (2 * PAGE_SIZE)
            # Up to transformers 5.17 a page was a block.
            known = inspect.signature(ContinuousBatchingConfig).parameters
            size = {"page_size" if "page_size" in known else "block_size": PAGE_SIZE}
            config = ContinuousBatchingConfig(**size, num_blocks=pages, max_batch_tokens=512)
        else:
            config = ContinuousBatchingConfig()
        self._manager = model.init_continuous_batching(
            generation_config=GenerationConfig(
                do_sample=False, eos_token_id=NO_END, pad_token_id=0, max_new_tokens=64
            ),
            continuous_batching_config=config,
        )
        if device != "cpu":
            self._manager.warmup()
        self._manager.start()

    async def run(
        self, prompts: list[list[int]], new_tokens: int, **floor: int
    ) -> dict[str, object]:
        """Answer all prompts at once, greedily."""
        return await _in_thread(partial(self._run, prompts, new_tokens))

    def _run(self, prompts: list[list[int]], new_tokens: int) -> dict[str, object]:
        start = perf_counter()
        self._manager.add_requests(inputs=prompts, max_new_tokens=new_tokens)
        left = len(prompts)
        while left:
            result = self._manager.get_result(timeout=PATIENCE)
            if result is None or not self._manager.is_running():
                raise RuntimeError("transformers' manager has ended")
            if result.error is not None:
                raise RuntimeError(f"transformers' manager: {result.error}")
            if result.is_finished():
                assert len(result.generated_tokens) == new_tokens
                left -= 1
        return {"total": perf_counter() - start}

    async def aclose(self) -> None:
        """Stop the manager."""
        if self._manager is not None:
            await _in_thread(partial(self._manager.stop, block=True, timeout=5))


class TransformersPadded:
    """One ``generate`` over all prompts, padded to the longest: batching without a scheduler."""

    def __init__(self) -> None:
        """Nothing is loaded yet."""
        self._model: Any = None

    async def load(
        self,
        folder: str,
        dtype: str,
        streams: int,
        length: int,
        device: str = "cpu",
        made: bool = False,
    ) -> None:
        """Load the model on the thread that will compute; arguments as of our side."""
        self._model = _transformers_model(folder, dtype, device, made)

    async def run(
        self, prompts: list[list[int]], new_tokens: int, **floor: int
    ) -> dict[str, object]:
        """Answer all prompts in one batch, greedily."""
        import torch

        start = perf_counter()
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(one)) + one for one in prompts])
        mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
        device = self._model.device
        output = self._model.generate(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
            **floor,
        ).tolist()
        total = perf_counter() - start
        assert {len(row) for row in output} == {longest + new_tokens}
        return {"total": total}

    async def aclose(self) -> None:
        """Nothing to release before the process ends."""


def _transformers_model(folder: str, dtype: str, device: str, made: bool) -> Any:
    """Load a checkpoint, or draw the weights of one on the device."""
    import torch
    from transformers import AutoModelForCausalLM

    if made:
        from asyncgen_apps.bench.random_models import transformers_model

        return transformers_model(folder, dtype, device)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    return model.to(device).eval()


async def _in_thread(work: Callable[[], Any]) -> Any:
    """Run ``work`` in a new thread, which ends with it."""
    from threading import Thread

    box: list[Any] = []

    def call() -> None:
        try:
            box.append((work(), None))
        except BaseException as error:
            box.append((None, error))

    thread = Thread(target=call)
    thread.start()
    # The waiting thread computes nothing, so it has no team of OpenMP threads.
    await anyio.to_thread.run_sync(thread.join)
    value, error = box[0]
    if error is not None:
        raise error
    return value
