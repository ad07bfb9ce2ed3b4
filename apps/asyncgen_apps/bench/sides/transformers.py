"""Sides that run transformers: a reader of its streamer, and both of its ways to batch."""

from __future__ import annotations

import inspect
from functools import partial
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any

from asyncgen_apps.bench.jobs import Run
from asyncgen_apps.bench.sides.threads import in_thread

if TYPE_CHECKING:
    from asyncgen_apps.bench.jobs import Job


PAGE_SIZE = 32
NO_END = -1
"""Id that transformers takes for "no end-of-sequence token"."""
PATIENCE = 600.0
"""Seconds without any finished request after which transformers' manager counts as dead."""


def load(folder: str, dtype: str) -> tuple[Any, Any]:
    """Load a model and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    return model, AutoTokenizer.from_pretrained(folder)


def stream(model: Any, tokenizer: Any, job: Job) -> tuple[Any, Thread]:
    """Start ``generate`` for one prompt in a thread; return its streamer, and the thread."""
    import torch
    from transformers import TextIteratorStreamer

    ids = torch.tensor(job.prompts, dtype=torch.int64, device="cpu")
    # The default leaves special tokens in; the other side leaves them out.
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    arguments = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "streamer": streamer,
        **job.options,
    }
    thread = Thread(target=model.generate, kwargs=arguments)
    thread.start()
    return streamer, thread


class TransformersReader:
    """Side that reads a ``TextIteratorStreamer`` while ``generate`` runs in a thread."""

    def __init__(self) -> None:
        """Load nothing yet."""
        self._model: Any = None
        self._tokenizer: Any = None

    async def load(self, folder: str, dtype: str) -> None:
        """Load model and tokenizer on the main thread."""
        self._model, self._tokenizer = load(folder, dtype)

    async def run(self, job: Job) -> Run:
        """Read one greedy answer to its end."""
        start = perf_counter()
        first, pieces = None, []
        streamer, thread = stream(self._model, self._tokenizer, job)
        for piece in streamer:
            # The streamer hands out empty pieces while it holds text back.
            if piece:
                first = first or perf_counter()
                pieces.append(piece)
        end = perf_counter()
        thread.join()
        return Run(end - start, ((first or end) - start,), text="".join(pieces))

    async def aclose(self) -> None:
        """Release nothing: the process ends."""


class TransformersContinuous:
    """Side of transformers' continuous batching, in the configuration that is its fastest here.

    One manager lives as long as the model, so neither the making of its cache nor the start of its
    thread is measured. The model is loaded by a thread that ends: only the manager's own thread
    then has a team of OpenMP threads, which is worth 13 %. Attention kernel (sdpa or eager), page
    size (32 or 256), tokens per batch and page sharing change less than 2 %.
    """

    def __init__(self) -> None:
        """Load nothing yet."""
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
        await in_thread(partial(self._load, folder, dtype, streams * length, device, made))

    def _load(self, folder: str, dtype: str, tokens: int, device: str, made: bool) -> None:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        model = _transformers_model(folder, dtype, device, made)
        if device == "cpu":
            # By default it takes 60 % of the memory, and minutes to fill it with zeros.
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

    async def run(self, job: Job) -> Run:
        """Answer all prompts at once, greedily."""
        found: Run = await in_thread(partial(self._run, job))
        return found

    def _run(self, job: Job) -> Run:
        start = perf_counter()
        self._manager.add_requests(inputs=job.prompts, max_new_tokens=job.new_tokens)
        left = len(job.prompts)
        while left:
            result = self._manager.get_result(timeout=PATIENCE)
            if result is None or not self._manager.is_running():
                raise RuntimeError("transformers' manager has ended")
            if result.error is not None:
                raise RuntimeError(f"transformers' manager: {result.error}")
            if result.is_finished():
                assert len(result.generated_tokens) == job.new_tokens
                left -= 1
        return Run(perf_counter() - start)

    async def aclose(self) -> None:
        """Stop the manager."""
        if self._manager is not None:
            await in_thread(partial(self._manager.stop, block=True, timeout=5))


class TransformersPadded:
    """Side of one ``generate`` over all prompts, padded to the longest."""

    def __init__(self) -> None:
        """Load nothing yet."""
        self._model: Any = None

    async def load(
        self, folder: str, dtype: str, device: str = "cpu", made: bool = False, **sizes: int
    ) -> None:
        """Load the model on the thread that will compute; arguments as of our side."""
        self._model = _transformers_model(folder, dtype, device, made)

    async def run(self, job: Job) -> Run:
        """Answer all prompts in one batch, greedily."""
        import torch

        start = perf_counter()
        longest = max(map(len, job.prompts))
        ids = torch.tensor(
            [[0] * (longest - len(one)) + one for one in job.prompts],
            dtype=torch.int64,
            device="cpu",
        )
        mask = torch.tensor(
            [[0] * (longest - len(one)) + [1] * len(one) for one in job.prompts],
            dtype=torch.int64,
            device="cpu",
        )
        device = self._model.device
        output = self._model.generate(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            pad_token_id=0,
            **job.options,
        ).tolist()
        total = perf_counter() - start
        assert {len(row) for row in output} == {longest + job.new_tokens}
        return Run(total)

    async def aclose(self) -> None:
        """Release nothing: the process ends."""


def _transformers_model(folder: str, dtype: str, device: str, made: bool) -> Any:
    """Load a checkpoint, or draw the weights of one on the device."""
    import torch
    from transformers import AutoModelForCausalLM

    if made:
        from asyncgen_apps.bench.random_models import transformers_model

        return transformers_model(folder, dtype, device)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    return model.to(device).eval()
