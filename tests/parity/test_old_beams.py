"""Diverse and constrained beam search give what transformers gave while it had them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from asyncgen.reference.load_model import load_model
from tests.fixtures import tiny_llama

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "fixtures" / "old_beams.json").read_text(encoding="utf-8")
)


def test_there_are_enough_of_both() -> None:
    constrained = sum("force_words_ids" in case["options"] for case in CASES)
    assert constrained >= 15
    assert len(CASES) - constrained >= 15


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["seed"]))
def test_like_the_older_release(case: dict[str, Any], tmp_path: Path) -> None:
    tiny_llama.save(tmp_path, case["seed"])
    inputs: dict[str, Any] = {name: torch.tensor(rows) for name, rows in case["inputs"].items()}
    found: Any = load_model(tmp_path).generate(
        **inputs,
        **case["options"],
        return_dict_in_generate=True,
        output_scores=True,
    )
    assert found.sequences.tolist() == case["sequences"]
    expected = torch.tensor(case["sequences_scores"])
    torch.testing.assert_close(found.sequences_scores, expected, atol=1e-4, rtol=1e-4)
