"""Sides of ``bench strategies``: both call ``generate`` on their main thread."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from asyncgen_apps.bench.jobs import Run
from asyncgen_apps.bench.sides import transformers

if TYPE_CHECKING:
    from asyncgen_apps.bench.cases import Draft
    from asyncgen_apps.bench.jobs import Job


class AsyncgenCaller:
    """Side of our ``model.generate``."""

    def __init__(self) -> None:
        """Load nothing yet."""
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
        self, job: Job, seed: int, draft: Draft | None = None, wants_tokenizer: bool = False
    ) -> Run:
        """Generate after one prompt.

        Args:
            job: The prompt and the arguments of `generate`.
            seed: Seed of the draws.
            draft: The model that drafts.
            wants_tokenizer: True passes the tokenizer.
        """
        import torch

        arguments = dict(job.options)
        if draft is not None:
            arguments["assistant_model"], tokenizer = self._drafts[draft]
            if draft == "foreign":
                arguments["assistant_tokenizer"] = tokenizer
        if wants_tokenizer:
            arguments["tokenizer"] = self._tokenizer
        ids = torch.tensor(job.prompts, dtype=torch.int64, device="cpu")
        torch.manual_seed(seed)
        start = perf_counter()
        found = self._model.generate(ids, attention_mask=torch.ones_like(ids), **arguments)
        total = perf_counter() - start
        return Run(total, token_ids=found[0, ids.shape[1] :].tolist())

    async def aclose(self) -> None:
        """Release nothing: the process ends."""

    def _open(self, folder: str, dtype: str) -> tuple[Any, Any]:
        """Load a model and its tokenizer."""
        from asyncgen import load_model, load_tokenizer

        return load_model(folder, dtype=dtype), load_tokenizer(folder)


class TransformersCaller(AsyncgenCaller):
    """Side of the ``model.generate`` of transformers."""

    def _open(self, folder: str, dtype: str) -> tuple[Any, Any]:
        """Load a model and its tokenizer."""
        return transformers.load(folder, dtype)
