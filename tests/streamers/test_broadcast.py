"""Everybody sees everything, rows keep their order, and the last to leave cancels."""

from __future__ import annotations

import pytest
import torch

from streamers.base_streamer import RowText
from streamers.broadcast import Broadcast, Ending, Item, Seat
from streamers.cancel import Cancelled
from streamers.errors import ProducerDiedError, ProducerError


class Listed:
    """An inbox that is a list."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.closed = False

    def put_nowait(self, item: Item) -> bool:
        if not self.closed:
            self.items.append(item)
        return not self.closed

    def drain(self) -> list[Item]:
        items, self.items = self.items, []
        return items

    def close(self) -> None:
        self.closed = True

    abandon = close


def joined(channel: Broadcast) -> Seat[Listed]:
    seat = Seat(Listed())
    channel.join(seat)
    return seat


def everything(seat: Seat[Listed]) -> list[Item]:
    items = []
    while (item := seat.next_ready()) is not None:
        items.append(item)
    return items


def test_unread_text_is_merged_by_row() -> None:
    channel = Broadcast()
    channel.touch()
    seat = joined(channel)
    for text, row in (("a", 1), ("b", 0), ("c", 1), ("d", 0)):
        channel.publish(RowText(text, row))
    channel.finish()
    channel.touch()
    channel.publish(RowText("next", 0))
    items = everything(seat)
    assert items == ["ac", "bd", Ending(), "next"]
    assert [item.row for item in items if isinstance(item, RowText)] == [1, 0, 0]


def test_a_late_reader_gets_the_round_from_its_start() -> None:
    channel = Broadcast()
    channel.touch()
    channel.publish(RowText("old"))
    channel.finish()
    channel.touch()
    channel.publish(RowText("a"))
    early = joined(channel)
    channel.publish(RowText("b"))
    channel.finish()
    late = joined(channel)
    assert everything(early) == everything(late) == ["ab", Ending()]


def test_the_last_to_leave_cancels() -> None:
    channel = Broadcast()
    seats = [joined(channel) for _ in range(2)]
    for i, seat in enumerate(seats):
        channel.sit(seat, i)
        channel.sit(seat, 10 + i)
    channel.leave(seats[0], 0)
    channel.leave(seats[0], 10)
    channel.leave(seats[1], 1)
    assert not channel.cancelled
    channel.leave(seats[1], 11)
    assert channel.cancelled


def test_leaving_after_the_end_cancels_nothing() -> None:
    channel = Broadcast()
    channel.touch()
    seat = joined(channel)
    channel.sit(seat, 1)
    channel.finish()
    channel.leave(seat, 1)
    channel.close()
    assert not channel.cancelled


def test_a_round_ends_once() -> None:
    channel = Broadcast()
    channel.touch()
    seat = joined(channel)
    channel.finish()
    channel.finish(KeyError("late"))
    assert everything(seat) == [Ending()]


def test_errors_are_chained_and_fresh_for_each_reader() -> None:
    original = KeyError("lost")
    seen = []
    for _ in range(2):
        with pytest.raises(
            ProducerError, match="generation failed with KeyError: 'lost'"
        ) as caught:
            Ending(original).raise_error()
        assert caught.value.__cause__ is original
        seen.append(caught.value)
    assert seen[0] is not seen[1]
    with pytest.raises(ProducerDiedError, match="gone"):
        Ending(ProducerDiedError("gone")).raise_error()
    Ending().raise_error()


def test_it_is_a_flag() -> None:
    flag = Cancelled()
    assert not flag
    assert not flag.is_set()
    flag.set()
    flag.set()
    assert flag
    assert flag.is_set()


def test_it_is_a_stopping_criterion() -> None:
    flag = Cancelled()
    ids = torch.zeros(3, 5, dtype=torch.long)
    assert flag(ids, torch.zeros(3, 7)).tolist() == [False] * 3
    flag.set()
    answer = flag(ids, None, past=1)
    assert answer.tolist() == [True] * 3
    assert answer.dtype == torch.bool
