"""The page that says which models run: a row for each family, with what GGUF calls it."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pytest

import asyncgen
from asyncgen.checkpoints.gguf.architectures import ARCHITECTURES
from asyncgen.families.arch.registry import FAMILIES
from asyncgen.families.plans.text_part import AROUND_TEXT
from tests.families.arch import families
from tests.pages import ROOT, table

PAGE = Path(asyncgen.__file__).parent / "docs" / "models.md"
SHARES = {"8 bits": 0.53, "4 bits": 0.30}
"""Bytes, of bfloat16's, as on the page of packed weights."""


def _rows() -> list[list[str]]:
    rows = [row for row in table(PAGE) if len(row) == 3 and row[1].startswith("`")]
    return [row for row in rows if row[0] != "Models"]  # the head


def test_every_family_has_one_row() -> None:
    found = [name for row in _rows() for name in re.findall(r"`([\w]+)`", row[1])]
    assert sorted(found) == sorted({*FAMILIES, *AROUND_TEXT})


def test_every_architecture_of_gguf_stands_beside_its_family() -> None:
    listed = {name: set(re.findall(r"`([\w-]+)`", row[2])) for row in _rows() for name in [row[1]]}
    assert set().union(*listed.values()) == ARCHITECTURES.keys()
    for name, one in ARCHITECTURES.items():
        row = next(names for names in listed if f"`{one.model_type}`" in names)
        assert name in listed[row], one.model_type


def test_the_pages_count_the_families_right() -> None:
    for page in (PAGE, ROOT / "README.md"):
        counts = set(re.findall(r"(\d+) families", page.read_text(encoding="utf-8")))
        assert counts == {str(len(FAMILIES))}, page


def test_the_sizes_are_those_of_their_rule() -> None:
    head, _, *rows = [row for row in table(PAGE) if len(row) == 4]
    assert head == ["Parameters", "bfloat16, float16", *SHARES]
    for size, *shown in rows:
        sizes = [2 * float(size.removesuffix("B")) * share for share in (1, *SHARES.values())]
        assert [float(text.removesuffix(" GB")) for text in shown] == pytest.approx(sizes, rel=0.06)


@pytest.mark.gate
@pytest.mark.parametrize("packing", ["int8", "int4"])
def test_every_family_is_packed_while_it_loads(packing: Literal["int8", "int4"]) -> None:
    pytest.importorskip("transformers")
    for family in {**families.FAMILIES, **families.STATES}:
        with TemporaryDirectory() as folder:
            families.make(family, Path(folder))
            assert asyncgen.load_model(folder, quantize=packing).num_parameters() > 0, family
