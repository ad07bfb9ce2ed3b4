"""Only listed tokens stay, row by row, as in transformers."""

from __future__ import annotations

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from asyncgen.generation.logits.prefix import PrefixConstrainedLogitsProcessor
from tests.generation.logits.against import Case, assert_agrees, cases


def _allowed(prompt: int, ids: torch.Tensor) -> list[int]:
    return [prompt, int(ids[-1]) % 6, 6]


@given(cases(), st.sampled_from([1, 2]))
def test_like_the_reference(case: Case, beams: int) -> None:
    ids, scores = case
    rows = len(ids) // beams * beams
    if not rows:
        return
    assert_agrees(
        PrefixConstrainedLogitsProcessor(_allowed, beams),
        transformers.PrefixConstrainedLogitsProcessor(_allowed, beams),
        (ids[:rows], scores[:rows]),
    )


def test_something_must_be_allowed() -> None:
    processor = PrefixConstrainedLogitsProcessor(lambda prompt, ids: [], 2)
    with pytest.raises(ValueError, match="batch_id 0"):
        processor(torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, 4))


def test_tokens_must_be_of_the_vocabulary() -> None:
    ids, scores = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 4)
    last = PrefixConstrainedLogitsProcessor(lambda prompt, ids: torch.tensor([-1]), 1)  # type: ignore[arg-type,return-value]
    assert last(ids, scores).isfinite().tolist() == [[False, False, False, True]]
    for token in (-5, 4):
        processor = PrefixConstrainedLogitsProcessor(lambda prompt, ids: [token], 1)  # noqa: B023
        with pytest.raises(IndexError, match="below 4"):
            processor(ids, scores)
