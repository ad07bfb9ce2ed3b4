"""Differential attention: heads in pairs, and the difference of their results."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch

import asyncgen
from asyncgen.errors import ModelLoadError
from asyncgen.families.config import ModelConfig
from asyncgen.models.differential import DifferentialHeads
from tests.cases import for_each
from tests.families.arch.families import make

if TYPE_CHECKING:
    from pathlib import Path


def test_difference_is_that_of_the_paper(tmp_path: Path) -> None:
    """Equations 1 and 3: the second map, times lambda, is taken from the first; then a norm."""
    pytest.importorskip("transformers")
    make("diffllama", tmp_path)
    heads = asyncgen.load_model(tmp_path, dtype="float32").core.layers[2].qkv
    assert isinstance(heads, DifferentialHeads)
    results = torch.randn(5, 4, 16, generator=torch.Generator().manual_seed(0))
    q1, k1, q2, k2 = heads.lambdas.weight.view(4, 8)
    start = 0.8 - 0.6 * math.exp(-0.6)
    factor = torch.exp(q1 @ k1) - torch.exp(q2 @ k2) + start
    found = results[:, :2] - factor * results[:, 2:]
    found = found / (found.square().mean(-1, keepdim=True) + 1e-5).sqrt() * (1 - start)
    made = heads.combiner()(results.reshape(5, -1).clone())
    torch.testing.assert_close(made, found.reshape(5, -1))


@for_each(
    "keys, message",
    [
        ({"num_key_value_heads": 1}, "`num_key_value_heads` is 1: must be even"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "only whole heads are rotated"),
        ({"partial_rotary_factor": 0.5}, "`partial_rotary_factor` is 0.5"),
    ],
)
def test_files_without_pairs_are_refused_by_name(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        ModelConfig.from_hf({"model_type": "diffllama", **keys})
