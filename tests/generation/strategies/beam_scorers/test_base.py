"""Token ids come in every form."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncgen.generation.strategies.beam_scorers import BeamScorer, BeamSearchScorer
from asyncgen.generation.strategies.beam_scorers.base import first_id, id_list


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (None, []),
        (3, [3]),
        ([4, 5], [4, 5]),
        (torch.tensor(6), [6]),
        (torch.tensor([7, 8]), [7, 8]),
    ],
)
def test_ids_in_every_form(ids: Any, expected: list[int]) -> None:
    assert id_list(ids) == expected
    assert first_id(ids) == (expected[0] if expected else None)


def test_scorers_are_beam_scorers() -> None:
    assert isinstance(BeamSearchScorer(1, 2, "cpu"), BeamScorer)
    with pytest.raises(TypeError, match="abstract"):
        BeamScorer()  # type: ignore[abstract]
