"""Mirostat: hold the surprise of a text at a target, by cutting more or fewer unlikely tokens.

Basu et al. 2021, arXiv 2007.14966: version 1 is algorithm 1 there, version 2 its successor by the
same authors, both as llama.cpp has them. What is kept of a row is one number, ``mu``, which follows
the surprise of each token that was drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.base import Definition, LogitsProcessor, Stage, is_finite

if TYPE_CHECKING:
    from torch import Tensor

_INF = float("inf")

_MOST_PROBABLE = 100
"""Tokens by which version 1 estimates how fast probabilities fall."""


@dataclass(slots=True)
class _Row:
    """The state of a row.

    Attributes:
        mu: Most surprise of a token that stays, in bits.
        length: Tokens that the row had at the last call.
        surprise: Of each token that could be drawn then, in bits, [V]; None before.
    """

    mu: float
    length: int = 0
    surprise: Tensor | None = None


class MirostatLogitsWarper(LogitsProcessor):
    """Keeps tokens by the surprise of those before.

    It reads the token that was drawn from its scores at its next call.

    Attributes:
        begun: What the one sample of a request goes on with, where it has tokens already.
    """

    definition = Definition(
        Stage.WARPER,
        120,
        "mirostat",
        build=lambda kind, version, setting: kind(
            version, setting.value("mirostat_tau"), setting.value("mirostat_eta")
        ),
        for_sample=lambda own, _: own.fresh() if own.begun is None else own.begun,
    )
    versions: ClassVar[tuple[int, ...]] = (1, 2)

    def __init__(self, version: int, tau: float = 5.0, eta: float = 0.1) -> None:
        """Check the parameters.

        Args:
            version: 1 or 2.
            tau: Surprise to hold, in bits a token; at least 0.
            eta: How fast it is followed; at least 0.

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        if version not in self.versions:
            raise InvalidRequestError("mirostat", version, "1 or 2")
        for name, value in (("mirostat_tau", tau), ("mirostat_eta", eta)):
            if not is_finite(value) or value < 0:
                raise InvalidRequestError(name, value, "must be a number of at least 0")
        self.version, self.tau, self.eta = version, float(tau), float(eta)
        self.begun: MirostatLogitsWarper | None = None
        self._rows: list[_Row] = []

    def fresh(self) -> MirostatLogitsWarper:
        """Return one at its beginning, for another sample."""
        return type(self)(self.version, self.tau, self.eta)

    @property
    def mu(self) -> list[float]:
        """Most surprise of a token that stays, of each row."""
        return [row.mu for row in self._rows]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Cut unlikely tokens; ids are int64 [B, T], scores [B, V]."""
        length = input_ids.shape[1]
        known = self._rows
        if len(known) != len(scores) or any(row.length > length for row in known):
            self._rows = [_Row(2 * self.tau) for _ in range(len(scores))]
        for ids, row in zip(input_ids, self._rows, strict=True):
            self._observe(row, ids)
        kept = [self._keep(own, row.mu) for own, row in zip(scores, self._rows, strict=True)]
        for own, row in zip(kept, self._rows, strict=True):
            row.length, row.surprise = length, own.log_softmax(-1) / -math.log(2)
        return torch.stack(kept)

    def _observe(self, row: _Row, ids: Tensor) -> None:
        """Follow the token that was drawn since the last call; ids are int64 [T]."""
        if row.surprise is None or len(ids) <= row.length:
            return
        surprise = float(row.surprise[ids[row.length]])
        if math.isfinite(surprise):  # else another processor behind this one chose the token
            row.mu -= self.eta * (surprise - self.tau)
        row.surprise = None

    def _keep(self, scores: Tensor, mu: float) -> Tensor:
        """Ban tokens of one row, [V]; the likeliest stays."""
        if self.version == 1:
            count = tokens_to_keep(scores, mu)
            values, index = scores.topk(count)
            return torch.full_like(scores, -_INF).scatter(-1, index, values)
        surprise = scores.log_softmax(-1) / -math.log(2)
        kept = surprise <= mu
        kept[scores.argmax()] = True
        return torch.where(kept, scores, -_INF)


def tokens_to_keep(scores: Tensor, mu: float) -> int:
    """Return how many of the likeliest tokens version 1 keeps.

    Args:
        scores: Of one row, [V].
        mu: Most surprise, in bits.
    """
    size = scores.shape[-1]
    top = scores.log_softmax(-1).topk(min(_MOST_PROBABLE, size)).values.tolist()
    top = [value for value in top if value > -_INF]
    if len(top) < 2:
        return 1
    ranks = [math.log((place + 2) / (place + 1)) for place in range(len(top) - 1)]
    falls = [top[place] - top[place + 1] for place in range(len(top) - 1)]
    power = math.fsum(a * b for a, b in zip(ranks, falls, strict=True))
    power /= math.fsum(rank * rank for rank in ranks)
    if power <= 0:  # all are equally likely
        return size
    excess = power - 1
    # excess / (1 - size ** -excess), and its limit at an exponent of 1
    ratio = (
        1 / math.log(size) if abs(excess) < 1e-9 else excess / -math.expm1(-excess * math.log(size))
    )
    bits = (math.log2(ratio) + mu) / power
    return size if bits > 60 else min(max(int(2**bits), 1), size)
