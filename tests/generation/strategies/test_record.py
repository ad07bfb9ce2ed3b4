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
