"""Plan the items: their order, and which are left out when time is short. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ITEMS", "Item", "Pace", "items_for", "keep_to"]

SECTIONS = {
    "machine": "The machine",
    "correctness": "Correctness",
    "speed": "Speed",
    "step": "Where a step's time goes",
}


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to find out.

    Attributes:
        name: Of the item, unique.
        section: A key of ``SECTIONS``.
        says: What it is, in a few words.
        seconds: What it takes on a large accelerator.
        rank: Importance; of two, the one with the higher number is left out first.
        group: Items of one group, one after another, share a process, and so models and memory.
        target: ``module:function`` in this package.
        shape: What to run it on; "" where it brings its own.
        argument: Handed to the function.
    """

    name: str
    section: str
    says: str
    seconds: float
    rank: int
    group: str
    target: str
    shape: str = ""
    argument: str = ""


def items_for(shapes: Sequence[str], device: str = "cuda") -> list[Item]:
    """All items for these shapes, in order; the first shape is the one that counts.

    A CPU has no faults that others must be kept from: there, two processes do.
    """
    items = list(ITEMS)
    for number, shape in enumerate(shapes):
        items += _speed(shape, number)
    items += _step(shapes[0])
    if device != "cpu":
        return items
    return [replace(item, group="others" if "transformers" in item.says else "") for item in items]


def _checks(module: str, group: str, *rows: tuple[str, str, float, int]) -> list[Item]:
    return [
        Item(name, "correctness", says, seconds, rank, group, f"{module}:{name}")
        for name, says, seconds, rank in rows
    ]


ITEMS: list[Item] = [
    Item("machine", "machine", "device, versions", 8, 0, "first", "machine:machine"),
    Item("bandwidth", "machine", "memory and matrix products", 4, 1, "first", "machine:bandwidth"),
    *_checks(
        "numbers",
        "first",
        ("dtypes", "every dtype and architecture against float32 on the CPU", 25, 1),
        ("paged", "paged against dense, on the device", 6, 2),
        ("recorded", "recorded against plain steps", 10, 1),
        ("windows", "sliding windows beyond their length", 6, 3),
        ("seeds", "tokens drawn here and on the CPU from equal logits", 20, 2),
    ),
    *_checks(
        "engine",
        "engine",
        ("ahead", "one step ahead against in order", 12, 1),
        ("company", "prefix hits, preemption and cancels in the middle", 15, 1),
        ("poison", "a row of NaN among others", 6, 3),
        ("lane", "beams, assisted and guided beside the batch", 20, 3),
        ("long", "a long text", 10, 2),
    ),
    Item("pytest", "correctness", "pytest -m cuda", 60, 4, "pytest", "pytest_run:run"),
]


def _speed(shape: str, number: int) -> list[Item]:
    """Ours and the others' figures for one shape."""
    later = 4 * number

    def item(side: str, says: str, seconds: float, rank: int, argument: str = "") -> Item:
        name = f"{shape} {side}"
        group = f"{shape} {'ours' if argument else side}"
        target = "speed:ours" if argument else f"speed:{side}"
        return Item(name, "speed", says, seconds, rank + later, group, target, shape, argument)

    other_ways = [
        item("unrecorded", "this library without CUDA graphs", 12, 3, "use_cuda_graph"),
        item("in order", "this library without the step ahead", 12, 3, "use_async_batching"),
        item("chunks", "this library with shorter chunks of prompts", 15, 5, "prefill_chunk_size"),
    ]
    return [
        item("ours", "this library", 70, 1, "plain"),
        *(other_ways if number == 0 else []),
        item("continuous", "transformers, continuous batching", 60, 2),
        item("padded", "transformers, generate", 50, 3),
    ]


def _step(shape: str) -> list[Item]:
    return [
        Item("profile", "step", "kernels, gaps, host", 20, 2, "step", "step_time:profile", shape),
        Item("parts", "step", "parts of a step, in other ways", 15, 4, "step", "step_time:parts"),
    ]


def keep_to(items: Sequence[Item], seconds: float, pace: float) -> list[Item]:
    """Choose what matters most and fits into the time.

    Args:
        items: What is still to do, in order.
        seconds: Time that is left.
        pace: How many times as long as said items take here.

    Returns:
        What is chosen, in the order of the items.
    """
    # Of equals the first goes first: what comes later builds on it.
    kept = set()
    for place in sorted(range(len(items)), key=lambda place: (items[place].rank, place)):
        needed = items[place].seconds * pace
        if needed <= seconds:
            seconds -= needed
            kept.add(place)
    return [item for place, item in enumerate(items) if place in kept]


class Pace:
    """Estimate the time of items from those that are done."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._said = self._taken = 0.0

    def add(self, item: Item, seconds: float) -> None:
        """Take note of an item that took so long."""
        self._said += item.seconds
        self._taken += seconds

    @property
    def factor(self) -> float:
        """Between a tenth and four; one until enough is known."""
        if self._said < 10:
            return 1.0
        return min(max(self._taken / self._said, 0.1), 4.0)
