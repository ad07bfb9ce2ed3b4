"""Positions and padding: a left-padded row computes as it would alone."""

from __future__ import annotations

import torch

from asyncgen.cache import DynamicCache
from asyncgen.generation.strategies.forward import Forward
from tests.doubles.models import TableModel
from tests.generation.strategies.plans import plan_of
from tests.models.build import random_pair


def test_positions_count_from_the_end_of_the_cache() -> None:
    seen: list[list[int]] = []
    model = TableModel(hook=lambda ids, positions: seen.append(positions[0].tolist()))
    forward = Forward(plan_of(model, [[1, 2, 3]], new_tokens=5))
    forward(torch.tensor([[1, 2]]))
    forward(torch.tensor([[3]]))
    assert seen == [[0, 1], [2]]
    assert forward.length == 3


def test_padding_is_not_counted() -> None:
    seen: list[list[list[int]]] = []
    model = TableModel(hook=lambda ids, positions: seen.append(positions.tolist()))
    mask = torch.tensor([[False, False, True], [True, True, True]])
    forward = Forward(plan_of(model, [[0, 0, 1], [1, 2, 3]], new_tokens=5, mask=mask))
    forward(torch.tensor([[0, 0, 1], [1, 2, 3]]))
    forward(torch.tensor([[4], [4]]))
    assert seen == [[[0, 0, 0], [0, 1, 2]], [[1], [3]]]


def test_padded_rows_are_like_the_rows_alone() -> None:
    _, core = random_pair("llama", 3)

    class Model(TableModel):
        """The random core behind the double's face."""

    model = Model()
    model.core = core  # type: ignore[assignment]
    long, short = [5, 9, 4, 7], [8, 6]
    mask = torch.tensor([[True] * 4, [False, False, True, True]])
    with torch.no_grad():
        together = Forward(plan_of(model, [long, [0, 0, *short]], new_tokens=3, mask=mask))
        alone = [Forward(plan_of(model, [row], new_tokens=3)) for row in (long, short)]
        first = together(torch.tensor([long, [0, 0, *short]]))
        expected = [
            forward(torch.tensor([row])) for forward, row in zip(alone, (long, short), strict=True)
        ]
        torch.testing.assert_close(first, torch.cat(expected), atol=1e-5, rtol=1e-5)
        second = together(torch.tensor([[3], [2]]))
        expected = [
            forward(torch.tensor([[token]])) for forward, token in zip(alone, (3, 2), strict=True)
        ]
        torch.testing.assert_close(second, torch.cat(expected), atol=1e-5, rtol=1e-5)


def test_a_given_cache_is_continued() -> None:
    model = TableModel()
    cache = DynamicCache()
    Forward(plan_of(model, [[1, 2]], new_tokens=3, cache=cache))(torch.tensor([[1, 2]]))
    assert Forward(plan_of(model, [[1, 2, 3]], new_tokens=3, cache=cache)).length == 2
