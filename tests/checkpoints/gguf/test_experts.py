"""Experts of GGUF files stay packed, and compute what their numbers are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
import torch

import asyncgen
from asyncgen.models.kernels.experts import Stack
from asyncgen.models.kernels.native_packed import PackedStack, supports_packed
from tests.checkpoints.gguf.making import read_folder, write_gguf
from tests.checkpoints.gguf.test_families import logits
from tests.families.arch.families import make

if TYPE_CHECKING:
    from pathlib import Path

SIZES = {"hidden_size": 64, "intermediate_size": 64}


@pytest.mark.parametrize(
    ("family", "kind", "more"),
    [
        ("mixtral", "Q4_0", {}),
        pytest.param("qwen3_moe", "Q8_0", {"moe_intermediate_size": 64}, marks=pytest.mark.soak),
        pytest.param("gpt_oss", "MXFP4", {}, marks=pytest.mark.soak),
    ],
)
def test_experts_stay_packed(family: str, kind: str, more: dict[str, int], tmp_path: Path) -> None:
    make(family, tmp_path / "hf", **SIZES, **more)
    _, metadata, tensors = read_folder(tmp_path / "hf")
    number = gguf.GGMLQuantizationType[kind]
    packed, wide, kinds = dict(tensors), dict(tensors), {}
    for name, tensor in tensors.items():
        if "_exps.weight" in name:
            packed[name] = gguf.quants.quantize(np.ascontiguousarray(tensor), number)
            wide[name] = gguf.quants.dequantize(packed[name], number)
            kinds[name] = number
    assert len(kinds) >= 6
    one = asyncgen.load_model(
        write_gguf(tmp_path / "packed.gguf", metadata, packed, kinds), dtype="float32"
    )
    other = asyncgen.load_model(write_gguf(tmp_path / "wide.gguf", metadata, wide), dtype="float32")
    stored = other.state_dict()
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, stored[name]), name
    torch.testing.assert_close(logits(one), logits(other), atol=5e-3, rtol=0)
    if supports_packed(torch.float32):
        stacks = [module for module in one.core.modules() if isinstance(module, Stack)]
        assert len(stacks) >= 4
        assert all(isinstance(stack.kernel, PackedStack) for stack in stacks)
