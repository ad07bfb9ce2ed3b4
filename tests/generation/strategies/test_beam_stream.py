"""Test the stream of a beam search: common prefixes, then the rest, each id once."""

from __future__ import annotations

import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncgen.generation.strategies.beam_stream import BeamResult, BeamStream, common_length

NONE = torch.zeros(1, 1)


@given(st.lists(st.lists(st.integers(0, 2), min_size=6, max_size=6), min_size=1, max_size=4))
def test_common_prefix(rows: list[list[int]]) -> None:
    ids = torch.tensor(rows)
    agreed = next(
        (place for place, column in enumerate(zip(*rows, strict=True)) if len({*column}) > 1), 6
    )
    for end in range(7):
        for start in range(min(agreed, end) + 1):
            assert common_length(ids, start, end) == min(agreed, end)
    assert common_length(ids, 5, 3) == 5 if agreed >= 5 else True


@given(st.integers(0, 2**32))
def test_ids_are_handed_on_once_and_in_order(seed: int) -> None:
    choice = random.Random(seed)
    final = [9, 9, *(choice.randrange(3) for _ in range(8))]
    stream = BeamStream(1, 2, 2, keep_logits=True)
    sent: list[list[int]] = [[], []]
    logits: list[list[float]] = [[], []]

    def take() -> None:
        step = stream.step(NONE, NONE)
        assert step.settled_logits is not None
        for row in (0, 1):
            sent[row] += step.token_ids[row]
            logits[row] += [float(each) for each in step.settled_logits[row]]

    for length in range(3, 11):
        stream.keep(length - 3, torch.tensor([10.0, 20.0]) + length)
        agreed = choice.randint(len(sent[0]) + 2, length)
        rows = torch.tensor([final[:length]] * 3)
        rows[1, agreed:] = 7
        end = common_length(rows, stream.sent[0], length)
        stream.settle(0, rows[1], end, torch.ones(8, dtype=torch.int64))
        take()
        assert sent[0] == final[2:agreed]
    assert not stream.is_done[0]
    other = torch.tensor([9, 9, 1])
    ones = torch.ones(8, dtype=torch.int64)
    stream.finish(
        0, [BeamResult(torch.tensor(final), ones, "stop"), BeamResult(other, ones * 0, "stop")]
    )
    take()
    assert sent == [final[2:], [1]]
    assert logits == [[20.0 + length for length in range(3, 11)], [13.0]]
    assert stream.is_done[0]


def test_an_end_that_no_beam_chose_has_no_logits() -> None:
    stream = BeamStream(1, 1, 1, keep_logits=True)
    stream.keep(0, torch.zeros(2))
    origins = torch.tensor([1, -1])
    stream.finish(0, [BeamResult(torch.tensor([5, 6, 2]), origins, "stop")])
    step = stream.step(NONE, NONE)
    assert step.token_ids == [[6]]
    assert step.settled_logits is not None
    assert len(step.settled_logits[0]) == 1


def test_cancelled_beams_emit_no_tokens() -> None:
    stream = BeamStream(1, 1, 1)
    stream.finish(0, [BeamResult(torch.tensor([5, 6]), torch.tensor([0]), "cancelled")])
    step = stream.step(NONE, NONE)
    assert step.token_ids == [[]]
    assert step.reasons == ["cancelled"]
