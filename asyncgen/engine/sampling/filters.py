"""Processors that look at whole rows, run over all rows that have them at once.

The functions are those that the processors themselves call, with one parameter a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from asyncgen.generation.logits import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
from asyncgen.generation.logits.filters import (
    keep_min_p,
    keep_top_k,
    keep_top_p,
    scale_by_temperature,
)
from asyncgen.generation.logits.surprise import (
    keep_above_epsilon,
    keep_above_eta,
    keep_top_h,
    keep_typical,
)
from asyncgen.transfer import to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from asyncgen.engine.sampling.edits import Part
    from asyncgen.engine.sampling.scores import BatchScores

__all__ = ["PARAMETERS", "FilterRows", "bind"]

PARAMETERS: dict[type, tuple[str, Callable[..., Tensor]] | None] = {
    InfNanRemoveLogitsProcessor: None,
    TemperatureLogitsWarper: ("temperature", scale_by_temperature),
    TopHLogitsWarper: ("top_h", keep_top_h),
    TopKLogitsWarper: ("top_k", keep_top_k),
    TopPLogitsWarper: ("top_p", keep_top_p),
    MinPLogitsWarper: ("min_p", keep_min_p),
    TypicalLogitsWarper: ("mass", keep_typical),
    EpsilonLogitsWarper: ("epsilon", keep_above_epsilon),
    EtaLogitsWarper: ("epsilon", keep_above_eta),
    LogitNormalization: None,
}
"""The parameter of each kind and its function; None where there is no parameter."""

_SHARED = ("filter_value", "min_tokens_to_keep")


class FilterRows:
    """One kind of filter, for all rows that have it."""

    def __init__(self, parts: list[Part], scores: BatchScores) -> None:
        """Lay the parameters out, one column for the rows that agree in all else.

        Args:
            parts: Processors of one type, one or none a row.
            scores: For the number of rows, and the device.
        """
        groups: dict[tuple[Any, ...], list[Part]] = {}
        for part in parts:
            shared = tuple(getattr(part.processor, name, None) for name in _SHARED)
            groups.setdefault(shared, []).append(part)
        self._groups = [
            (
                _row_numbers([part.row for part in group], scores),
                bind([part.processor for part in group], scores.logits.device),
            )
            for group in groups.values()
        ]

    def __call__(self, scores: BatchScores) -> None:
        """Filter the scores of one step."""
        for numbers, function in self._groups:
            if numbers is None:
                scores.values = function(scores.values)
            else:
                some = scores.values.index_select(0, numbers)
                scores.values.index_copy_(0, numbers, function(some))


def _row_numbers(rows: list[int], scores: BatchScores) -> Tensor | None:
    """Row numbers as a tensor; None for all rows."""
    return None if len(rows) == len(scores.rows) else scores.tensor(rows)


def bind(processors: Sequence[Any], device: torch.device) -> Callable[[Tensor], Tensor]:
    """Bind the parameters of some rows to the function of their processors.

    Args:
        processors: One a row, of one type, which differ in the parameter alone.
        device: Where the scores are.

    Returns:
        A function of the scores of these rows, [r, V].
    """
    first = processors[0]
    named = PARAMETERS[type(first)]
    if named is None:
        nothing = torch.empty(0)
        return lambda some: first(nothing, some)
    name, function = named
    given = [getattr(each, name) for each in processors]
    shared = {each: getattr(first, each) for each in _SHARED if hasattr(first, each)}
    if function is keep_top_k:
        shared["most"] = max(given)
        column = to_device(torch.tensor(given), device)[:, None]
    elif function is keep_min_p:
        # It reads the numbers, which on a device would be a synchronisation.
        column = torch.tensor(given, dtype=torch.float64)[:, None]
    else:
        column = to_device(torch.tensor(given, dtype=torch.float64), device)[:, None]
    return lambda some: function(some, column, **shared)
