"""Where each processor of a row runs among those of other rows, found out once in its life.

A row's processors keep their order, which is the documented one for all rows alike, so that one
kind runs over all rows that have it at once. It knows processors by their definitions alone.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from asyncgen.engine.sampling.shortlist import is_listable
from asyncgen.generation.logits.definition import Stage, definition_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from asyncgen.generation.logits.batched import Batched


class Placed(NamedTuple):
    """A processor of a row.

    Attributes:
        rank: Its stage, its rank there, and among those that the user passed its number.
        number: Its number in the row.
        processor: The object.
        batched: What runs it over many rows; None where it runs on its row alone.
    """

    rank: tuple[int, int, int]
    number: int
    processor: Any
    batched: Batched | None


class Plan(NamedTuple):
    """What a row's processors amount to.

    Attributes:
        placed: Its processors in their order, without ``filters``.
        picks: How its token is picked: the likeliest one, drawn from all, or drawn from a list of
            the likeliest.
        filters: What works on that list.
    """

    placed: list[Placed]
    picks: Literal["greedy", "drawn", "listed"]
    filters: list[Any]


def make_plan(placed: list[Placed], scores: Tensor, *, draws: bool, needs_all: bool) -> Plan:
    """Find out how a row picks.

    Args:
        placed: All of its processors.
        scores: For size and device, [R, V].
        draws: Whether its tokens are drawn.
        needs_all: Whether someone looks at its processed scores.
    """
    if not draws:
        return Plan(placed, "greedy", [])
    filters = [each.processor for each in placed if each.rank[0] > Stage.USER]
    if needs_all or not is_listable(filters, scores):
        return Plan(placed, "drawn", [])
    return Plan(placed[: len(placed) - len(filters)], "listed", filters)


def place(
    processors: Sequence[Callable[..., Any]], passed: Sequence[bool], vocab_size: int
) -> list[Placed]:
    """Place the processors of a row.

    Args:
        processors: In their order.
        passed: Which of them the user passed as objects.
        vocab_size: V of the scores.
    """
    definitions = [definition_of(each) for each in processors]
    counter = itertools.count()
    ranks = [
        (int(Stage.USER), 0, next(counter))
        if definition is None or mine
        else (*definition.place, 0)
        for definition, mine in zip(definitions, passed, strict=True)
    ]
    if any(first > second for first, second in itertools.pairwise(ranks)):
        # In an order of its own; then it runs in that order.
        ranks = [(int(Stage.USER), 0, number) for number in range(len(processors))]
    return [
        Placed(
            ranks[number],
            number,
            processor,
            definition.batched if definition and definition.fits(processor, vocab_size) else None,
        )
        for number, (processor, definition) in enumerate(zip(processors, definitions, strict=True))
    ]
