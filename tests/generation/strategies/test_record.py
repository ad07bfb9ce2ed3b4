"""A record keeps the passes of steps and forgets those of prompt chunks."""

from __future__ import annotations

import torch

from asyncgen.generation.strategies.record import Inside, Record


def test_only_steps_are_kept() -> None:
    record = Record(wants_hidden_states=True, wants_attentions=False)
    passes = [Inside(hidden_states=(torch.tensor(number),)) for number in range(4)]
    for number, is_step in enumerate((False, False, True, True)):
        record.fresh.append(passes[number])
        record.settle(is_step=is_step)
        assert not record.fresh
    assert record.passes == passes[2:]
    assert record.per_step("hidden_states") == (passes[2].hidden_states, passes[3].hidden_states)
    assert record.per_step("attentions") == ((), ())


def test_a_pass_over_guesses_becomes_one_a_token() -> None:
    record = Record(wants_hidden_states=True, wants_attentions=True)
    states, own = torch.arange(6.0).view(1, 6, 1), torch.arange(48.0).view(1, 1, 6, 8)
    record.fresh.append(Inside((states,), (own,), (own[..., :3],)))
    record.split(6, 3, 3)  # three positions before three guesses, of which two stand
    passes = record.take()
    assert not record.fresh
    assert [each.hidden_states[0].flatten().tolist() for each in passes] == [[0, 1, 2], [3], [4]]
    assert [each.attentions[0].shape[2:] for each in passes] == [(3, 5), (1, 6), (1, 7)]
    assert torch.equal(passes[2].attentions[0], own[:, :, 4:5, :7])
    assert [each.cross_attentions[0].shape[2:] for each in passes] == [(3, 3), (1, 3), (1, 3)]


def test_rows_are_chosen_from_several_passes() -> None:
    passes = [Inside((torch.full((2, 1, 3), number),)) for number in (1.0, 2.0)]
    found = Inside.chosen(passes, [1, 0])
    assert found.hidden_states[0][:, 0, 0].tolist() == [2.0, 1.0]
    assert found.attentions == ()
