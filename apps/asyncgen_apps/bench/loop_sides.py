"""The two workers of ``bench loop``: an application's event loop while a model is at work.

Each phase runs beside a ticker; libraries are imported before the first one. A side says how
it loads, tokenizes, prefills and decodes; the phases themselves are the same for both.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from asyncgen_apps.bench.ticker import ticking

if TYPE_CHECKING:
    from collections.abc import Awaitable


PHASES = ("idle", "load", "tokenize", "prefill", "decode")
IDLE_SECONDS = 2.0
TOKENIZE_TIMES = 5
"""One pass over 200,000 characters takes too few ticks for a tail."""


class Application(ABC):
    """What both sides share: the order of the phases and the ticker beside them."""

    async def phases(
        self,
        folder: str,
        dtype: str,
        text: str,
        long_prompt: list[int],
        prompt: list[int],
        new_tokens: int,
        **floor: int,
    ) -> dict[str, list[float]]:
        """Load, work and unload once.

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
            late["prefill"] = await _beside(self._generate(long_prompt, 1))
            late["decode"] = await _beside(self._generate(prompt, new_tokens, **floor))
        finally:
            await self._unload()
        return late

    async def warm_up(self, folder: str) -> None:
        """Load and use a small model, so that nothing is imported later on."""
        await self._load(folder, "float32")
        await self._generate([300, 301], 2)
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
    async def _generate(self, prompt: list[int], new_tokens: int, **floor: int) -> None:
        """Generate greedily and read the text to its end."""

    @abstractmethod
    async def _unload(self) -> None:
        """Release the model."""


class AsyncgenApplication(Application):
    """An application on ``AsyncLLM``: everything is awaited on the loop."""

    def __init__(self) -> None:
        """Import what will be used, before any clock runs."""
        import torch  # noqa: F401

        from asyncgen import AsyncLLM, load_model, load_tokenizer  # noqa: F401

        self._llm: Any = None

    async def _load(self, folder: str, dtype: str) -> None:
        from asyncgen import AsyncLLM

        self._llm = AsyncLLM(folder, dtype=dtype)
        await self._llm.start()

    async def _tokenize(self, text: str) -> None:
        from asyncgen import ContextLengthError

        # The way of a real prompt that turns out to be too long: tokenized, then refused.
        try:
            await self._llm.generate(text, max_new_tokens=1)
        except ContextLengthError:
            return
        raise AssertionError("the text was meant to exceed the context")

    async def _generate(self, prompt: list[int], new_tokens: int, **floor: int) -> None:
        options = {"max_new_tokens": new_tokens, "do_sample": False, **floor}
        async for _ in self._llm.stream(prompt, **options):
            pass

    async def _unload(self) -> None:
        llm, self._llm = self._llm, None
        if llm is not None:
            await llm.aclose()


class TransformersApplication(Application):
    """An application that puts transformers into threads, and reads its streamer in another."""

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
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        load = partial(AutoModelForCausalLM.from_pretrained, folder, dtype=getattr(torch, dtype))
        self._model = await anyio.to_thread.run_sync(load)
        self._tokenizer = await anyio.to_thread.run_sync(AutoTokenizer.from_pretrained, folder)

    async def _tokenize(self, text: str) -> None:
        await anyio.to_thread.run_sync(self._tokenizer, text)

    async def _generate(self, prompt: list[int], new_tokens: int, **floor: int) -> None:
        await anyio.to_thread.run_sync(partial(self._read, prompt, new_tokens, **floor))

    def _read(self, prompt: list[int], new_tokens: int, **floor: int) -> None:
        """Generate in a thread and read the streamer in this one."""
        import torch
        from transformers import TextIteratorStreamer

        ids = torch.tensor([prompt])
        streamer = TextIteratorStreamer(self._tokenizer, skip_prompt=True, skip_special_tokens=True)
        arguments = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "max_new_tokens": new_tokens,
            "do_sample": False,
            "streamer": streamer,
            **floor,
        }
        thread = Thread(target=self._model.generate, kwargs=arguments)
        thread.start()
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
