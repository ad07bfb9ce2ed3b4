"""Groups of beams keep away from what earlier groups took."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.diversity import HammingDiversityLogitsProcessor
from tests.cases import for_each


def test_every_beam_of_an_earlier_group_counts() -> None:
    processor = HammingDiversityLogitsProcessor(0.5, num_beams=6, num_beam_groups=3)
    ids = torch.zeros(4, 1, dtype=torch.int64)  # two prompts, groups of two beams
    scores = torch.randn(4, 5)
    taken = torch.tensor([1, 1, 3, 0, 0, 0, 2, 4, 4, 4, 0, 0])
    assert torch.equal(processor(ids, scores, taken, 0), scores)
    expected = scores.clone()
    expected[:2, 1] -= 1.0
    expected[2:, 2] -= 0.5
    expected[2:, 4] -= 0.5
    torch.testing.assert_close(processor(ids, scores, taken, 1), expected)
    expected[:2, 3] -= 0.5
    expected[:2, 0] -= 0.5
    expected[2:, 4] -= 1.0
    torch.testing.assert_close(processor(ids, scores, taken, 2), expected)


@for_each(
    ("arguments", "name"),
    [
        ((0.0, 4, 2), "diversity_penalty"),
        ((1, 4, 2), "diversity_penalty"),
        ((1.0, 1, 2), "num_beams"),
        ((1.0, 4, 1), "num_beam_groups"),
        ((1.0, 2, 4), "num_beam_groups"),
    ],
)
def test_out_of_range(arguments: Any, name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        HammingDiversityLogitsProcessor(*arguments)
    assert caught.value.parameter == name
