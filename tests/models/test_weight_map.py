"""Rules are plain values."""

from __future__ import annotations

import dataclasses

import pytest

from asyncgen.models.weight_map import WeightRule


def test_a_rule_is_a_frozen_value() -> None:
    rule = WeightRule("a.weight", ("x", "y"), ((1, 2), (3, 2)))
    assert rule == WeightRule("a.weight", ("x", "y"), ((1, 2), (3, 2)))
    assert len({rule, rule}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.target = "b"  # type: ignore[misc]
