"""Slots: a step that is run again finds the same state, and no row meets another one's."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.states import StateStorage, slot_bytes
from asyncgen.families.config import ModelConfig
from asyncgen.models.contexts import dense_context
from asyncgen.models.mixers.packed_states import PackedStates
from tests.models.build import random_model
from tests.models.same import assert_same

RAW = {
    "model_type": "mamba2",
    "vocab_size": 61,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_heads": 4,
    "head_dim": 8,
    "n_groups": 2,
    "state_size": 5,
}
TEXT = [5, 17, 3, 44, 9, 21, 60, 7, 8, 30]


@dataclass(frozen=True)
class Row:
    source: int
    target: int
    start: int
    count: int


@pytest.fixture(scope="module")
def core() -> object:
    return random_model(RAW)


def run(
    core: object, states: PackedStates, rows: list[Row], text: list[int] = TEXT
) -> torch.Tensor:
    states.lay_out(rows)
    ids = [token for row in rows for token in TEXT[row.start : row.start + row.count]]
    last = torch.tensor([row.count for row in rows]).cumsum(0) - 1
    return core.decode_packed(torch.tensor(ids), torch.tensor(ids), last, states)  # type: ignore[attr-defined]


def whole(core: object, length: int) -> torch.Tensor:
    context = dense_context(core, DynamicCache())
    ids = torch.tensor([TEXT[:length]])
    return core.decode(ids, ids, context)[0]  # type: ignore[attr-defined]


def filled(core: object, slots: int) -> PackedStates:
    """Make slots full of NaN, like memory that was never written."""
    storage = StateStorage(core.config, slots)  # type: ignore[attr-defined]
    for tensor in (*storage.windows, *storage.states):
        tensor[:-1].fill_(torch.nan)
    return PackedStates(storage)


def test_rows_in_chunks_and_single_steps_share_a_step(core: object) -> None:
    states = filled(core, 6)
    run(core, states, [Row(-1, 2, 0, 4), Row(-1, 0, 0, 1)])
    run(core, states, [Row(0, 3, 1, 1), Row(2, 4, 4, 3), Row(-1, 1, 0, 3)])
    found = run(core, states, [Row(4, 2, 7, 1), Row(3, 0, 2, 1), Row(1, 5, 3, 5)])
    for logits, length in zip(found, (8, 3, 8), strict=True):
        assert_same(logits, whole(core, length))


def test_a_step_can_be_run_again(core: object) -> None:
    states = filled(core, 2)
    first = run(core, states, [Row(-1, 1, 0, 4)])
    assert_same(run(core, states, [Row(-1, 1, 0, 4)]), first)
    then = run(core, states, [Row(1, 0, 4, 2)])
    assert_same(run(core, states, [Row(1, 0, 4, 2)]), then)
    assert_same(then[0], whole(core, 6))


def test_several_go_on_from_one_slot(core: object) -> None:
    states = filled(core, 4)
    run(core, states, [Row(-1, 0, 0, 4)])
    found = run(core, states, [Row(0, 1, 4, 2), Row(0, 2, 4, 5), Row(0, 3, 4, 2)])
    for logits, length in zip(found, (6, 9, 6), strict=True):
        assert_same(logits, whole(core, length))
    assert_same(run(core, states, [Row(0, 1, 4, 1)])[0], whole(core, 5))


def test_the_next_text_of_a_slot_begins_anew(core: object) -> None:
    states = filled(core, 2)
    for _ in range(3):
        run(core, states, [Row(-1, 0, 0, 4)])
        found = run(core, states, [Row(0, 1, 4, 1)])
        assert_same(found[0], whole(core, 5))
    with pytest.raises(RuntimeError, match="slot 0 has no state behind 7 tokens"):
        states.lay_out([Row(0, 1, 7, 1)])


def test_slot_bytes_equals_the_memory_of_a_slot() -> None:
    config = ModelConfig.from_hf(RAW)
    storage = StateStorage(config, 3)
    total = sum(tensor.nbytes for tensor in (*storage.windows, *storage.states))
    assert total == slot_bytes(config, torch.float32) * 4  # and a text that has not begun
    with pytest.raises(ValueError, match="`num_slots`"):
        StateStorage(config, 0)
