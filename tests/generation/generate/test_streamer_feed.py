"""A streamer gets the prompts, then columns of ids, however unevenly the rows settle."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncgen.generation.generate.streamer_feed import StreamerFeed
from asyncgen.generation.strategies.step import Step
from streamers import BaseStreamer

if TYPE_CHECKING:
    from torch import Tensor

PAD = 99


class Recorder(BaseStreamer):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.values: list[list[int]] = []
        self.ended = False

    def put(self, value: Tensor) -> None:
        """Keep ids."""
        self.values.append(value.tolist())

    def end(self) -> None:
        """Keep the end."""
        self.ended = True


def test_one_row_gets_several_ids_at_once() -> None:
    recorder = Recorder()
    feed = StreamerFeed(recorder, pad_token_id=PAD)
    feed.begin(torch.tensor([[1, 2]]))
    for ids in ([], [3, 4], [], [5]):
        feed.step(Step([ids]))
    feed.step(Step([[6]], tokens=torch.tensor([6])))
    feed.end()
    assert recorder.values == [[[1, 2]], [3, 4], [5], [6]]
    assert recorder.ended


@given(st.integers(0, 2**32))
def test_rows_wait_for_each_other(seed: int) -> None:
    choice = random.Random(seed)
    rows = [
        [choice.randrange(10) for _ in range(choice.randint(0, 7))]
        for _ in range(choice.randint(2, 4))
    ]
    recorder = Recorder()
    feed = StreamerFeed(recorder, copies=len(rows), pad_token_id=PAD)
    feed.begin(torch.tensor([[0]]))
    assert len(recorder.values[0]) == len(rows)
    left = [list(row) for row in rows]
    ended = [False] * len(rows)
    while not all(ended):
        ids: list[list[int]] = []
        reasons: list[str | None] = []
        for place, row in enumerate(left):
            count = choice.randint(0, len(row))
            ids.append(row[:count])
            left[place] = row[count:]
            stops = not ended[place] and not left[place] and choice.random() < 0.5
            reasons.append("stop" if stops else None)
            ended[place] |= stops
        feed.step(Step(ids, reasons))
    width = max(map(len, rows))
    columns = recorder.values[1:]
    assert len(columns) == width
    for place, row in enumerate(rows):
        assert [column[place] for column in columns] == row + [PAD] * (width - len(row))
