"""The two workers of ``bench strategies``: both call ``generate`` on their main thread.

They run in processes of their own; times are in seconds, of the whole call.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncgen_apps.bench.cases import Draft


class _Caller:
    """What both sides do alike: the same names, imported from another library."""

    def __init__(self) -> None:
        """Nothing is loaded yet."""
        self._model: Any = None
        self._tokenizer: Any = None
        self._drafts: dict[str, tuple[Any, Any]] = {}

    async def load(
        self, folder: str, dtype: str, draft: str | None = None, foreign: str | None = None
    ) -> None:
        """Load the model, and those that draft for it.

        Args:
            folder: The checkpoint.
            dtype: Type of all weights.
            draft: Folder of the draft with the same tokenizer.
            foreign: Folder of the draft with another one.
        """
        self._model, self._tokenizer = self._open(folder, dtype)
        given = {"draft": draft, "foreign": foreign}
        self._drafts = {
            name: self._open(path, dtype) for name, path in given.items() if path is not None
        }

    async def run(
        self,
        prompt: list[int],
        seed: int,
        arguments: dict[str, Any],
        draft: Draft | None = None,
        wants_tokenizer: bool = False,
    ) -> dict[str, object]:
        """Generate after one prompt.

        Args:
            prompt: Token ids.
            seed: Of the draws.
            arguments: Of `generate`.
            draft: The model that drafts.
            wants_tokenizer: Pass the tokenizer.
        """
        import torch

        if draft is not None:
            model, tokenizer = self._drafts[draft]
            arguments = {**arguments, "assistant_model": model}
            if draft == "foreign":
                arguments["assistant_tokenizer"] = tokenizer
        if wants_tokenizer:
            arguments = {**arguments, "tokenizer": self._tokenizer}
        ids = torch.tensor([prompt])
        torch.manual_seed(seed)
        start = perf_counter()
        found = self._model.generate(ids, attention_mask=torch.ones_like(ids), **arguments)
        total = perf_counter() - start
        return {"total": total, "token_ids": found[0, len(prompt) :].tolist()}

    async def aclose(self) -> None:
        """Nothing to release before the process ends."""

    def _open(self, folder: str, dtype: str) -> tuple[Any, Any]:
        raise AssertionError("a side says how it opens a folder")


class AsyncgenCaller(_Caller):
    """Our ``model.generate``."""

    def _open(self, folder: str, dtype: str) -> tuple[Any, Any]:
        from asyncgen import load_model, load_tokenizer

        return load_model(folder, dtype=dtype), load_tokenizer(folder)


class TransformersCaller(_Caller):
    """The ``model.generate`` of transformers."""

    def _open(self, folder: str, dtype: str) -> tuple[Any, Any]:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        kind = getattr(torch, dtype)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=kind)
        return model, AutoTokenizer.from_pretrained(folder)
