"""Filters by likelihood before a token is drawn: temperature, top-k, top-p and min-p.

Each is a pure function from scores to scores, out of place, whose parameter is one value or one
per row ([B, 1]), and a thin class with the documented constructor. Every filter leaves at least
`min_tokens_to_keep` tokens in each row.

On the CPU the selections look at the largest scores first and go on to the whole vocabulary only
where those do not decide the matter: sorting 4,096 scores costs 60 times what reading them does.
On other devices that question would be a synchronisation, and sorting is cheap.
"""

from __future__ import annotations

import ctypes
import math
from bisect import bisect_right
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.base import LogitsProcessor, check_count

if TYPE_CHECKING:
    from asyncgen.generation.logits.base import Parameter

__all__ = [
    "MinPLogitsWarper",
    "TemperatureLogitsWarper",
    "TopKLogitsWarper",
    "TopPLogitsWarper",
    "keep_min_p",
    "keep_top_k",
    "keep_top_p",
    "least_of_top",
    "scale_by_temperature",
    "slice_sizes",
]

_INF = float("inf")

_SLICES = (64, 1024)
"""How many of the largest scores are looked at before the whole vocabulary is."""

_PRECISE_LIMIT = 0.01
"""A tail lighter than this must be summed from its small end, not taken as a difference."""


def scale_by_temperature(scores: Tensor, temperature: Parameter) -> Tensor:
    """Divide by the temperature.

    Args:
        scores: [B, V].
        temperature: Above 0; 1.0 changes nothing. Scalar or [B, 1].

    Returns:
        [B, V].
    """
    return scores / temperature


def keep_top_k(
    scores: Tensor,
    top_k: int | Tensor,
    *,
    min_tokens_to_keep: int = 1,
    filter_value: float = -_INF,
) -> Tensor:
    """Keep the k largest scores of each row, and any that tie with the last of them.

    Args:
        scores: [B, V].
        top_k: At least 1; V or more changes nothing. Scalar or int64 [B, 1].
        min_tokens_to_keep: Lower bound of k.
        filter_value: What filtered scores become.

    Returns:
        [B, V].
    """
    size = scores.shape[-1]
    if isinstance(top_k, Tensor):
        ranks = top_k.clamp(min_tokens_to_keep, size)
        largest = scores.topk(int(ranks.max())).values
        return torch.where(scores < largest.gather(-1, ranks - 1), filter_value, scores)
    k = max(top_k, min_tokens_to_keep)
    if k >= size:
        return scores
    if scores.device.type == "cpu":
        values, index = scores.topk(k + 1)
        if all(last > next_one for last, next_one in values[:, k - 1 :].tolist()):
            return _only(scores, index[:, :k], values[:, :k], filter_value)
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
    sizes = slice_sizes(scores, min_tokens_to_keep)
    if sizes and scores.dtype == torch.float32:
        limits = _float32_list(1 - top_p, scores.shape[0])
        for size in sizes:
            kept = _top_p_of_slice(scores, limits, size, min_tokens_to_keep, filter_value)
            if kept is not None:
                return kept
    ordered, index = scores.sort(dim=-1)
    mass = ordered.softmax(-1).cumsum(-1)
    dropped = mass <= 1 - top_p
    dropped[..., -min_tokens_to_keep:] = False
    return torch.where(dropped.scatter(-1, index, dropped), filter_value, scores)


def _top_p_of_slice(
    scores: Tensor, limits: list[float], size: int, least: int, filter_value: float
) -> Tensor | None:
    """Decide top-p on the ``size`` largest scores; None where they do not decide it.

    A token goes if it and all smaller ones together have no more than the row's limit. The few
    numbers that matter are compared in Python: that costs less than torch calls on them.
    """
    values, index = scores.topk(size)
    listed: list[list[float]] = values.tolist()
    if all(row[-1] == -_INF for row in listed):
        mass = values.softmax(-1).flip(-1).cumsum(-1)
    elif min(limits) < _PRECISE_LIMIT:
        return None
    else:
        probabilities = (values - scores.logsumexp(-1, keepdim=True)).exp()
        mass = probabilities.flip(-1).cumsum(-1)
        mass += 1 - mass[:, -1:]
    counts = []
    for row, masses, limit in zip(listed, mass.tolist(), limits, strict=True):
        count = max(size - bisect_right(masses, limit), least)
        # Of equal scores at the edge the order of a full sort decides.
        if count >= size or row[count] == row[count - 1]:
            return None
        counts.append(count)
    if len(counts) == 1:
        return _only(scores, index[:, : counts[0]], values[:, : counts[0]], filter_value)
    kept = torch.arange(size) < torch.tensor(counts)[:, None]
    return _only(scores, index, torch.where(kept, values, filter_value), filter_value)


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
        margin: Parameter = min_p.log()
    elif min_p == 0:
        return scores
    else:
        margin = math.log(min_p)
    limit = scores.amax(-1, keepdim=True) + margin
    if min_tokens_to_keep > 1:
        limit = torch.minimum(limit, least_of_top(scores, min_tokens_to_keep))
    return torch.where(scores < limit, filter_value, scores)


def _only(scores: Tensor, index: Tensor, values: Tensor, filter_value: float) -> Tensor:
    """Build scores that are ``filter_value`` but for ``values`` at ``index``."""
    return torch.full_like(scores, filter_value).scatter_(-1, index, values)


def least_of_top(scores: Tensor, count: int) -> Tensor:
    """Return the smallest of each row's ``count`` largest scores, [B, 1]."""
    if count == 1:
        return scores.amax(-1, keepdim=True)
    return scores.topk(min(count, scores.shape[-1])).values[..., -1:]


def slice_sizes(scores: Tensor, least: int) -> list[int]:
    """Return the slice sizes that are worth trying before all scores are sorted."""
    if scores.device.type != "cpu":
        return []
    return [size for size in _SLICES if least < size <= scores.shape[-1] // 16]


def _float32_list(parameter: Parameter, rows: int) -> list[float]:
    """Return a parameter for each row, rounded as torch rounds it before comparing."""
    if isinstance(parameter, Tensor):
        return parameter.float().flatten().tolist()
    return [ctypes.c_float(parameter).value] * rows


class TemperatureLogitsWarper(LogitsProcessor):
    """Divides scores by a temperature: below 1 sharper, above 1 flatter."""

    def __init__(self, temperature: float) -> None:
        """Check the temperature.

        Args:
            temperature: A float above 0.

        Raises:
            InvalidRequestError: It is none.
        """
        if not isinstance(temperature, float) or not temperature > 0:
            allowed = "must be a float above 0; for greedy decoding set `do_sample=False`"
            raise InvalidRequestError("temperature", temperature, allowed)
        self.temperature = temperature

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply `scale_by_temperature`; scores are [B, V]."""
        return scale_by_temperature(scores, self.temperature)


class TopKLogitsWarper(LogitsProcessor):
    """Keeps the k likeliest tokens (`keep_top_k`)."""

    def __init__(
        self, top_k: int, filter_value: float = -_INF, min_tokens_to_keep: int = 1
    ) -> None:
        """Check k.

        Args:
            top_k: At least 1.
            filter_value: What filtered scores become.
            min_tokens_to_keep: Lower bound of k.

        Raises:
            InvalidRequestError: ``top_k`` is not a positive integer.
        """
        self.top_k = max(check_count("top_k", top_k), min_tokens_to_keep)
        self.filter_value = filter_value

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply `keep_top_k`; scores are [B, V]."""
        return keep_top_k(scores, self.top_k, filter_value=self.filter_value)


class TopPLogitsWarper(LogitsProcessor):
    """Keeps the smallest set of likeliest tokens that reaches a probability (`keep_top_p`)."""

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
        self.top_p = float(top_p)
        if not 0 <= self.top_p <= 1:
            raise InvalidRequestError("top_p", top_p, "must be a float from 0 to 1")
        self.filter_value = filter_value
        self.min_tokens_to_keep = check_count("min_tokens_to_keep", min_tokens_to_keep)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply `keep_top_p`; scores are [B, V]."""
        return keep_top_p(
            scores,
            self.top_p,
            min_tokens_to_keep=self.min_tokens_to_keep,
            filter_value=self.filter_value,
        )


class MinPLogitsWarper(LogitsProcessor):
    """Keeps tokens not much less likely than the likeliest (`keep_min_p`)."""

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
        if not 0 <= min_p <= 1:
            raise InvalidRequestError("min_p", min_p, "must be a float from 0 to 1")
        self.min_p = min_p
        self.filter_value = filter_value
        self.min_tokens_to_keep = check_count("min_tokens_to_keep", min_tokens_to_keep)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply `keep_min_p`; scores are [B, V]."""
        return keep_min_p(
            scores,
            self.min_p,
            min_tokens_to_keep=self.min_tokens_to_keep,
            filter_value=self.filter_value,
        )
