"""DoLa where layers keep states: the tokens of its formula over the reference's forward pass."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.errors import InvalidRequestError
from asyncgen.families.arch.registry import FAMILIES
from tests.families.arch.families import make
from tests.families.arch.test_families import ROWS, one_thread, tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

__all__ = ["one_thread", "tokenizer"]

pytest.importorskip("transformers")

ALLOWED = [name for name, family in FAMILIES.items() if family.allows_dola]


@torch.no_grad()
def contrasted(theirs: Any, text: list[int], layers: list[int]) -> Tensor:
    """Scores ``[V]`` of what follows a text, by section 2 of arXiv 2309.03883.

    The reference measures the divergence with the mean as the first argument of both halves.
    """
    out = theirs(torch.tensor([text]), output_hidden_states=True, use_cache=False)
    final = out.logits[0, -1].log_softmax(-1)
    early = [theirs.lm_head(out.hidden_states[each][0, -1]).log_softmax(-1) for each in layers]
    means = [(final.exp() + each.exp()) / 2 for each in early]
    apart = [
        (mean * (2 * mean.log() - final - each)).sum()
        for mean, each in zip(means, early, strict=True)
    ]
    chosen = early[int(torch.stack(apart).argmax())]
    return torch.where(final.exp() < 0.1 * final.exp().max(), -torch.inf, final - chosen)


def test_these_families_allow_it() -> None:
    assert sorted(ALLOWED) == ["lfm2", "lfm2_moe", "lfm3", "minimax"]


@pytest.mark.parametrize("family", ALLOWED)
def test_tokens_are_those_of_the_formula(
    family: str, tmp_path: Path, tokenizer: asyncgen.Tokenizer
) -> None:
    theirs = make(family, tmp_path)
    ours = asyncgen.load_model(tmp_path, dtype="float32")
    row = ROWS[0]
    for wanted, layers in (("high", [2]), ([0, 1, 3], [0, 1, 3])):
        options: dict[str, Any] = {"dola_layers": wanted, "max_new_tokens": 12, "do_sample": False}
        text = list(row)
        for _ in range(12):
            text.append(int(contrasted(theirs, text, layers).argmax()))
        expected = text[len(row) :]
        for chunk in (None, 2):
            generate: Any = ours.generate
            found = generate(
                torch.tensor([row]), prefill_chunk_size=chunk, eos_token_id=None, **options
            )
            assert found[0, len(row) :].tolist() == expected

        async def streamed(options: dict[str, Any]) -> list[int]:
            async with asyncgen.AsyncLLM(ours, tokenizer=tokenizer) as llm:
                return list((await llm.generate(row, **options)).token_ids)

        assert asyncio.run(streamed(options)) == expected
    with pytest.raises(InvalidRequestError, match=r"`penalty_alpha`.*keep states"):
        ours.generate(torch.tensor([row]), penalty_alpha=0.6, top_k=4, max_new_tokens=4)
