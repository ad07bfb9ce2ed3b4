"""Output heads with a bias, tied ones too, and vocabularies of another size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import asyncgen
from tests.families.arch.proofs import ROWS, make_pair

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("transformers")

IDS = torch.tensor(ROWS[:1])
TIED = pytest.mark.parametrize("is_tied", [False, True])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["phi", "phimoe", "gptj", "codegen"])
def test_a_tied_head_may_have_a_bias(family: str, dtype: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"lm_head_bias": True} if family == "phimoe" else {}
    pair = make_pair(family, tmp_path, tie_word_embeddings=True, **more)
    bias = pair.theirs.lm_head.bias.detach()
    with torch.no_grad():
        torch.testing.assert_close(
            pair.ours(IDS).logits, pair.theirs(IDS).logits, atol=1e-4, rtol=1e-4
        )
    ours = asyncgen.load_model(tmp_path, dtype=dtype)
    ours.save_pretrained(tmp_path / "again")
    again = asyncgen.load_model(tmp_path / "again", dtype=dtype)
    assert {*again.state_dict()} == {*ours.state_dict()}
    for name, tensor in ours.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    found = again.get_output_embeddings().bias
    assert found is not None and torch.equal(found, bias.to(ours.dtype))


@TIED
@pytest.mark.parametrize("mean_resizing", [False, True])
@pytest.mark.parametrize("size", [90, 101])
def test_a_bias_is_resized_with_the_vocabulary(
    size: int, mean_resizing: bool, is_tied: bool, tmp_path: Path
) -> None:
    pair = make_pair("phi", tmp_path, tie_word_embeddings=is_tied)
    for model in (pair.theirs, pair.ours):
        model.resize_token_embeddings(size, mean_resizing=mean_resizing)
    expected = pair.theirs.lm_head.bias.detach()
    torch.testing.assert_close(pair.ours.get_output_embeddings().bias, expected)
    found = pair.ours(IDS).logits
    assert found.shape[-1] == size
    with torch.no_grad():  # rows that are new are drawn by chance
        kept = pair.theirs(IDS).logits[..., :90]
    torch.testing.assert_close(found[..., :90], kept, atol=1e-4, rtol=1e-4)


def test_another_table_of_a_tied_head_brings_a_bias_of_its_size(tmp_path: Path) -> None:
    ours = make_pair("phi", tmp_path, tie_word_embeddings=True).ours
    before = ours(IDS).logits
    table = nn.Embedding(99, 32)
    with torch.no_grad():
        table.weight[:96] = ours.get_input_embeddings().weight
    ours.set_input_embeddings(table)
    torch.testing.assert_close(ours(IDS).logits[..., :96], before, atol=1e-5, rtol=1e-5)


def test_head_without_bias_has_none_and_keeps_its_layout(tmp_path: Path) -> None:
    ours = make_pair("llama", tmp_path).ours
    assert ours.get_output_embeddings().bias is None
    assert not ours.core.computes_in_place()
