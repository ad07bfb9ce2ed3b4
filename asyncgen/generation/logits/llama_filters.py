"""Filters of llama.cpp before a token is drawn: top-n-sigma, XTC and a temperature that moves.

Each is a pure function from scores to scores, out of place, and a thin class. With one of them all
filters run in llama.cpp's order: top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.base import (
    ColumnsProcessor,
    Definition,
    LogitsProcessor,
    Stage,
    as_float,
    check_positive,
    check_share,
    is_finite,
    round_to_dtype,
)
from asyncgen.generation.logits.batched import Columns, column
from asyncgen.generation.logits.filters import row_sum

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from asyncgen.generation.logits.base import Parameter
    from asyncgen.generation.logits.batched import BatchScores, RowProcessor

_INF = float("inf")

MOST_XTC_THRESHOLD = 0.5
"""Two tokens that are likelier than this cannot be; above it XTC does nothing."""


def keep_top_n_sigma(scores: Tensor, top_n_sigma: Parameter) -> Tensor:
    """Keep the scores within some standard deviations of the highest.

    Tang et al. 2024, arXiv 2411.07641. Banned tokens count neither for the mean nor for the
    deviation.

    Args:
        scores: [B, V].
        top_n_sigma: How many standard deviations, above 0. Scalar or [B, 1].

    Returns:
        [B, V]; the highest score always stays.
    """
    there = scores != -_INF
    count = there.sum(-1, keepdim=True)
    mean = row_sum(torch.where(there, scores, 0.0)) / count
    apart = torch.where(there, scores - mean, 0.0)
    deviation = (row_sum(apart * apart) / count).sqrt()
    limit = scores.amax(-1, keepdim=True) - deviation * round_to_dtype(top_n_sigma, scores)
    return torch.where(scores < limit, -_INF, scores)


class TopNSigmaLogitsWarper(ColumnsProcessor):
    """Keeps scores close to the highest (`keep_top_n_sigma`)."""

    definition = Definition(
        Stage.WARPER,
        15,
        "top_n_sigma",
        build=lambda kind, value, _: kind(as_float(value)),
        batched=Columns(keep_top_n_sigma, "top_n_sigma"),
    )

    def __init__(self, top_n_sigma: float) -> None:
        """Check the number of standard deviations.

        Args:
            top_n_sigma: A float above 0.

        Raises:
            InvalidRequestError: It is none.
        """
        self.top_n_sigma = check_positive("top_n_sigma", top_n_sigma)


def exclude_top_choices(scores: Tensor, threshold: Parameter) -> Tensor:
    """Leave out the likeliest tokens, but for the last one that reaches a probability.

    XTC, as llama.cpp has it: where at least two tokens reach the threshold, all of them go but the
    least likely.

    Args:
        scores: [B, V].
        threshold: Least probability of a top choice, in [0, 1]. Scalar or [B, 1].

    Returns:
        [B, V].
    """
    probabilities = scores.softmax(-1)
    top = probabilities >= round_to_dtype(threshold, scores)
    top &= scores != -_INF
    # The first of the smallest from behind: of equally likely tokens the last one stays.
    behind = torch.where(top, probabilities, _INF).flip(-1).argmin(-1, keepdim=True)
    return torch.where(top.scatter(-1, scores.shape[-1] - 1 - behind, False), -_INF, scores)


class XTCLogitsWarper(LogitsProcessor):
    """Leaves out the likeliest tokens now and then (`exclude_top_choices`).

    The choice when to is a function of row and position alone, so that a request makes the same
    ones whatever else is in the batch, and wherever it goes on.
    """

    definition = Definition(
        Stage.WARPER,
        100,
        "xtc_probability",
        off=0.0,
        build=lambda kind, probability, setting: kind(
            probability, setting.value("xtc_threshold"), setting.value("chance")
        ),
        batched=lambda parts, _: _BatchedXTC(parts),
        for_sample=lambda own, number: own.of_row(number),
    )

    def __init__(
        self, probability: float, threshold: float, chance: Callable[[int, int], float]
    ) -> None:
        """Check the parameters.

        Args:
            probability: How often tokens are left out, in [0, 1].
            threshold: Least probability of a top choice, in [0, 1]; above 0.5 nothing happens.
            chance: (row, position) -> a random number in [0, 1).

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        self.probability = check_share("xtc_probability", probability)
        self.threshold = check_share("xtc_threshold", threshold)
        self._chance = chance
        self._row = 0

    def of_row(self, number: int) -> XTCLogitsWarper:
        """Return one whose first row has this number."""
        own = copy.copy(self)
        own._row = number
        return own

    def is_due(self, position: int, row: int = 0) -> bool:
        """Tell whether tokens are left out at a position of a row."""
        if self.threshold > MOST_XTC_THRESHOLD:
            return False
        return self._chance(self._row + row, position) < self.probability

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Leave top choices out where it is due; ids are int64 [B, T], scores [B, V]."""
        due = [self.is_due(input_ids.shape[1], row) for row in range(len(scores))]
        if not any(due):
            return scores
        chosen = torch.tensor(due, dtype=torch.bool, device=scores.device)[:, None]
        return torch.where(chosen, exclude_top_choices(scores, self.threshold), scores)


class _BatchedXTC:
    """Leaves top choices out of the rows where it is due."""

    def __init__(self, parts: list[RowProcessor]) -> None:
        self._parts = parts

    def __call__(self, scores: BatchScores) -> None:
        """Change the scores of one step."""
        due = [
            part for part in self._parts if part.processor.is_due(len(scores.rows[part.row].tokens))
        ]
        if not due:
            return
        rows = scores.tensor([part.row for part in due])
        limits = column([part.processor.threshold for part in due], scores.values.device)
        some = exclude_top_choices(scores.values.index_select(0, rows), limits)
        scores.values.index_copy_(0, rows, some)


Heat: TypeAlias = "tuple[Parameter, Parameter, Parameter]"
"""Temperature, how far it moves, and the power of the entropy."""


def scale_by_entropy(scores: Tensor, heat: Heat) -> Tensor:
    """Divide by a temperature that grows with the entropy of what is left.

    Dynamic temperature, as llama.cpp has it: from ``temperature - range`` (0 at the least) where
    one token is certain, to ``temperature + range`` where all that are left are equally likely.

    Args:
        scores: [B, V].
        heat: Temperature, range and exponent. Scalars or [B, 1]. A range of 0 leaves the
            temperature as it is.

    Returns:
        [B, V], with the highest score at 0. At a temperature of 0 it alone stays.
    """
    middle, reach, power = (_as_column(each, scores) for each in heat)
    count = (scores != -_INF).sum(-1, keepdim=True)
    entropy = row_sum(torch.special.entr(scores.softmax(-1)))
    share = entropy / count.to(scores.dtype).log()
    low = (middle - reach).clamp(min=0)
    moved = low + (middle + reach - low) * share.clamp(min=0) ** power
    temperature = torch.where((reach > 0) & (count > 1), moved, middle)
    temperature = torch.where((reach > 0) & (count == 1), 1.0, temperature)
    best, index = scores.max(-1, keepdim=True)
    cold = torch.full_like(scores, -_INF).scatter(-1, index, 0.0)
    return torch.where(temperature > 0, (scores - best) / temperature, cold)


def _as_column(value: Parameter, scores: Tensor) -> Tensor:
    """Return a parameter as a column of the dtype of the scores."""
    return torch.as_tensor(value, dtype=scores.dtype, device=scores.device).reshape(-1, 1)


def _heat_arguments(heats: list[Any], device: torch.device) -> dict[str, Any]:
    """The argument of `scale_by_entropy` for several rows."""
    return {"heat": tuple(column(list(each), device) for each in zip(*heats, strict=True))}


class DynamicTemperatureLogitsWarper(ColumnsProcessor):
    """Divides scores by a temperature that grows with the entropy (`scale_by_entropy`)."""

    definition = Definition(
        Stage.WARPER,
        110,
        "dynatemp_range",
        build=lambda kind, reach, setting: kind(
            as_float(setting.value("last_temperature")), reach, setting.value("dynatemp_exponent")
        ),
        batched=Columns(scale_by_entropy, "heat", _heat_arguments),
    )

    def __init__(
        self, temperature: float, dynatemp_range: float = 0.0, dynatemp_exponent: float = 1.0
    ) -> None:
        """Check the parameters.

        Args:
            temperature: A float above 0.
            dynatemp_range: How far the temperature moves down and up, at least 0.
            dynatemp_exponent: Power of the normalised entropy, at least 0.

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        for name, value in (
            ("dynatemp_range", dynatemp_range),
            ("dynatemp_exponent", dynatemp_exponent),
        ):
            if not is_finite(value) or value < 0:
                raise InvalidRequestError(name, value, "must be a number of at least 0")
        middle = check_positive("temperature", temperature)
        self.heat = middle, float(dynatemp_range), float(dynatemp_exponent)


def in_llama_order(warpers: list[Any]) -> list[Any]:
    """Order filters as llama.cpp does, where typical comes before top-p and min-p."""
    from asyncgen.generation.logits.entropy_filters import TypicalLogitsWarper
    from asyncgen.generation.logits.filters import TopPLogitsWarper

    rank = TopPLogitsWarper.definition.rank

    def place(warper: Any) -> tuple[int, bool]:
        is_typical = isinstance(warper, TypicalLogitsWarper)
        return (rank, False) if is_typical else (warper.definition.rank, True)

    return sorted(warpers, key=place)
