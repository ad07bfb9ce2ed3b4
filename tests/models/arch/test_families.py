"""Every family computes what the reference computes: in rows, in padded batches, among others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.models.arch.registry import FAMILIES as DECLARED
from tests.doubles.tokenizers import save_tokenizer
from tests.models.arch.families import FAMILIES, VARIANTS, make

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")

LENGTH = 24
ROWS = [[5, 17, 3, 44, 9, 21, 80], [7, 8], [11, 64, 2, 90, 33, 12, 6, 28, 71, 15, 50]]


def compare(family: str, folder: Path, **overrides: Any) -> None:
    """Compare logits, ids of a left-padded batch, and ids from the shared batch."""
    theirs = make(family, folder, **overrides)
    ours = asyncgen.load_model(folder, dtype="float32")
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 96, (2, 20), generator=generator)
    with torch.no_grad():
        expected = theirs(ids).logits
    torch.testing.assert_close(ours(ids).logits, expected, atol=1e-4, rtol=1e-4)

    widest = max(map(len, ROWS))
    padded = torch.tensor([[0] * (widest - len(row)) + row for row in ROWS])
    mask = torch.tensor([[0] * (widest - len(row)) + [1] * len(row) for row in ROWS])
    options = {"max_new_tokens": LENGTH, "do_sample": False, "eos_token_id": None}
    answers = []
    for row in ROWS:  # its own padded batches are not always those of single rows
        alone = theirs.generate(torch.tensor([row]), pad_token_id=0, **options)
        answers.append(alone[0, len(row) :].tolist())
    together = ours.generate(padded, attention_mask=mask, pad_token_id=0, **options)
    assert together[:, widest:].tolist() == answers

    tokenizer = asyncgen.load_tokenizer(save_tokenizer(folder, "byte_level"))

    async def shared() -> list[list[int]]:
        async with asyncgen.AsyncLLM(ours, tokenizer=tokenizer, page_size=7) as llm:
            calls = [llm.generate(row, max_new_tokens=LENGTH, do_sample=False) for row in ROWS]
            return [list(answer.token_ids) for answer in await asyncio.gather(*calls)]

    assert asyncio.run(shared()) == answers


def test_every_family_is_in_the_table() -> None:
    assert {*FAMILIES} == {*DECLARED} - {"t5"}  # which has tests of its own


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_equals_the_reference(family: str, tmp_path: Path) -> None:
    compare(family, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("family", "overrides"),
    [(family, each) for family, several in VARIANTS.items() for each in several],
)
def test_its_switches_do_too(family: str, overrides: dict[str, Any], tmp_path: Path) -> None:
    compare(family, tmp_path, **overrides)
