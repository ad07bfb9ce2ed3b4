"""Tests of `asyncgen.checkpoints.charsmap`: rules over which the library would give up."""

from __future__ import annotations

import struct

import pytest
from tokenizers import normalizers

from asyncgen.checkpoints.charsmap import charsmap_growth, check_charsmap
from asyncgen.errors import ModelLoadError
from tests.cases import for_each

BLOCK = 256


def rules(units: dict[int, int], texts: bytes = b"bb\0", blocks: int = 2) -> bytes:
    """Write rules with some units; the others are empty."""
    tree = [units.get(place, 0) for place in range(blocks * BLOCK)]
    return struct.pack(f"<I{len(tree)}I", 4 * len(tree), *tree) + texts


def unit(label: int, offset: int, *, has_leaf: bool = False) -> int:
    return label | has_leaf << 8 | offset << 10


A = ord("a")
ROOT = {0: unit(0, BLOCK)}
ONE = {**ROOT, BLOCK ^ A: unit(A, A ^ 1, has_leaf=True), BLOCK ^ 1: 0x8000_0000}


def test_rules_that_are_whole() -> None:
    check_charsmap("it", rules(ONE))
    assert normalizers.Precompiled(rules(ONE)).normalize_str("xax") == "xbbx"
    assert charsmap_growth(rules(ONE)) == 2


@for_each(
    ("broken", "said"),
    [
        (b"", "its tree should have 0 bytes; behind its size are 0"),
        (b"\xff" * 4 + b"\0" * 8, "its tree should have 4294967295 bytes; behind its size are 8"),
        (b"\xff\xff\xff\x3f" + b"\0" * 8, "its tree should have 1073741823 bytes"),
        (struct.pack("<I", 1024) + b"\0" * 1000, "its tree should have 1024 bytes; behind its"),
        (struct.pack("<I", 4) + b"\0" * 8, "its tree should have 4 bytes"),
        (struct.pack("<I", 1026) + b"\0" * 2000, "its tree should have 1026 bytes"),
        (rules({0: unit(0, BLOCK)}, blocks=1), "a branch of its tree leads to unit 256 of 256"),
        (rules({**ROOT, BLOCK ^ A: unit(A, 0x1FFFFF)}), "leads to unit .* of 512"),
        (rules({**ONE, BLOCK ^ 1: 0x8000_0009}), "a text should begin at byte 9 of 3"),
        (rules(ONE | {BLOCK ^ 1: 0x8000_0001}, "\u00e9".encode()), "should begin at byte 1 of 2"),
        (rules(ONE, b"\xff\0"), "its texts are no UTF-8"),
        (bytes(17 * 1024 * 1024), "it has 17825792 bytes; at most"),
    ],
)
def test_rules_that_are_broken(broken: bytes, said: str) -> None:
    with pytest.raises(ModelLoadError, match=f"it: its `precompiled_charsmap` is broken: .*{said}"):
        check_charsmap("it", broken)
