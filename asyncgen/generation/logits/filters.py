"""Filters by likelihood before a token is drawn: temperature, top-k, top-p and min-p.

Each is a pure function from scores to scores, out of place, whose parameter is one value or one
per row ([B, 1]), and a thin class with the documented constructor. Every filter leaves at least
`min_tokens_to_keep` tokens in each row.

On the CPU the selections look at the largest scores first and go on to the whole vocabulary only
where those do not decide the matter: sorting 4,096 scores costs 60 times what reading them does.
On other devices that question would be a synchronisation, and sorting is cheap.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from asyncgen.generation.logits.base import (
    ColumnsProcessor,
    Definition,
    FilterWarper,
    Stage,
    as_float,
    build_filter,
    check_count,
    check_number,
    check_positive,
    check_share,
)
from asyncgen.generation.logits.batched import Columns, column
from asyncgen.runtime.transfer import host_ints, to_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen.generation.logits.base import Parameter


P = TypeVar("P", float, Tensor, "Parameter")

_INF = float("inf")

_SLICES = (64, 1024, 8192)
"""How many of the largest scores are looked at before the whole vocabulary is."""

_BLOCK = 128
"""Scores that are summed at a time."""

_PRECISE_LIMIT = 0.01
"""The lightest tail that may be taken as a difference from 1."""


def divide(scores: Tensor, parameter: Parameter) -> Tensor:
    """Divide by a number, or by a column or tensor of numbers, with the same rounding."""
    if isinstance(parameter, Tensor):
        parameter = parameter.to(scores.dtype)
        # CUDA divides by a number as a multiplication with its reciprocal.
        return scores * parameter.reciprocal() if scores.is_cuda else scores / parameter
    return scores / parameter


def scale_by_temperature(scores: Tensor, temperature: Parameter) -> Tensor:
    """Divide by the temperature.

    Args:
        scores: [B, V].
        temperature: Above 0; 1.0 changes nothing. Scalar or [B, 1].

    Returns:
        [B, V].
    """
    return divide(scores, temperature)


def keep_top_k(
    scores: Tensor,
    top_k: int | Tensor,
    *,
    min_tokens_to_keep: int = 1,
    filter_value: float = -_INF,
    most: int | None = None,
) -> Tensor:
    """Keep the k largest scores of each row, and any that tie with the last of them.

    Args:
        scores: [B, V].
        top_k: At least 1; V or more changes nothing. Scalar or int64 [B, 1].
        min_tokens_to_keep: Lower bound of k.
        filter_value: What filtered scores become.
        most: Largest of several k, where it is known: reading it back is a synchronisation.

    Returns:
        [B, V].
    """
    size = scores.shape[-1]
    if isinstance(top_k, Tensor):
        ranks = top_k.clamp(min_tokens_to_keep, size)
        count = int(ranks.max()) if most is None else min(max(most, min_tokens_to_keep), size)
        largest = scores.topk(count).values
        return torch.where(scores < largest.gather(-1, ranks - 1), filter_value, scores)
    k = max(top_k, min_tokens_to_keep)
    if k >= size:
        return scores
    if scores.device.type == "cpu":
        values, index = scores.topk(k + 1)
        if all(last > next_one for last, next_one in values[:, k - 1 :].tolist()):
            return _keep_listed(scores, index[:, :k], values[:, :k], filter_value)
    limit = scores.topk(k).values[..., -1:]
    return torch.where(scores < limit, filter_value, scores)


def keep_top_p(
    scores: Tensor,
    top_p: Parameter,
    *,
    min_tokens_to_keep: int = 1,
    filter_value: float = -_INF,
) -> Tensor:
    """Keep the smallest set of likeliest tokens whose probability reaches p.

    Nucleus sampling (Holtzman et al. 2020, arXiv 1904.09751, section 3.1).

    Args:
        scores: [B, V].
        top_p: In [0, 1]; 1.0 changes nothing. Scalar or [B, 1].
        min_tokens_to_keep: This many likeliest tokens stay in any case.
        filter_value: What filtered scores become.

    Returns:
        [B, V].
    """
    if isinstance(top_p, Tensor):
        limit = (1 - top_p).to(scores.dtype)
    else:
        limit = scores.new_full((len(scores), 1), 1 - top_p)
    sizes = slice_sizes(scores, min_tokens_to_keep) if scores.dtype == torch.float32 else []
    rows, kept = torch.arange(len(scores), dtype=torch.int64, device=scores.device), None
    for size in sizes:
        found, decided = _top_p_of_slice(
            select_rows(scores, rows),
            select_rows(limit, rows),
            size,
            min_tokens_to_keep,
            filter_value,
        )
        kept = found if kept is None else kept.index_copy_(0, rows, found)
        if bool(decided.all()):
            return kept
        # A row must not depend on its neighbours: only what is undecided is looked at again.
        rows = rows[~decided]
    found = _top_p_of_all(
        select_rows(scores, rows), select_rows(limit, rows), min_tokens_to_keep, filter_value
    )
    return found if kept is None else kept.index_copy_(0, rows, found)


def _top_p_of_all(scores: Tensor, limit: Tensor, least: int, filter_value: float) -> Tensor:
    ordered, index = scores.sort(dim=-1)
    dropped = ordered.softmax(-1).cumsum(-1) <= limit
    dropped[..., -least:] = False
    return torch.where(dropped.scatter(-1, index, dropped), filter_value, scores)


def _top_p_of_slice(
    scores: Tensor, limit: Tensor, size: int, least: int, filter_value: float
) -> tuple[Tensor, Tensor]:
    """Decide top-p on the ``size`` largest scores; tell for which rows, bool [B], they do."""
    values, index = scores.topk(size)

    def likelihood(rows: Tensor) -> Tensor:
        return scores[rows].softmax(-1).gather(-1, index[rows])

    counts, decided = nucleus(values, limit, least, likelihood)
    kept = torch.arange(size, dtype=torch.int64, device=scores.device) < counts
    chosen = torch.where(kept, values, filter_value)
    return _keep_listed(scores, index, chosen, filter_value), decided[:, 0]


def nucleus(
    values: Tensor, limit: Tensor, least: int, likelihood: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Count the likeliest tokens that top-p keeps, by the largest scores alone.

    A token goes if it and all smaller ones together have no more than the limit.

    Args:
        values: The N largest scores of each row, largest first, [B, N].
        limit: Probability of what may go, 1 - p, [B, 1] of the dtype of the values.
        least: This many stay in any case.
        likelihood: Gives the probabilities of the values among all scores, [b, N], for some rows,
            int64 [b]; asked for those whose values are not all there is.

    Returns:
        Counts, int64 [B, 1], and where they are right, bool [B, 1]: elsewhere so many scores do
        not decide the matter.
    """
    part = values[:, -1:] != -_INF  # [B, 1]
    mass = values.softmax(-1).flip(-1).cumsum(-1)
    rows = part[:, 0].nonzero()[:, 0]
    if len(rows):
        tail = likelihood(rows).flip(-1).cumsum(-1)
        mass = mass.index_copy(0, rows, tail + (1 - tail[:, -1:]))
        # A light tail must be summed from its small end, not taken as a difference.
        part = part & (limit < _PRECISE_LIMIT)
    else:
        part = torch.zeros_like(part)
    size = values.shape[-1]
    counts = (size - (mass <= limit).sum(-1, keepdim=True)).clamp(min=least)
    first_out = values.gather(-1, counts.clamp(max=size - 1))
    # Of equal scores at the edge the order of a full sort decides.
    tied = first_out == values.gather(-1, (counts - 1).clamp(max=size - 1))
    return counts, (counts < size) & ~tied & ~part


def keep_min_p(
    scores: Tensor,
    min_p: Parameter,
    *,
    min_tokens_to_keep: int = 1,
    filter_value: float = -_INF,
) -> Tensor:
    """Keep tokens at least ``min_p`` times as likely as the likeliest (arXiv 2407.01082).

    Args:
        scores: [B, V].
        min_p: In [0, 1]; 0 changes nothing. Scalar or [B, 1].
        min_tokens_to_keep: This many likeliest tokens stay in any case.
        filter_value: What filtered scores become.

    Returns:
        [B, V].
    """
    if isinstance(min_p, Tensor):
        # Not `Tensor.log`, which may round in another way than that of a number.
        logs = [math.log(each) if each else -_INF for each in min_p.flatten().tolist()]
        margin: Parameter = to_device(
            torch.tensor(logs, dtype=scores.dtype, device="cpu"), scores.device
        )[:, None]
    elif min_p == 0:
        return scores
    else:
        margin = math.log(min_p)
    limit = scores.amax(-1, keepdim=True) + margin
    if min_tokens_to_keep > 1:
        limit = torch.minimum(limit, least_of_top(scores, min_tokens_to_keep))
    return torch.where(scores < limit, filter_value, scores)


def _keep_listed(scores: Tensor, index: Tensor, values: Tensor, filter_value: float) -> Tensor:
    """Build scores that are ``filter_value`` but for ``values`` at ``index``."""
    return torch.full_like(scores, filter_value).scatter_(-1, index, values)


def least_of_top(scores: Tensor, count: int) -> Tensor:
    """Return the smallest of each row's ``count`` largest scores, [B, 1]."""
    if count == 1:
        return scores.amax(-1, keepdim=True)
    return scores.topk(min(count, scores.shape[-1])).values[..., -1:]


def row_sum(values: Tensor) -> Tensor:
    """Sum each row, [B, N] to [B, 1], with the same rounding in any batch.

    Torch sums one long row by itself in another order, which depends on the number of threads.
    """
    whole = values.shape[-1] // _BLOCK * _BLOCK
    blocks = values[:, :whole].view(len(values), whole // _BLOCK, _BLOCK).sum(-1)
    return blocks.sum(-1, keepdim=True) + values[:, whole:].sum(-1, keepdim=True)


def select_rows(parameter: P, rows: Tensor) -> P:
    """Return some rows, int64 [b], of scores or of a column, [B, ...]; a number stays itself."""
    if isinstance(parameter, Tensor) and len(rows) < parameter.shape[0]:
        return parameter[rows]
    return parameter


def slice_sizes(scores: Tensor, least: int) -> list[int]:
    """Return the slice sizes that are worth trying before all scores are sorted."""
    if scores.device.type != "cpu":
        return []
    return [size for size in _SLICES if least < size <= scores.shape[-1] // 4]


def _top_k_arguments(ranks: list[int], device: torch.device) -> dict[str, Any]:
    """The arguments of `keep_top_k` for several rows."""
    return {"top_k": to_device(host_ints(ranks), device)[:, None], "most": max(ranks)}


def _min_p_arguments(shares: list[float], _: torch.device) -> dict[str, Any]:
    """The arguments of `keep_min_p`, which on a device would have to be read back."""
    return {"min_p": column(shares, torch.device("cpu"))}


class TemperatureLogitsWarper(ColumnsProcessor):
    """Divides scores by a temperature: below 1 sharper, above 1 flatter."""

    definition = Definition(
        Stage.WARPER,
        10,
        "temperature",
        off=1.0,
        build=lambda kind, temperature, _: kind(as_float(temperature)),
        batched=Columns(scale_by_temperature, "temperature"),
        listed=("temperature", lambda own: own.temperature),
    )

    def __init__(self, temperature: float) -> None:
        """Check the temperature.

        Args:
            temperature: A float above 0.

        Raises:
            InvalidRequestError: It is none.
        """
        note = "; for greedy decoding set `do_sample=False`"
        self.temperature = check_positive("temperature", temperature, note)


class TopKLogitsWarper(ColumnsProcessor):
    """Keeps the k likeliest tokens (`keep_top_k`)."""

    definition = Definition(
        Stage.WARPER,
        30,
        "top_k",
        off=0,
        build=build_filter,
        batched=Columns(keep_top_k, "top_k", _top_k_arguments),
        listed=("top_k", lambda own: own.top_k),
    )

    def __init__(
        self, top_k: int, filter_value: float = -_INF, min_tokens_to_keep: int = 1
    ) -> None:
        """Check k.

        Args:
            top_k: At least 1.
            filter_value: What filtered scores become.
            min_tokens_to_keep: Lower bound of k.

        Raises:
            InvalidRequestError: ``top_k`` is not a positive integer, or another one is no number.
        """
        least = check_count("min_tokens_to_keep", min_tokens_to_keep, least=0)
        self.top_k = max(check_count("top_k", top_k), least)
        self.filter_value = check_number("filter_value", filter_value)


class TopPLogitsWarper(FilterWarper):
    """Keeps the smallest set of likeliest tokens that reaches a probability (`keep_top_p`)."""

    definition = Definition(
        Stage.WARPER,
        40,
        "top_p",
        off=1.0,
        is_on=lambda top_p: top_p < 1.0,
        build=build_filter,
        batched=Columns(keep_top_p, "top_p"),
        listed=("top_p", lambda own: 1 - own.top_p),
    )

    def __init__(
        self, top_p: float, filter_value: float = -_INF, min_tokens_to_keep: int = 1
    ) -> None:
        """Check p.

        Args:
            top_p: In [0, 1].
            filter_value: What filtered scores become.
            min_tokens_to_keep: This many likeliest tokens stay in any case; at least 1.

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        self.top_p = check_share("top_p", top_p)
        super().__init__(filter_value, min_tokens_to_keep)


class MinPLogitsWarper(FilterWarper):
    """Keeps tokens not much less likely than the likeliest (`keep_min_p`)."""

    definition = Definition(
        Stage.WARPER,
        50,
        "min_p",
        build=build_filter,
        batched=Columns(keep_min_p, "min_p", _min_p_arguments),
        listed=("min_p", lambda own: math.log(own.min_p) if own.min_p else -_INF),
    )

    def __init__(
        self, min_p: float, filter_value: float = -_INF, min_tokens_to_keep: int = 1
    ) -> None:
        """Check the parameters.

        Args:
            min_p: In [0, 1].
            filter_value: What filtered scores become.
            min_tokens_to_keep: This many likeliest tokens stay in any case; at least 1.

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        self.min_p = check_share("min_p", min_p)
        super().__init__(filter_value, min_tokens_to_keep)
