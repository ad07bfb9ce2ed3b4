"""The constrained scorer: beams are shared out over progress, and only what is met may end."""

from __future__ import annotations

import pytest
import torch

from asyncgen.generation.strategies.beam_scorers.constrained import (
    ConstrainedBeamSearchScorer,
    _order_by_banks,
)
from asyncgen.generation.strategies.constraints import (
    Constraint,
    ConstraintListState,
    DisjunctiveConstraint,
    PhrasalConstraint,
)
from tests.cases import for_each
from tests.generation.beam_scorers.candidates import END, OTHER_END, drive


def _constraints() -> list[Constraint]:
    return [PhrasalConstraint([9, 10]), DisjunctiveConstraint([[4, 5], [6]])]


@for_each("seed", range(12))
def test_finished_beams_meet_all_constraints(seed: int) -> None:
    scorer = ConstrainedBeamSearchScorer(2, 4, _constraints(), "cpu", max_length=20)
    found = drive(scorer, 2, 4, seed=seed, prompt=2, longest=20)
    for ids, length in zip(found["sequences"].tolist(), found["sequence_lengths"], strict=True):
        assert scorer.check_completes_constraints(ids[:length])
        assert ids[length - 1] in (END, OTHER_END) or length == 20
        state = ConstraintListState(_constraints())
        state.reset(ids)
        assert state.completed


def test_banks_take_turns_and_the_furthest_is_first() -> None:
    banks = [0, 0, 2, 1, 2, 0]
    scores = torch.tensor([-1.0, -2.0, -5.0, -3.0, -4.0, -0.5])
    assert _order_by_banks(banks, scores) == [4, 3, 5, 2, 0, 1]


def test_states_and_scores_of_the_vocabulary() -> None:
    scorer = ConstrainedBeamSearchScorer(1, 2, _constraints(), "cpu")
    assert [state.get_bank() for state in scorer.make_constraint_states(3)] == [0, 0, 0]
    table = torch.zeros(1, 4)
    with pytest.raises(TypeError, match="scores_for_all_vocab"):
        scorer.process(torch.zeros(2, 1, dtype=torch.int64), table, table.long(), table.long())
