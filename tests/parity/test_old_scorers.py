"""The documented scorers and constraints answer as those of transformers while it had them."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import asyncgen
from tests.cases import for_each
from tests.fixtures.scorer_scenes import scenes

EXPECTED: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "fixtures" / "old_scorers.json").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(scenes(asyncgen)))
    return plain


@for_each("name", EXPECTED)
def test_like_the_older_release(name: str, found: dict[str, Any]) -> None:
    if "diversity" in name:
        for ours, theirs in zip(found[name], EXPECTED[name], strict=True):
            assert ours == pytest.approx(theirs, abs=2e-4)
        return
    if "scores" in EXPECTED[name]:
        ours, theirs = found[name].pop("scores"), EXPECTED[name].pop("scores")
        assert ours == pytest.approx(theirs, abs=2e-4)
    assert found[name] == EXPECTED[name]


def test_old_scorers_have_the_documented_base_classes() -> None:
    for scorer in (asyncgen.BeamSearchScorer, asyncgen.ConstrainedBeamSearchScorer):
        assert issubclass(scorer, asyncgen.BeamScorer)
    for constraint in (asyncgen.PhrasalConstraint, asyncgen.DisjunctiveConstraint):
        assert issubclass(constraint, asyncgen.Constraint)
    assert inspect.isabstract(asyncgen.Constraint)
    assert inspect.isabstract(asyncgen.BeamScorer)
    assert issubclass(asyncgen.HammingDiversityLogitsProcessor, asyncgen.LogitsProcessor)
    one = asyncgen.ConstraintListState([asyncgen.PhrasalConstraint([5])])
    assert one.add(5) == (True, True)
