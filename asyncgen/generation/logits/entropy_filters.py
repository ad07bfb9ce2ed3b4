"""Filters by surprise before a token is drawn: typical, epsilon, eta and top-h sampling.

Each is a pure function from scores to scores, out of place, whose parameter is one value or one
per row ([B, 1]), and a thin class with the documented constructor. Every filter leaves at least
one token in each row.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.base import (
    ColumnsProcessor,
    Definition,
    FilterWarper,
    Stage,
    build_filter,
    check_number,
    check_share,
    round_to_dtype,
)
from asyncgen.generation.logits.batched import Columns
from asyncgen.generation.logits.filters import least_of_top, row_sum, select_rows, slice_sizes

if TYPE_CHECKING:
    from asyncgen.generation.logits.base import Parameter


_INF = float("inf")

_CANDIDATES = 100
"""How many of the likeliest tokens top-h chooses from."""


def keep_typical(
    scores: Tensor,
    mass: Parameter,
    *,
    min_tokens_to_keep: int = 1,
    filter_value: float = -_INF,
) -> Tensor:
    """Keep the tokens whose surprise is closest to the entropy, up to a probability mass.

    Locally typical sampling (Meister et al. 2023, arXiv 2202.00666).

    Args:
        scores: [B, V].
        mass: Probability to reach, in (0, 1); 1.0 changes nothing. Scalar or [B, 1].
        min_tokens_to_keep: This many most typical tokens stay in any case.
        filter_value: What filtered scores become.

    Returns:
        [B, V].
    """
    log_probabilities = scores.log_softmax(-1)
    probabilities = log_probabilities.exp()
    entropy = -row_sum((log_probabilities * probabilities).nan_to_num(nan=0.0))
    distance = (log_probabilities + entropy).abs()
    least = min(min_tokens_to_keep, scores.shape[-1])
    limit = _typical_limit(distance, probabilities, round_to_dtype(mass, scores), least)
    return torch.where(distance > limit, filter_value, scores)


def _typical_limit(distance: Tensor, probabilities: Tensor, mass: Parameter, least: int) -> Tensor:
    """Find the largest distance that stays, [B, 1]; each row on its own, as alone."""
    total = distance.shape[-1]
    rows = torch.arange(len(distance), dtype=torch.int64, device=distance.device)
    limit = distance[:, :1]
    for size in (*slice_sizes(distance, least), total):
        some = select_rows(distance, rows)
        if size == total:
            nearest, index = some.sort(dim=-1)
        else:
            nearest, index = some.topk(size, largest=False)
        reached = select_rows(probabilities, rows).gather(-1, index).cumsum(-1)
        last = (reached < select_rows(mass, rows)).sum(-1, keepdim=True)
        limit = limit.index_copy(0, rows, nearest.gather(-1, last.clamp(least - 1, size - 1)))
        undecided = last[:, 0] >= size
        # The last size decides all, and asking would be a synchronisation elsewhere than here.
        if size == total or not bool(undecided.any()):
            break
        rows = rows[undecided]
    return limit


def keep_above_epsilon(
    scores: Tensor,
    epsilon: Parameter,
    *,
    min_tokens_to_keep: int = 1,
    filter_value: float = -_INF,
) -> Tensor:
    """Keep tokens of at least a probability (Hewitt et al. 2022, arXiv 2210.15191).

    Args:
        scores: [B, V].
        epsilon: In [0, 1); 0 changes nothing. Scalar or [B, 1].
        min_tokens_to_keep: This many likeliest tokens stay in any case.
        filter_value: What filtered scores become.

    Returns:
        [B, V].
    """
    unlikely = scores.softmax(-1) < round_to_dtype(epsilon, scores)
    dropped = unlikely & (scores < least_of_top(scores, min_tokens_to_keep))
    return torch.where(dropped, filter_value, scores)


def keep_above_eta(
    scores: Tensor,
    epsilon: Parameter,
    *,
    min_tokens_to_keep: int = 1,
    filter_value: float = -_INF,
) -> Tensor:
    """Keep tokens above a probability that falls with the entropy.

    Eta sampling (Hewitt et al. 2022, arXiv 2210.15191): the limit is
    ``min(epsilon, sqrt(epsilon) * exp(-entropy))``.

    Args:
        scores: [B, V].
        epsilon: In [0, 1); 0 changes nothing. Scalar or [B, 1].
        min_tokens_to_keep: This many likeliest tokens stay in any case.
        filter_value: What filtered scores become.

    Returns:
        [B, V].
    """
    probabilities = scores.softmax(-1)
    entropy = row_sum(torch.special.entr(probabilities))
    root = epsilon.sqrt() if isinstance(epsilon, Tensor) else math.sqrt(epsilon)
    limit = round_to_dtype(root, scores) * torch.exp(-entropy)
    if isinstance(epsilon, Tensor):
        limit = limit.minimum(epsilon.to(scores.dtype))
    else:
        limit = limit.clamp(max=epsilon)
    dropped = (probabilities < limit) & (scores < least_of_top(scores, min_tokens_to_keep))
    return torch.where(dropped, filter_value, scores)


def keep_top_h(scores: Tensor, top_h: Parameter, *, filter_value: float = -_INF) -> Tensor:
    """Keep the likeliest tokens that together hold a share of the entropy.

    Top-h sampling (Baghaei Potraghloo et al. 2025, arXiv 2509.02510), on the
    distribution of the 100 likeliest tokens alone, as the reference does it.

    Args:
        scores: [B, V].
        top_h: In (0, 1]. Scalar or [B, 1].
        filter_value: What filtered scores become.

    Returns:
        [B, V]; the likeliest token always stays.
    """
    values, index = scores.topk(min(_CANDIDATES, scores.shape[-1]))
    entropy = torch.special.entr(values.softmax(-1)).cumsum(-1)
    kept = entropy <= round_to_dtype(top_h, scores) * entropy[..., -1:]
    kept[..., :1] = True
    chosen = torch.where(kept, values, filter_value)
    return torch.full_like(scores, filter_value).scatter_(-1, index, chosen)


class TypicalLogitsWarper(FilterWarper):
    """Keeps the most typical tokens (`keep_typical`)."""

    definition = Definition(
        Stage.WARPER,
        60,
        "typical_p",
        off=1.0,
        is_on=lambda mass: mass < 1.0,
        build=build_filter,
        batched=Columns(keep_typical, "mass"),
    )

    def __init__(
        self, mass: float = 0.9, filter_value: float = -_INF, min_tokens_to_keep: int = 1
    ) -> None:
        """Check the parameters.

        Args:
            mass: The probability to reach, strictly between 0 and 1.
            filter_value: What filtered scores become.
            min_tokens_to_keep: This many most typical tokens stay in any case; at least 1.

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        self.mass = check_share("typical_p", mass, open_interval=True)
        super().__init__(filter_value, min_tokens_to_keep)


class EpsilonLogitsWarper(FilterWarper):
    """Keeps tokens of at least a probability (`keep_above_epsilon`)."""

    definition = Definition(
        Stage.WARPER,
        70,
        "epsilon_cutoff",
        off=0.0,
        is_on=lambda epsilon: 0.0 < epsilon < 1.0,
        build=build_filter,
        batched=Columns(keep_above_epsilon, "epsilon"),
    )

    def __init__(
        self, epsilon: float, filter_value: float = -_INF, min_tokens_to_keep: int = 1
    ) -> None:
        """Check the parameters.

        Args:
            epsilon: Strictly between 0 and 1.
            filter_value: What filtered scores become.
            min_tokens_to_keep: This many likeliest tokens stay in any case; at least 1.

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        self.epsilon = check_share("epsilon_cutoff", epsilon, open_interval=True)
        super().__init__(filter_value, min_tokens_to_keep)


class EtaLogitsWarper(FilterWarper):
    """Keeps tokens above an entropy-dependent probability (`keep_above_eta`)."""

    definition = Definition(
        Stage.WARPER,
        80,
        "eta_cutoff",
        off=0.0,
        is_on=lambda epsilon: 0.0 < epsilon < 1.0,
        build=build_filter,
        batched=Columns(keep_above_eta, "epsilon"),
    )

    def __init__(
        self,
        epsilon: float,
        filter_value: float = -_INF,
        min_tokens_to_keep: int = 1,
        device: str | torch.device = "cpu",
    ) -> None:
        """Check the parameters.

        Args:
            epsilon: Strictly between 0 and 1.
            filter_value: What filtered scores become.
            min_tokens_to_keep: This many likeliest tokens stay in any case; at least 1.
            device: Part of the documented signature; the scores' device is used.

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        self.epsilon = check_share("eta_cutoff", epsilon, open_interval=True)
        super().__init__(filter_value, min_tokens_to_keep)


class TopHLogitsWarper(ColumnsProcessor):
    """Keeps the likeliest tokens up to a share of the entropy (`keep_top_h`)."""

    definition = Definition(Stage.WARPER, 20, "top_h", batched=Columns(keep_top_h, "top_h"))

    def __init__(self, top_h: float, filter_value: float = -_INF) -> None:
        """Check the share.

        Args:
            top_h: Above 0, at most 1.
            filter_value: What filtered scores become.

        Raises:
            InvalidRequestError: It is out of range.
        """
        self.top_h = check_share("top_h", top_h)
        if not self.top_h:
            raise InvalidRequestError("top_h", top_h, "must be a float above 0 and at most 1")
        self.filter_value = check_number("filter_value", filter_value)
