"""The page on families states the proofs and kernels that are found here."""

from __future__ import annotations

import pytest
import torch

from asyncgen import native
from tests.families.arch import page

pytest.importorskip("transformers")

WAY = "`python -m tests.families.arch.page` writes the tables anew"


@pytest.mark.gate
@pytest.mark.skipif(
    not (native.supports(torch.float32) and native.supports(torch.bfloat16)),
    reason="our own kernels do not run here, which the page is about",
)
def test_the_tables_are_true() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    found = page.tables()
    for heading, rows in found.items():
        assert page.written(heading, rows, text) == text, f"{heading}: {WAY}"
    for row in found["What computes them"]:
        assert "torch" not in row, f"{row[0]} has none of our kernels"
