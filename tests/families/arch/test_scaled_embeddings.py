"""A factor on embeddings is where the reference has it: in the table's rows, or behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import asyncgen
from asyncgen.errors import InvalidRequestError
from asyncgen.families.arch.registry import FAMILIES
from tests.cases import for_each
from tests.families.arch.proofs import make_pair

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

pytest.importorskip("transformers")

IDS = torch.tensor([[5, 17, 3, 44, 9]])
SCALES: dict[str, dict[str, Any]] = {
    "gemma3_text": {},
    "minicpm3": {"scale_emb": 7.3},
    "xglm": {},
    "granite": {"embedding_multiplier": 1.7},
    "falcon_h1": {"embedding_multiplier": 1.7},
    "gemma": {},
    "gemma2": {},
    "vaultgemma": {},
    "biogpt": {},
    "afmoe": {"mup_enabled": True},
    "hyperclovax": {"embedding_multiplier": 1.7},
    "granitemoehybrid": {"embedding_multiplier": 1.7},
    "gemma4_unified_text": {},
    "granitemoe": {"embedding_multiplier": 1.7},
    "granitemoeshared": {"embedding_multiplier": 1.7},
    "granite_swa": {"embedding_multiplier": 1.7},
    "granitemoe_swa": {"embedding_multiplier": 1.7},
    "recurrent_gemma": {},
}
"""Families that scale embeddings, with an odd factor where a file states it."""
ONLY_IDS = ["gemma3n_text", "gemma4_text"]
"""Those whose layers read the ids as well."""


def test_every_family_that_scales_is_compared() -> None:
    scaling = {name for name, family in FAMILIES.items() if family.embedding_scale != 1.0}
    assert scaling == {*SCALES, *ONLY_IDS}


def follows_the_reference(families: Iterable[str], folder: Path) -> None:
    prompt = torch.randn(1, 5, 32, generator=torch.Generator().manual_seed(0))
    call: dict[str, Any] = {"inputs_embeds": prompt, "max_new_tokens": 3, "do_sample": False}
    for family in families:
        pair = make_pair(family, folder / family, **SCALES[family])
        ours, theirs = pair.ours, pair.theirs
        expected = theirs(inputs_embeds=prompt).logits
        found = ours(inputs_embeds=prompt).logits
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        if family != "falcon_h1":  # its reference generates from ids alone
            assert torch.equal(ours.generate(**call), theirs.generate(**call)), family
        for dtype in (torch.float32, torch.bfloat16):
            ours, theirs = ours.to(dtype), theirs.to(dtype)
            rows, found = theirs.get_input_embeddings()(IDS), ours.get_input_embeddings()(IDS)
            if family == "falcon_h1":  # the reference's module gives no embeddings that it takes
                rows = rows * theirs.model.embedding_multiplier
            assert torch.equal(found, rows), (family, dtype)
            assert torch.equal(ours(inputs_embeds=found).logits, ours(IDS).logits), family


@torch.no_grad()
def test_inputs_embeds_take_what_the_table_gives(tmp_path: Path) -> None:
    follows_the_reference([*SCALES][:3], tmp_path)


@torch.no_grad()
@pytest.mark.gate
def test_inputs_embeds_take_what_the_table_gives_in_every_family(tmp_path: Path) -> None:
    follows_the_reference([*SCALES][3:], tmp_path)


@torch.no_grad()
@for_each("family", ONLY_IDS)
def test_rows_are_scaled_where_only_ids_are_taken(family: str, tmp_path: Path) -> None:
    pair = make_pair(family, tmp_path / family)
    found, rows = (each.get_input_embeddings()(IDS) for each in (pair.ours, pair.theirs))
    assert torch.equal(found, rows)


@torch.no_grad()
def test_another_table_gives_its_own_rows(tmp_path: Path) -> None:
    pair = make_pair("gemma2", tmp_path, tie_word_embeddings=True)
    before, own = pair.ours(IDS).logits, pair.ours.get_input_embeddings()
    table = nn.Embedding(96, 32)
    nn.init.normal_(table.weight, std=0.3)
    for model in (pair.theirs, pair.ours):
        model.set_input_embeddings(table)
        model.tie_weights()
    found = pair.ours(IDS).logits
    torch.testing.assert_close(found, pair.theirs(IDS).logits, atol=2e-4, rtol=2e-4)
    assert torch.equal(pair.ours.get_input_embeddings()(IDS), table(IDS))
    assert pair.ours.resize_token_embeddings(97)(IDS).equal(table(IDS))
    with pytest.raises(InvalidRequestError, match=r"`set_input_embeddings` is rows times 1.*5\.6"):
        pair.ours.save_pretrained(tmp_path / "again")
    again = asyncgen.load_model(tmp_path, dtype="float32")
    pair.ours.set_input_embeddings(again.get_input_embeddings())
    assert torch.equal(pair.ours(IDS).logits, before)
    assert own(IDS).equal(again.get_input_embeddings()(IDS))  # it shows the model's table
    pair.ours.save_pretrained(tmp_path / "again")


@torch.no_grad()
def test_writes_to_a_scaled_table_take_effect(tmp_path: Path) -> None:
    pair = make_pair("gemma3_text", tmp_path, tie_word_embeddings=True)
    for model in (pair.theirs, pair.ours):
        model.get_input_embeddings().weight.data[5:9] = 0.25
        model.get_input_embeddings().weight[17] += 0.5
    expected = pair.theirs(IDS).logits
    torch.testing.assert_close(pair.ours(IDS).logits, expected, atol=2e-4, rtol=2e-4)
    pair.ours.save_pretrained(tmp_path / "again")
    again = asyncgen.load_model(tmp_path / "again", dtype="float32")
    assert torch.equal(again.get_input_embeddings()(IDS), pair.ours.get_input_embeddings()(IDS))
