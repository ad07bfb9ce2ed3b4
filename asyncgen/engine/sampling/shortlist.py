"""Where each processor of a row runs: over the scores of all rows, or over its largest alone.

A row's processors keep their order, which is the documented one for all rows alike, so that one
kind runs over all rows that have it at once. It knows processors by their definitions alone.

Most requests sample with temperature, top-k, top-p and min-p, and these run on the 64 largest
scores of each row, so that nothing else is ever looked at. A row that 64 scores do not decide is
left to the filters over whole vocabularies: what is decided is bit for bit what they would say.
For processors on the CPU, where looking at a number costs no synchronisation.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from asyncgen.engine.sampling.random_draws import draw_among, largest
from asyncgen.generation.logits.base import Stage, definition_of
from asyncgen.generation.logits.filters import nucleus, scale_by_temperature, slice_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from asyncgen.generation.logits.batched import Batched


_SIZE = 64
"""The first slice that `keep_top_p` looks at: of the same scores, the same sums."""

_COLUMNS = {"temperature": 1.0, "top_k": _SIZE, "top_p": -1.0, "min_p": -math.inf}
"""What filters can fill, in the order in which they work, and what changes nothing.

The last three are how many tokens stay; the probability of what may go, 1 - p (no sum of
probabilities is below the neutral value); and the logarithm of min-p.
"""


def is_listable(filters: Sequence[Callable[..., Any]], scores: Tensor) -> bool:
    """Tell whether a row's filters can work on its largest scores alone.

    Args:
        filters: In the order in which the row has them.
        scores: For size and device, [R, V].
    """
    if scores.device.type != "cpu" or slice_sizes(scores, 1)[:1] != [_SIZE]:
        return False
    filled = _filled(filters)
    names = list(filled)
    if len(filled) < len(filters) or names != [name for name in _COLUMNS if name in filled]:
        return False
    # All that top-k leaves, and one more that tells a tie, must be on the list.
    return names not in ([], ["temperature"]) and filled.get("top_k", 0) < _SIZE


def _filled(filters: Sequence[Any]) -> dict[str, float]:
    """The columns that some filters fill, without those that cannot work on a list."""
    filled = {}
    for each in filters:
        definition = definition_of(each)
        plain = getattr(each, "filter_value", -math.inf) == -math.inf
        plain = plain and getattr(each, "min_tokens_to_keep", 1) == 1
        if plain and definition is not None and definition.listed is not None:
            name, value = definition.listed
            filled[name] = value(each)
    return filled


class Shortlist:
    """The filters of some rows, laid out as one column each."""

    def __init__(self, filters: Sequence[Sequence[Callable[..., Any]]]) -> None:
        """Lay out the parameters.

        Args:
            filters: Those of each row, listable.
        """
        self._filters = filters
        rows = [_COLUMNS | _filled(own) for own in filters]
        self._heat, ranks, self._limits, self._margins = (
            torch.tensor([row[name] for row in rows])[:, None] for name in _COLUMNS
        )
        self._ranks = ranks.long()
        self._any_heat = bool((self._heat != 1.0).any())
        self._has_top_k = self._ranks < _SIZE
        self._has_top_p = self._limits >= 0
        self._any_top_p = bool(self._has_top_p.any())
        self._has_min_p = self._margins > -math.inf

    def draw(
        self, scores: Tensor, keys: Tensor, draw_all: Callable[[Tensor, Tensor], tuple]
    ) -> tuple[Tensor, Tensor]:
        """Draw one token a row.

        Args:
            scores: Scores before these filters, float32 [R, V].
            keys: `HashDraw.key` of each row, int64 [R].
            draw_all: Draws from scores over whole vocabularies, for rows that need it.

        Returns:
            Tokens, int64 [R], and their noisy scores [R]: not finite where there is none to draw.
        """
        values, index = largest(scores, _SIZE)
        if self._any_heat:
            values = scale_by_temperature(values, self._heat)
        kept, decided = self._keep(scores, values, index)
        tokens, best = draw_among(kept, index, keys)
        rows = (~decided).nonzero()[:, 0]
        if len(rows):
            tokens[rows], best[rows] = draw_all(self._filtered(scores, rows), keys[rows])
        return tokens, best

    def _filtered(self, scores: Tensor, rows: Tensor) -> Tensor:
        """Run the filters of some rows, int64 [r], on all their scores, [r, V]."""
        some = scores[rows]
        by_kind: dict[Any, list[tuple[int, Any]]] = {}
        for place, row in enumerate(rows.tolist()):
            for each in self._filters[row]:
                by_kind.setdefault(definition_of(each), []).append((place, each))
        for kind in sorted(by_kind, key=lambda each: each.place):
            places, filters = zip(*by_kind[kind], strict=True)
            index = torch.tensor(places)
            some.index_copy_(0, index, kind.batched.bind(filters, some.device)(some[index]))
        return some

    def _keep(self, scores: Tensor, values: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Ban what the filters ban, [R, 64], and tell which rows are decided, bool [R]."""
        places = torch.arange(_SIZE)
        edge = values.gather(1, self._ranks - 1)
        next_one = values.gather(1, self._ranks.clamp(max=_SIZE - 1))
        decided = (edge > next_one) | ~self._has_top_k
        kept = torch.where(places < self._ranks, values, -torch.inf)
        if self._any_top_p:
            counts, clear = self._nucleus(scores, kept, index)
            kept = torch.where((places < counts) | ~self._has_top_p, kept, -torch.inf)
            decided &= clear | ~self._has_top_p
        limit = kept[:, :1] + self._margins
        # What is not on the list is no larger than the last one that is.
        decided &= (kept[:, -1:] < limit) | ~self._has_min_p
        is_whole = self._has_top_k | self._has_top_p | self._has_min_p
        decided &= is_whole & kept[:, :1].isfinite()
        return torch.where(kept < limit, -torch.inf, kept), decided[:, 0]

    def _nucleus(self, scores: Tensor, kept: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        def likelihood(rows: Tensor) -> Tensor:
            # Rows without top-p come here as well; theirs is not looked at.
            own = rows[self._has_top_p[rows, 0]]
            found = torch.zeros(len(rows), _SIZE)
            if len(own):
                scaled = scale_by_temperature(scores[own], self._heat[own])
                found[self._has_top_p[rows, 0]] = scaled.softmax(-1).gather(1, index[own])
            return found

        return nucleus(kept, self._limits, 1, likelihood)


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
