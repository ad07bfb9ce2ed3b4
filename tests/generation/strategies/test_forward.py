"""Positions and padding: a left-padded row computes as it would alone; what a record keeps."""

from __future__ import annotations

import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.generation.strategies.forward import Forward
from asyncgen.generation.strategies.layer_outputs import LayerOutputs, LayerRecorder
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


def test_only_steps_are_kept() -> None:
    record = LayerRecorder(wants_hidden_states=True, wants_attentions=False)
    passes = [LayerOutputs(hidden_states=(torch.tensor(number),)) for number in range(4)]
    for number, is_step in enumerate((False, False, True, True)):
        record.fresh.append(passes[number])
        record.settle(is_step=is_step)
        assert not record.fresh
    assert record.passes == passes[2:]
    assert record.per_step("hidden_states") == (passes[2].hidden_states, passes[3].hidden_states)
    assert record.per_step("attentions") == ((), ())


def test_a_pass_over_guesses_becomes_one_a_token() -> None:
    record = LayerRecorder(wants_hidden_states=True, wants_attentions=True)
    states, own = torch.arange(6.0).view(1, 6, 1), torch.arange(48.0).view(1, 1, 6, 8)
    record.fresh.append(LayerOutputs((states,), (own,), (own[..., :3],)))
    record.split(6, 3, 3)  # three positions before three guesses, of which two stand
    passes = record.take()
    assert not record.fresh
    assert [each.hidden_states[0].flatten().tolist() for each in passes] == [[0, 1, 2], [3], [4]]
    assert [each.attentions[0].shape[2:] for each in passes] == [(3, 5), (1, 6), (1, 7)]
    assert torch.equal(passes[2].attentions[0], own[:, :, 4:5, :7])
    assert [each.cross_attentions[0].shape[2:] for each in passes] == [(3, 3), (1, 3), (1, 3)]


def test_rows_are_chosen_from_several_passes() -> None:
    passes = [LayerOutputs((torch.full((2, 1, 3), number),)) for number in (1.0, 2.0)]
    found = LayerOutputs.chosen(passes, [1, 0])
    assert found.hidden_states[0][:, 0, 0].tolist() == [2.0, 1.0]
    assert found.attentions == ()
