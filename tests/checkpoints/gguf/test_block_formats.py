"""Tests of `asyncgen.checkpoints.gguf.block_formats`, against the package `gguf`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from asyncgen.checkpoints.gguf.block_formats import unpack
from asyncgen.checkpoints.gguf.gguf_file import open_gguf
from asyncgen.checkpoints.gguf.read_tensors import read_as, read_packed
from asyncgen.checkpoints.gguf.tensor_types import TENSOR_TYPES, UNSUPPORTED_TYPES, TensorType
from tests.cases import for_each
from tests.checkpoints.gguf.making import write_gguf

if TYPE_CHECKING:
    from pathlib import Path

PACKED = [kind for kind in TENSOR_TYPES.values() if kind.plain is None]


def random_blocks(name: str, count: int, seed: int = 0) -> np.ndarray:
    """Blocks of any bits, but for scales that are no numbers."""
    kind = next(kind for kind in TENSOR_TYPES.values() if kind.name == name)
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (count, kind.num_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        numbers = quants.dequantize(blocks, GGMLQuantizationType[name])
    return blocks[np.isfinite(numbers).all(axis=1)]


@for_each("kind", PACKED, ids=lambda kind: kind.name)
def test_numbers_are_those_of_the_reference_bit_for_bit(kind: TensorType) -> None:
    blocks = random_blocks(kind.name, 700)
    assert len(blocks) > 400
    theirs = quants.dequantize(blocks, GGMLQuantizationType[kind.name])
    ours = unpack(kind.name, torch.from_numpy(blocks))
    assert ours.shape == (len(blocks), kind.numbers)
    assert torch.equal(ours, torch.from_numpy(theirs))


@pytest.mark.parametrize("kind", PACKED, ids=lambda kind: kind.name)
def test_layouts_hold_the_same_numbers(kind: TensorType, tmp_path: Path) -> None:
    blocks = random_blocks(kind.name, 12 * 70)[: 12 * 35]
    rows = blocks.reshape(35, -1)
    number = GGMLQuantizationType[kind.name]
    theirs = torch.from_numpy(quants.dequantize(rows, number))
    file = write_gguf(tmp_path / "x.gguf", {}, {"x": rows}, {"x": number})
    tensor = open_gguf(file).tensors["x"]
    assert tensor.shape == theirs.shape == (35, 12 * kind.numbers)
    packed = read_packed(tensor)
    assert torch.equal(packed.dequantise(), theirs)
    assert torch.equal(read_as(tensor, torch.float32), theirs)


def test_the_table_of_types_is_that_of_the_reference() -> None:
    from gguf import GGML_QUANT_SIZES

    for number, kind in TENSOR_TYPES.items():
        theirs = GGMLQuantizationType(number)
        assert (kind.name, (kind.numbers, kind.num_bytes)) == (
            theirs.name,
            GGML_QUANT_SIZES[theirs],
        )
    assert {number: kind.name for number, kind in TENSOR_TYPES.items()} | UNSUPPORTED_TYPES == {
        int(theirs): theirs.name for theirs in GGMLQuantizationType
    }
