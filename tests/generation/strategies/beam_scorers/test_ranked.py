"""Test all scorers: ids in every form, numbers that fit, groups with own lists."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.strategies.beam_scorers.base import BeamScorer, first_id, id_list
from asyncgen.generation.strategies.beam_scorers.search import BeamSearchScorer
from tests.cases import for_each
from tests.generation.beam_scorers.candidates import END, PAD


@for_each(
    ("options", "name"),
    [
        ({"num_beams": 1}, "num_beams"),
        ({"num_beams": 2.0}, "num_beams"),
        ({"num_beams": 4, "num_beam_groups": 3}, "num_beam_groups"),
        ({"num_beams": 4, "num_beam_groups": 8}, "num_beam_groups"),
        ({"num_beams": 4, "do_early_stopping": "never"}, "do_early_stopping"),
    ],
)
def test_numbers_that_do_not_fit(options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        BeamSearchScorer(2, device="cpu", **options)
    assert caught.value.parameter == name


def test_rows_that_do_not_fit() -> None:
    scorer = BeamSearchScorer(2, 2, "cpu")
    table = torch.zeros(2, 4)
    with pytest.raises(InvalidRequestError, match="needs 4 rows"):
        scorer.process(torch.zeros(2, 1, dtype=torch.int64), table, table.long(), table.long())


def test_groups_are_ranked_together_in_the_end() -> None:
    scorer = BeamSearchScorer(1, 4, "cpu", num_beam_groups=2, num_beam_hyps_to_keep=2)
    ids = torch.tensor([[5], [6]])
    options: dict[str, Any] = {"pad_token_id": PAD, "eos_token_id": END}
    for group, best in enumerate((-2.0, -1.0)):
        scorer.process(
            ids,
            torch.tensor([[best, -3.0, -4.0, -5.0]]),
            torch.tensor([[END, 7, 8, 9]]),
            torch.tensor([[0, 0, 1, 1]]),
            beam_indices=[(), ()],
            group_index=group,
            decoder_prompt_len=1,
            **options,
        )
    assert scorer.live_groups(0) == [0, 1]
    leader = scorer.best(0)
    assert leader is not None
    assert leader[0] == -1.0
    assert leader[2] == (2,)  # the first beam of the second group
    found = scorer.finalize(
        torch.tensor([[5, 7], [6, 8], [5, 7], [6, 8]]),
        torch.tensor([-9.0, -9.0, -9.0, -9.0]),
        ids,
        ids,
        max_length=8,
        beam_indices=[(0,), (0,), (2,), (2,)],
        decoder_prompt_len=1,
        **options,
    )
    assert found["sequence_scores"].tolist() == [-1.0, -2.0]
    assert found["sequences"].tolist() == [[5, END], [5, END]]
    assert found["beam_indices"].tolist() == [[2, -1], [0, -1]]


def test_beams_of_several_prompts_follow_each_other() -> None:
    answer = BeamSearchScorer(2, 2, "cpu").process(
        torch.tensor([[5], [5], [6], [6]]),
        torch.tensor([[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0]]),
        torch.tensor([[7, 8, 9], [END, 10, 11]]),
        torch.tensor([[0, 1, 1], [0, 1, 0]]),
        pad_token_id=PAD,
        eos_token_id=END,
    )
    assert answer["next_beam_scores"].tolist() == [-1.0, -2.0, -5.0, -6.0]
    assert answer["next_beam_tokens"].tolist() == [7, 8, 10, 11]
    assert answer["next_beam_indices"].tolist() == [0, 1, 3, 2]


@for_each(
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
