"""Plan how a row picks its token, and draw from the largest scores of a row where they decide.

The processors of a row keep their order, which is the documented one for all rows, so that one
kind runs over all rows at once. A processor is known by its definition alone.

Most requests sample with temperature, top-k, top-p and min-p. These filters run on the 64 largest
scores of each row, the shortlist. A row that 64 scores do not decide is left to the filters over
the whole vocabulary; a row that they decide gets bit for bit the same token. Only on the CPU,
where reading a number costs no synchronisation.
"""

from __future__ import annotations

import itertools
import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from asyncgen.engine.sampling.random_draws import draw_among, largest
from asyncgen.generation.logits.base import Stage, definition_of
from asyncgen.generation.logits.filters import nucleus, scale_by_temperature, slice_sizes
from asyncgen.runtime.plain_values import holds_plain
from asyncgen.runtime.request_failure import request_failure
from asyncgen.runtime.transfer import host_ints, host_range

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from asyncgen.generation.logits.batched import Batched


_SIZE = 64
"""Length of the shortlist: the first slice of `keep_top_p`, so that sums are those of the slice."""

_COLUMNS = {"temperature": 1.0, "top_k": _SIZE, "top_p": -1.0, "min_p": -math.inf}
"""Columns that filters fill, in the order in which they run, with their neutral values.

The last three are the number of tokens that stay; the probability that may be cut, 1 - p (no sum
of probabilities is below the neutral value); and the logarithm of min-p.
"""


class RankedProcessor(NamedTuple):
    """A processor of a row, with its rank in the order of all rows.

    Attributes:
        rank: Its stage, its rank there, and its number among those that the user passed.
        number: Its number in the row.
        processor: The object.
        batched: Runs it over many rows at once; None where it runs on its row alone.
    """

    rank: tuple[int, int, int]
    number: int
    processor: Any
    batched: Batched | None


class RowPlan(NamedTuple):
    """Way from the logits of a row to its token.

    Attributes:
        ranked: Its processors in order, without the filters of the shortlist.
        picks: The way its token is picked: the likeliest one, drawn from all, or drawn from the
            shortlist.
        filters: Processors that run on the shortlist.
        columns: Their parameters, by the names of columns.
    """

    ranked: list[RankedProcessor]
    picks: Literal["greedy", "drawn", "listed"]
    filters: Sequence[Any] = ()
    columns: Mapping[str, float] = MappingProxyType({})


def plan_row(
    processors: Sequence[Callable[..., Any]],
    passed: Sequence[bool],
    vocab_size: int,
    *,
    draws: bool,
    can_list: bool,
) -> RowPlan:
    """Plan a row.

    Args:
        processors: All of its processors, in order.
        passed: True for those that the user passed as objects.
        vocab_size: V of the scores.
        draws: Whether its token is drawn.
        can_list: Whether its filters may run on the shortlist.
    """
    definitions = [definition_of(each) for each in processors]
    counter = itertools.count()
    ranks = [
        (int(Stage.USER), 0, next(counter))
        if definition is None or is_passed
        else (int(definition.stage), definition.rank, 0)
        for definition, is_passed in zip(definitions, passed, strict=True)
    ]
    if any(first > second for first, second in itertools.pairwise(ranks)):
        # Another order than the documented one is kept as it is.
        ranks = [(int(Stage.USER), 0, number) for number in range(len(processors))]
    ranked = []
    for number, (processor, definition) in enumerate(zip(processors, definitions, strict=True)):
        try:
            fits = not passed[number] or holds_plain(processor)
            fits = fits and definition is not None and definition.fits(processor, vocab_size)
        except BaseException as error:  # its attributes are wrong: alone it says so
            request_failure(error)
            fits = False
        batched = definition.batched if definition is not None and fits else None
        ranked.append(RankedProcessor(ranks[number], number, processor, batched))
    if not draws:
        return RowPlan(ranked, "greedy")
    filters = [each.processor for each in ranked if each.rank[0] > Stage.USER]
    columns = shortlist_columns(filters) if can_list else None
    if columns is None:
        return RowPlan(ranked, "drawn")
    return RowPlan(ranked[: len(ranked) - len(filters)], "listed", filters, columns)


def has_shortlist(vocab_size: int, device: torch.device) -> bool:
    """Tell whether a vocabulary on a device is drawn from by way of the shortlist."""
    return device.type == "cpu" and slice_sizes(
        torch.empty(1, vocab_size, dtype=torch.float32, device="cpu"), 1
    )[:1] == [_SIZE]


def shortlist_columns(filters: Sequence[Any]) -> dict[str, float] | None:
    """Return the columns of a row whose filters can run on the shortlist; None if they cannot.

    Args:
        filters: Processors in the order of the row.
    """
    columns: dict[str, float] = {}
    for each in filters:
        definition = definition_of(each)
        is_plain = getattr(each, "filter_value", -math.inf) == -math.inf
        is_plain = is_plain and getattr(each, "min_tokens_to_keep", 1) == 1
        if not is_plain or definition is None or definition.listed is None:
            return None
        name, value = definition.listed
        columns[name] = value(each)
    names = list(columns)
    in_order = names == [name for name in _COLUMNS if name in columns]
    if len(columns) < len(filters) or not in_order or names in ([], ["temperature"]):
        return None
    # All that top-k leaves, and one more that tells a tie, must be on the list.
    return columns if columns.get("top_k", 0) < _SIZE else None


class Shortlist:
    """Draws for rows whose filters run on their largest scores: one column a parameter."""

    def __init__(self, plans: Sequence[RowPlan]) -> None:
        """Lay out the parameters.

        Args:
            plans: Of the rows, each of which picks from the shortlist.
        """
        self._filters = [plan.filters for plan in plans]
        rows = [{**_COLUMNS, **plan.columns} for plan in plans]
        self._temperature, top_k, self._cut, self._log_min_p = (
            torch.tensor([row[name] for row in rows], dtype=torch.float32, device="cpu")[:, None]
            for name in _COLUMNS
        )
        self._top_k = top_k.long()
        self._has_temperature = bool((self._temperature != 1.0).any())
        self._has_top_k = self._top_k < _SIZE
        self._has_top_p = self._cut >= 0
        self._some_have_top_p = bool(self._has_top_p.any())
        self._has_min_p = self._log_min_p > -math.inf

    def draw(
        self, scores: Tensor, keys: Tensor, draw_all: Callable[[Tensor, Tensor], tuple]
    ) -> tuple[Tensor, Tensor]:
        """Draw one token a row.

        Args:
            scores: Scores before these filters, float32 [R, V].
            keys: `HashDraw.key` of each row, int64 [R].
            draw_all: Draws from scores over the whole vocabulary, for rows that are not decided.

        Returns:
            Tokens, int64 [R], and their noisy scores [R]: not finite where there is none to draw.
        """
        values, index = largest(scores, _SIZE)
        if self._has_temperature:
            values = scale_by_temperature(values, self._temperature)
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
        for number, row in enumerate(rows.tolist()):
            for each in self._filters[row]:
                by_kind.setdefault(definition_of(each), []).append((number, each))
        for kind in sorted(by_kind, key=lambda each: each.place):
            numbers, filters = zip(*by_kind[kind], strict=True)
            index = host_ints(numbers)
            some.index_copy_(0, index, kind.batched.bind(filters, some.device)(some[index]))
        return some

    def _keep(self, scores: Tensor, values: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Ban what the filters ban, [R, 64], and tell which rows are decided, bool [R]."""
        ranks = host_range(_SIZE)
        edge = values.gather(1, self._top_k - 1)
        next_one = values.gather(1, self._top_k.clamp(max=_SIZE - 1))
        decided = (edge > next_one) | ~self._has_top_k
        kept = torch.where(ranks < self._top_k, values, -torch.inf)
        if self._some_have_top_p:

            def likelihood(rows: Tensor) -> Tensor:
                # Rows without top-p stay zero; nothing reads theirs.
                own = rows[self._has_top_p[rows, 0]]
                found = torch.zeros(len(rows), _SIZE, dtype=torch.float32, device="cpu")
                if len(own):
                    scaled = scale_by_temperature(scores[own], self._temperature[own])
                    found[self._has_top_p[rows, 0]] = scaled.softmax(-1).gather(1, index[own])
                return found

            counts, clear = nucleus(kept, self._cut, 1, likelihood)
            kept = torch.where((ranks < counts) | ~self._has_top_p, kept, -torch.inf)
            decided &= clear | ~self._has_top_p
        limit = kept[:, :1] + self._log_min_p
        # Scores beyond the shortlist are at most its last one.
        decided &= (kept[:, -1:] < limit) | ~self._has_min_p
        is_whole = self._has_top_k | self._has_top_p | self._has_min_p
        decided &= is_whole & kept[:, :1].isfinite()
        return torch.where(kept < limit, -torch.inf, kept), decided[:, 0]
