"""Sides of ``bench loop``: an application's event loop while a model is at work.

Each phase runs beside a ticker; libraries are imported before the first one. A side defines how it
loads, tokenizes and generates; the phases are the same for both.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from asyncgen_apps.bench.jobs import Job
from asyncgen_apps.bench.sides import transformers
from asyncgen_apps.bench.sides.llm import LLMSide
from asyncgen_apps.bench.ticker import ticking

if TYPE_CHECKING:
    from collections.abc import Awaitable


PHASES = ("idle", "load", "tokenize", "prefill", "decode")
IDLE_SECONDS = 2.0
TOKENIZE_TIMES = 5
"""One pass over 200,000 characters takes too few ticks for a tail."""


class Application(ABC):
    """Base of both sides: the order of the phases, and the ticker beside them."""

    async def phases(
        self, job: Job, folder: str, dtype: str, text: str, long_prompt: list[int]
    ) -> dict[str, list[float]]:
        """Load, work and unload once.

        Args:
            job: The answer of the decoding phase.
            folder: A checkpoint.
            dtype: Name of the type to compute in.
            text: The text to tokenize.
            long_prompt: Token ids of the prefill phase.

        Returns:
            For each phase the lateness of every tick, in seconds.
        """
        gc.collect()
        late = {"idle": await _beside(anyio.sleep(IDLE_SECONDS))}
        late["load"] = await _beside(self._load(folder, dtype))
        try:
            late["tokenize"] = [
                tick for _ in range(TOKENIZE_TIMES) for tick in await _beside(self._tokenize(text))
            ]
            late["prefill"] = await _beside(self._generate(_job(long_prompt, 1)))
            late["decode"] = await _beside(self._generate(job))
        finally:
            await self._unload()
        return late

    async def warm_up(self, folder: str) -> None:
        """Load and use a small model, so that nothing is imported later on."""
        await self._load(folder, "float32")
        await self._generate(_job([300, 301], 2))
        await self._unload()

    async def aclose(self) -> None:
        """Release a model that a failed run left behind."""
        await self._unload()

    @abstractmethod
    async def _load(self, folder: str, dtype: str) -> None:
        """Load model and tokenizer."""

    @abstractmethod
    async def _tokenize(self, text: str) -> None:
        """Tokenize a long text."""

    @abstractmethod
    async def _generate(self, job: Job) -> None:
        """Generate greedily and read the text to its end."""

    @abstractmethod
    async def _unload(self) -> None:
        """Release the model."""


class AsyncgenApplication(Application, LLMSide):
    """Application on ``AsyncLLM``: everything is awaited on the loop."""

    def __init__(self) -> None:
        """Import what will be used, before any clock runs."""
        import torch  # noqa: F401

        from asyncgen import AsyncLLM, load_model, load_tokenizer  # noqa: F401

        LLMSide.__init__(self)

    async def _load(self, folder: str, dtype: str) -> None:
        await self._open(folder, dtype=dtype)

    async def _tokenize(self, text: str) -> None:
        from asyncgen import ContextLengthError

        # The way of a real prompt that turns out to be too long: tokenized, then refused.
        try:
            await self._llm.generate(text, max_new_tokens=1)
        except ContextLengthError:
            return
        raise AssertionError("the text was meant to exceed the context")

    async def _generate(self, job: Job) -> None:
        async for _ in self._llm.stream(job.prompts[0], **job.options):
            pass

    async def _unload(self) -> None:
        await LLMSide.aclose(self)


class TransformersApplication(Application):
    """Application that puts transformers into threads, and reads its streamer in another."""

    def __init__(self) -> None:
        """Import what will be used, before any clock runs."""
        import torch  # noqa: F401
        from transformers import (  # noqa: F401
            AutoModelForCausalLM,
            AutoTokenizer,
            LlamaForCausalLM,
            PreTrainedTokenizerFast,
            TextIteratorStreamer,
        )

        self._model: Any = None
        self._tokenizer: Any = None

    async def _load(self, folder: str, dtype: str) -> None:
        load = partial(transformers.load, folder, dtype)
        self._model, self._tokenizer = await anyio.to_thread.run_sync(load)

    async def _tokenize(self, text: str) -> None:
        await anyio.to_thread.run_sync(self._tokenizer, text)

    async def _generate(self, job: Job) -> None:
        await anyio.to_thread.run_sync(self._read, job)

    def _read(self, job: Job) -> None:
        """Generate in a thread and read the streamer in this one."""
        streamer, thread = transformers.stream(self._model, self._tokenizer, job)
        for _ in streamer:
            pass
        thread.join()

    async def _unload(self) -> None:
        self._model = self._tokenizer = None


async def _beside(work: Awaitable[None]) -> list[float]:
    """Await ``work`` with a ticker running; return the lateness of its ticks."""
    async with ticking() as lateness:
        await work
    return lateness


def _job(prompt: list[int], new_tokens: int) -> Job:
    """Ask for one greedy answer."""
    return Job([prompt], {"max_new_tokens": new_tokens, "do_sample": False})
