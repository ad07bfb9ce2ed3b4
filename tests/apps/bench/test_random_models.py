"""Networks drawn on a device are the ones that were described, in either library."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from asyncgen import load_tokenizer
from asyncgen_apps.bench.checkpoints import MADE, write_checkpoint, write_description
from asyncgen_apps.bench.random_models import (
    asyncgen_model,
    bandwidth,
    bytes_per_token,
    transformers_model,
)
from tests.apps.bench.test_checkpoints import TINY

if TYPE_CHECKING:
    from pathlib import Path

    from asyncgen_apps.bench.shape import ModelShape

UNTIED = replace(TINY, tied=False)


@pytest.mark.parametrize("shape", [TINY, UNTIED])
def test_our_model_has_the_described_network_and_computes(
    shape: ModelShape, tmp_path: Path
) -> None:
    write_description(tmp_path, shape, "float32")
    assert not (tmp_path / "model.safetensors").exists()
    model = asyncgen_model(str(tmp_path), "float32", "cpu")
    assert model.config.num_hidden_layers == shape.layers
    assert model.config.tie_word_embeddings is shape.tied
    logits = model(torch.tensor([[5, 6, 7]])).logits
    assert logits.shape == (1, 3, shape.vocab)
    assert torch.isfinite(logits).all() and logits.std() > 0


def test_the_bytes_of_a_token_are_the_weights_without_look_ups_and_norms(tmp_path: Path) -> None:
    write_description(tmp_path, UNTIED, "bfloat16")
    model = asyncgen_model(str(tmp_path), "bfloat16", "cpu")
    norms = (2 * UNTIED.layers + 1) * UNTIED.hidden
    table = UNTIED.vocab * UNTIED.hidden
    assert bytes_per_token(model) == 2 * (UNTIED.num_parameters - norms - table)
    write_description(tmp_path, TINY, "float32")
    tied = asyncgen_model(str(tmp_path), "float32", "cpu")
    assert bytes_per_token(tied) == 4 * (TINY.num_parameters - norms)


@pytest.mark.filterwarnings("default")
def test_transformers_makes_the_same_network(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    write_description(tmp_path, UNTIED, "float32")
    theirs = transformers_model(str(tmp_path), "float32", "cpu")
    assert sum(one.numel() for one in theirs.parameters()) == UNTIED.num_parameters
    logits = theirs(torch.tensor([[5, 6, 7]])).logits
    assert torch.isfinite(logits).all() and logits.std() > 0


def test_the_tokenizer_comes_with_the_description(tmp_path: Path) -> None:
    write_description(tmp_path, TINY, "float32")
    assert load_tokenizer(str(tmp_path)).decode([300, 301])


def test_an_untied_checkpoint_loads(tmp_path: Path) -> None:
    from asyncgen import load_model

    write_checkpoint(tmp_path, UNTIED, "float32")
    model = load_model(tmp_path, progress=False, device="cpu")
    assert not model.config.tie_word_embeddings
    assert model(torch.tensor([[5, 6]])).logits.shape == (1, 2, UNTIED.vocab)


def test_the_large_shape_is_that_of_eight_billion() -> None:
    assert 8.0e9 < MADE["8b"].num_parameters < 8.1e9


def test_bandwidth_is_measured() -> None:
    assert bandwidth("cpu", megabytes=4) > 1e6
