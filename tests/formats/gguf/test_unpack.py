"""Tests of `asyncgen.formats.gguf.unpack`, against the package `gguf`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from asyncgen.formats.gguf.kinds import KINDS, UNREAD
from asyncgen.formats.gguf.unpack import unpack

PACKED = [kind for kind in KINDS.values() if kind.plain is None]


def random_blocks(name: str, count: int, seed: int = 0) -> np.ndarray:
    """Blocks of any bits, but for scales that are no numbers."""
    kind = next(kind for kind in KINDS.values() if kind.name == name)
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (count, kind.num_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        numbers = quants.dequantize(blocks, GGMLQuantizationType[name])
    return blocks[np.isfinite(numbers).all(axis=1)]


@pytest.mark.parametrize("kind", PACKED, ids=lambda kind: kind.name)
def test_numbers_are_those_of_the_reference_bit_for_bit(kind: object) -> None:
    blocks = random_blocks(kind.name, 700)
    assert len(blocks) > 400
    theirs = quants.dequantize(blocks, GGMLQuantizationType[kind.name])
    ours = unpack(kind.name, torch.from_numpy(blocks))
    assert ours.shape == (len(blocks), kind.numbers)
    assert torch.equal(ours.view(torch.int32), torch.from_numpy(theirs).view(torch.int32))


def test_the_table_of_types_is_that_of_the_reference() -> None:
    from gguf import GGML_QUANT_SIZES

    for number, kind in KINDS.items():
        theirs = GGMLQuantizationType(number)
        assert (kind.name, (kind.numbers, kind.num_bytes)) == (
            theirs.name,
            GGML_QUANT_SIZES[theirs],
        )
    assert {number: kind.name for number, kind in KINDS.items()} | UNREAD == {
        int(theirs): theirs.name for theirs in GGMLQuantizationType
    }
