"""Blocks that layers share: their weights are there once, and each use has its own adapters."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

import asyncgen
from asyncgen.cache.layer_groups import plan_groups
from asyncgen.errors import ModelLoadError
from asyncgen.models.mixers.shared_block import SharedBlockLayer
from tests.families.arch.families import make

if TYPE_CHECKING:
    from pathlib import Path

    from asyncgen.models.decoder import DecoderLM

pytest.importorskip("transformers")

IDS = torch.tensor([[5, 17, 3, 44, 9, 21, 80]])
HYBRID = (1, 3, 4)


def _blocks(core: DecoderLM) -> list[int]:
    """List the number of the block that each layer with a block computes with."""
    places = {id(block): number for number, block in enumerate(core.blocks)}
    layers = [core.layers[index] for index in HYBRID]
    assert all(isinstance(layer, SharedBlockLayer) for layer in layers)
    return [places[id(layer._block[0])] for layer in layers if isinstance(layer, SharedBlockLayer)]


def test_layers_take_turns_with_blocks_whose_weights_are_there_once(tmp_path: Path) -> None:
    make("zamba2", tmp_path)
    core = asyncgen.load_model(tmp_path, dtype="float32").core
    assert _blocks(core) == [0, 1, 0]
    assert core.config.attending == HYBRID
    assert sum(len(group.layers) for group in plan_groups(core.config).groups) == len(HYBRID)
    stored = load_file(tmp_path / "model.safetensors")
    in_rules = [source for rule in core.weight_map() for source in rule.sources]
    assert sorted(in_rules) == sorted(stored)  # each once


def test_a_copy_of_a_model_shares_blocks_of_its_own(tmp_path: Path) -> None:
    make("zamba2", tmp_path)
    ours = asyncgen.load_model(tmp_path, dtype="float32")
    other = copy.deepcopy(ours)
    assert _blocks(other.core) == [0, 1, 0]
    assert not {*map(id, other.core.blocks)} & {*map(id, ours.core.blocks)}
    assert torch.equal(other(IDS).logits, ours(IDS).logits)


def test_each_layer_has_its_own_block_if_the_head_is_not_tied(tmp_path: Path) -> None:
    theirs = make("zamba2", tmp_path, tie_word_embeddings=False)
    ours = asyncgen.load_model(tmp_path, dtype="float32")
    assert _blocks(ours.core) == [0, 1, 2]
    with torch.no_grad():
        torch.testing.assert_close(ours(IDS).logits, theirs(IDS).logits, atol=1e-4, rtol=1e-4)


def test_a_second_block_in_the_place_of_a_shared_one_is_refused(tmp_path: Path) -> None:
    make("zamba2", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.{}.shared_transformer.self_attn.q_proj.weight"
    other = {name.format(4): tensors[name.format(1)] + 1}
    save_file({**tensors, **other}, file, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"1 unexpected.*layers\.4\.shared_transformer"):
        asyncgen.load_model(tmp_path)
