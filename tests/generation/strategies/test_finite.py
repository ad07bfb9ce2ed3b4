"""Scores that nothing can be picked from are refused, by position."""

from __future__ import annotations

import pytest
import torch

from asyncgen.generation.strategies.finite import require_finite


def test_finite_scores_pass() -> None:
    require_finite(torch.tensor([0.0, -3e38, 5.0]), 1)


@pytest.mark.parametrize("bad", [float("nan"), float("-inf"), float("inf")])
def test_anything_else_is_an_error(bad: float) -> None:
    with pytest.raises(FloatingPointError, match="position 17"):
        require_finite(torch.tensor([1.0, bad]), 17)
