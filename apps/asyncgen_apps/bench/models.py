"""Provide the checkpoint of a benchmark: made on the spot, bundled, or a folder of the user's."""

from __future__ import annotations

import json
import random
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from asyncgen_apps.bench.checkpoints import MADE, SHAPES, write_checkpoint, write_description
from asyncgen_apps.bench.jobs import Job

if TYPE_CHECKING:
    from collections.abc import Iterator


LOUD_LAYERS = 2
"""Layers of the draft model, which are the first layers of the target."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Folder to load, and the facts that a benchmark must know about it.

    Attributes:
        folder: The folder.
        vocab: Number of token ids that a prompt may use.
        has_end: True if generation may end by itself, which a benchmark must forbid.
    """

    folder: Path
    vocab: int
    has_end: bool

    @classmethod
    def at(cls, folder: Path) -> Checkpoint:
        """Read the description of a folder."""
        config = json.loads((folder / "config.json").read_text())
        file = folder / "generation_config.json"
        generation = json.loads(file.read_text()) if file.exists() else {}
        end = generation.get("eos_token_id", config.get("eos_token_id"))
        return cls(folder, config["vocab_size"], end is not None)

    def prompt(self, length: int, seed: int) -> list[int]:
        """Draw a prompt of ``length`` ids; those at the ends of a vocabulary are special tokens."""
        draw = random.Random(seed)
        return [draw.randrange(self.vocab // 4, 3 * self.vocab // 4) for _ in range(length)]

    def prompts(self, count: int, lengths: tuple[int, int], seed: int) -> list[list[int]]:
        """Draw prompts whose lengths lie between the two of ``lengths``, both included."""
        draw = random.Random(seed)
        sizes = [draw.randint(*lengths) for _ in range(count)]
        return [self.prompt(size, draw.randrange(2**32)) for size in sizes]

    def floor(self, new_tokens: int) -> dict[str, int]:
        """Return the parameters that keep a generation from ending early."""
        return {"min_new_tokens": new_tokens} if self.has_end else {}

    def job(self, prompts: list[list[int]], new_tokens: int) -> Job:
        """Ask for greedy answers, each of ``new_tokens``."""
        options = {"max_new_tokens": new_tokens, "do_sample": False, **self.floor(new_tokens)}
        return Job(prompts, options)


@dataclass(frozen=True, slots=True)
class DraftedCheckpoint:
    """Checkpoint with smaller ones that draft for it.

    Attributes:
        target: The checkpoint.
        draft: Folder of its own first layers; ``None`` if there is none.
        foreign: Folder of a small model with another tokenizer; ``None`` if there is none.
    """

    target: Checkpoint
    draft: Path | None = None
    foreign: Path | None = None


@contextmanager
def drafted_checkpoint(shape: str, model: Path | None, dtype: str) -> Iterator[DraftedCheckpoint]:
    """Provide a checkpoint while the block runs, with drafts if it is made on the spot.

    Args:
        shape: A name in ``SHAPES``, made on the spot, or ``demo``; one in ``MADE`` is described
            only, without weights.
        model: A folder, used instead of ``shape``.
        dtype: Type of the weights that are made.
    """
    if model is not None or shape == "demo":
        yield DraftedCheckpoint(Checkpoint.at(model or _demo_folder()))
        return
    whole = SHAPES[shape]
    first = replace(whole, layers=LOUD_LAYERS)
    with tempfile.TemporaryDirectory(prefix="asyncgen-bench-") as name:
        target, draft, foreign = (Path(name) / part for part in ("target", "draft", "foreign"))
        for folder in (target, draft, foreign):
            folder.mkdir()
        write_checkpoint(target, whole, dtype, loud_layers=LOUD_LAYERS)
        write_checkpoint(draft, first, dtype)
        other = replace(first, vocab=max(512, first.vocab // 2))
        write_checkpoint(foreign, other, dtype, seed=1)
        yield DraftedCheckpoint(Checkpoint.at(target), draft, foreign)


@contextmanager
def checkpoint(shape: str, model: Path | None, dtype: str) -> Iterator[Checkpoint]:
    """Provide a checkpoint while the block runs.

    Args:
        shape: A name in ``SHAPES``, made on the spot, or ``demo``; one in ``MADE`` is described
            only, without weights.
        model: A folder, used instead of ``shape``.
        dtype: Type of the weights that are made.
    """
    if model is not None or shape == "demo":
        yield Checkpoint.at(model or _demo_folder())
        return
    with tempfile.TemporaryDirectory(prefix="asyncgen-bench-") as folder:
        if shape in MADE:
            write_description(Path(folder), MADE[shape], dtype)
        else:
            write_checkpoint(Path(folder), SHAPES[shape], dtype)
        yield Checkpoint.at(Path(folder))


def _demo_folder() -> Path:
    """Find the bundled model."""
    import importlib.resources

    return Path(str(importlib.resources.files("asyncgen") / "demo"))
