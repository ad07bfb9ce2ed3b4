"""The shared loop: prompts in chunks, one id a row and step, rows that end in mid-batch."""

from __future__ import annotations

import pytest
import torch

from asyncgen.generation.strategies import Outcome
from asyncgen.generation.strategies.greedy import greedy
from tests.doubles.models import PAD, TableModel
from tests.generation.strategies.plans import plan_of

PROMPT = [[5, 6, 7, 8, 9, 10, 11]]


def test_steps_joined_are_the_outcome() -> None:
    plan = plan_of(TableModel(), PROMPT, new_tokens=9)
    steps = greedy(plan)
    settled: list[int] = []
    while True:
        try:
            step = next(steps)
        except StopIteration as end:
            outcome = end.value
            break
        settled += step.token_ids[0]
    assert isinstance(outcome, Outcome)
    assert outcome.sequences.tolist() == [PROMPT[0] + settled]
    assert len(settled) == 9


@pytest.mark.parametrize("chunk", [1, 2, 3, 6, 7, 100, None])
def test_chunks_change_nothing_but_the_number_of_steps(chunk: int | None) -> None:
    whole = list(greedy(plan_of(TableModel(), PROMPT, new_tokens=4)))
    model = TableModel()
    steps = list(greedy(plan_of(model, PROMPT, new_tokens=4, prefill_chunk=chunk)))
    empty = [step for step in steps if step.tokens is None]
    assert len(empty) == (0 if chunk is None else -(-len(PROMPT[0]) // chunk) - 1)
    assert all(step.token_ids == [[]] for step in empty)
    assert [step.token_ids for step in steps[len(empty) :]] == [step.token_ids for step in whole]
    assert max(length for _, length in model.core.forwards) <= (chunk or len(PROMPT[0]))


def test_rows_end_one_by_one_and_are_padded() -> None:
    model = TableModel(eos_bias=2.0, seed=3)
    prompts = [[row, 2 * row, 3 * row] for row in range(1, 9)]
    steps = greedy(plan_of(model, prompts, new_tokens=40))
    ended: dict[int, int] = {}
    rows: list[list[int]] = [[] for _ in prompts]
    for number, step in enumerate(steps):
        assert step.tokens is not None
        for row, ids in enumerate(step.token_ids):
            if row in ended:
                assert ids == []
                assert int(step.tokens[row]) == PAD
                assert step.reasons[row] is None
            rows[row] += ids
            if step.reasons[row] is not None:
                ended[row] = number
    assert len(ended) == len(prompts)
    assert len(set(ended.values())) > 2
    # Each row alone gives the same tokens.
    for prompt, row_ids in zip(prompts, rows, strict=True):
        alone = greedy(plan_of(TableModel(eos_bias=2.0, seed=3), [prompt], new_tokens=40))
        assert [step.token_ids[0][0] for step in alone] == row_ids


def test_no_grad_mode_is_left_behind() -> None:
    steps = greedy(plan_of(TableModel(), PROMPT, new_tokens=3))
    assert torch.is_grad_enabled()
    next(steps)
    assert torch.is_grad_enabled()
    steps.close()
    assert torch.is_grad_enabled()


def test_closing_computes_nothing_more() -> None:
    model = TableModel()
    steps = greedy(plan_of(model, PROMPT, new_tokens=30))
    next(steps)
    steps.close()
    assert model.num_forwards == 1


def test_sequences_longer_than_the_first_buffer() -> None:
    model = TableModel(context_length=4096)
    plan = plan_of(model, PROMPT, new_tokens=1300)
    sequences = [step.token_ids[0][0] for step in greedy(plan)]
    assert len(sequences) == 1300
