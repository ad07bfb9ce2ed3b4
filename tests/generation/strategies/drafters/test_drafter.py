"""The interface: whatever has the two methods can draft, however wrong it is."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.generation.strategies.assisted import assisted
from asyncgen.generation.strategies.step import Drafter, Drafting, Proposal, Step
from tests.doubles.engine import greedy_ids
from tests.doubles.models import TableModel
from tests.generation.strategies.plans import plan_of


class Reciter:
    """Guesses given lists, right or wrong, and remembers what it was told."""

    def __init__(self, rounds: list[list[int]]) -> None:
        self.rounds = rounds
        self.accepted: list[int] = []

    def propose(self, ids: torch.Tensor, room: int) -> Drafting:
        """The next list."""
        yield Step([[]])
        guesses = self.rounds.pop(0) if self.rounds else []
        return Proposal(torch.tensor(guesses[:room], dtype=torch.int64))

    def update(self, accepted: int) -> None:
        """Remember."""
        self.accepted.append(accepted)


def run(model: TableModel, drafter: Drafter, new_tokens: int) -> list[int]:
    plan = plan_of(model, [[1, 2, 3]], new_tokens=new_tokens)
    plan.drafter = drafter
    return [token for step in assisted(plan) for token in step.token_ids[0]]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 255), max_size=6), max_size=20), st.integers(1, 25))
def test_no_guess_changes_the_tokens(rounds: list[list[int]], new_tokens: int) -> None:
    model = TableModel()
    assert run(model, Reciter(rounds), new_tokens) == greedy_ids(model, [1, 2, 3], new_tokens)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.integers(0, 6))
@settings(max_examples=40, deadline=None)
def test_drafter_receives_the_number_of_accepted_tokens(lengths: list[int], right: int) -> None:
    model = TableModel()
    truth = greedy_ids(model, [1, 2, 3], 80)
    rounds, expected, done = [], [], 0
    for length in lengths:
        good = min(right, length)
        wrong = [(truth[done + good] + 1) % 256] * (length - good)
        rounds.append(truth[done : done + good] + wrong)
        expected.append(good)
        done += good + 1
    drafter = Reciter(rounds)
    assert run(model, drafter, done) == truth[:done]
    assert drafter.accepted[: len(expected) - 1] == expected[:-1]
