"""The three workers of ``bench stream``: each generates the same tokens from the same prompt.

They run in processes of their own; times are in seconds, from the request to the reader.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from threading import Thread
from time import perf_counter
from typing import Any


class AsyncgenReader:
    """Reads ``AsyncLLM.stream`` with ``async for``, as an application does."""

    def __init__(self) -> None:
        """Nothing is loaded yet."""
        self._stack = AsyncExitStack()
        self._llm: Any = None

    async def load(self, folder: str, dtype: str) -> None:
        """Load the model on the decode thread of the library."""
        from asyncgen import AsyncLLM

        self._llm = await self._stack.enter_async_context(AsyncLLM(folder, dtype=dtype))
        await self._llm.start()

    async def run(self, prompt: list[int], new_tokens: int, **floor: int) -> dict[str, object]:
        """Read one greedy answer to its end."""
        start = perf_counter()
        first, pieces = None, []
        stream = self._llm.stream(prompt, max_new_tokens=new_tokens, do_sample=False, **floor)
        async for piece in stream:
            first = first or perf_counter()
            pieces.append(piece)
        end = perf_counter()
        return _answer(start, first or end, end, "".join(pieces))

    async def aclose(self) -> None:
        """Release the model."""
        await self._stack.aclose()


class AsyncgenLoop:
    """Drains the same steps without any streaming: a manager, asked for the whole answer.

    The thread that loads the model ends, so that the manager's alone has OpenMP threads; what is
    left between the two sides is the streaming layer.
    """

    def __init__(self) -> None:
        """Nothing is loaded yet."""
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

    async def run(self, prompt: list[int], new_tokens: int, **floor: int) -> dict[str, object]:
        """Generate one greedy answer."""
        start = perf_counter()
        name = self._manager.add_request(
            prompt, max_new_tokens=new_tokens, do_sample=False, **floor
        )
        result = self._manager.get_result(name)
        end = perf_counter()
        assert len(result.generated_tokens) == new_tokens
        return _answer(start, end, end, "")

    async def aclose(self) -> None:
        """Release the model."""
        if self._manager is not None:
            self._manager.stop()


class TransformersReader:
    """Reads a ``TextIteratorStreamer`` while ``generate`` runs in a thread, as its users do."""

    def __init__(self) -> None:
        """Nothing is loaded yet."""
        self._model: Any = None
        self._tokenizer: Any = None

    async def load(self, folder: str, dtype: str) -> None:
        """Load model and tokenizer on the main thread."""
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        kind = getattr(torch, dtype)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=kind)
        self._tokenizer = AutoTokenizer.from_pretrained(folder)

    async def run(self, prompt: list[int], new_tokens: int, **floor: int) -> dict[str, object]:
        """Read one greedy answer to its end."""
        import torch
        from transformers import TextIteratorStreamer

        start = perf_counter()
        first, pieces = None, []
        ids = torch.tensor([prompt])
        # The default leaves special tokens in; the other side leaves them out.
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
        for piece in streamer:
            # The streamer hands out empty pieces while it holds text back.
            if piece:
                first = first or perf_counter()
                pieces.append(piece)
        end = perf_counter()
        thread.join()
        return _answer(start, first or end, end, "".join(pieces))

    async def aclose(self) -> None:
        """Nothing to release before the process ends."""


def _answer(start: float, first: float, end: float, text: str) -> dict[str, object]:
    """Describe one run for the report."""
    return {"first": first - start, "total": end - start, "text": text}
