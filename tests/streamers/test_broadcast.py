"""Everybody sees everything, rows keep their order, and the last to leave cancels."""

from __future__ import annotations

import pytest
import torch

from streamers.base_streamer import RowText
from streamers.broadcast import Broadcast, Ending, Item, Subscription
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


def joined(broadcast: Broadcast) -> Subscription[Listed]:
    subscription = Subscription(Listed())
    broadcast.subscribe(subscription)
    return subscription


def everything(subscription: Subscription[Listed]) -> list[Item]:
    items = []
    while (item := subscription.next_item()) is not None:
        items.append(item)
    return items


def test_unread_text_is_merged_by_row() -> None:
    broadcast = Broadcast()
    broadcast.touch()
    subscription = joined(broadcast)
    for text, row in (("a", 1), ("b", 0), ("c", 1), ("d", 0)):
        broadcast.publish(RowText(text, row))
    broadcast.finish()
    broadcast.touch()
    broadcast.publish(RowText("next", 0))
    items = everything(subscription)
    assert items == ["ac", "bd", Ending(), "next"]
    assert [item.row for item in items if isinstance(item, RowText)] == [1, 0, 0]


def test_a_late_reader_gets_the_round_from_its_start() -> None:
    broadcast = Broadcast()
    broadcast.touch()
    broadcast.publish(RowText("old"))
    broadcast.finish()
    broadcast.touch()
    broadcast.publish(RowText("a"))
    early = joined(broadcast)
    broadcast.publish(RowText("b"))
    broadcast.finish()
    late = joined(broadcast)
    assert everything(early) == everything(late) == ["ab", Ending()]


def test_the_last_to_leave_cancels() -> None:
    broadcast = Broadcast()
    subscriptions = [joined(broadcast) for _ in range(2)]
    for i, subscription in enumerate(subscriptions):
        broadcast.begin_reading(subscription, i)
        broadcast.begin_reading(subscription, 10 + i)
    broadcast.leave(subscriptions[0], 0)
    broadcast.leave(subscriptions[0], 10)
    broadcast.leave(subscriptions[1], 1)
    assert not broadcast.cancelled
    broadcast.leave(subscriptions[1], 11)
    assert broadcast.cancelled


def test_leaving_after_the_end_cancels_nothing() -> None:
    broadcast = Broadcast()
    broadcast.touch()
    subscription = joined(broadcast)
    broadcast.begin_reading(subscription, 1)
    broadcast.finish()
    broadcast.leave(subscription, 1)
    broadcast.close()
    assert not broadcast.cancelled


def test_a_round_ends_once() -> None:
    broadcast = Broadcast()
    broadcast.touch()
    subscription = joined(broadcast)
    broadcast.finish()
    broadcast.finish(KeyError("late"))
    assert everything(subscription) == [Ending()]


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
