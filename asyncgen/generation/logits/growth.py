"""Tells a processor what changed in the sequences since its last call.

What is true of past tokens can then be kept up at the cost of the changes: a token more, mostly,
or a draft that was taken back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Change", "Growth", "TokenCounts"]


@dataclass(frozen=True, slots=True)
class Change:
    """How the sequences of one call differ from those of the call before.

    Attributes:
        kept: Tokens at the beginning of every row that are the same; 0 for other rows.
        removed: What stood behind them before, int64 [B, R]; ``None`` for other rows.
        added: What stands behind them now, int64 [B, A].
    """

    kept: int
    removed: Tensor | None
    added: Tensor


class Growth:
    """Remembers the sequences of the last call.

    Attributes:
        tail_only: Trust the caller that a call differs from the one before in its last token and
            in what is longer or shorter, and nowhere else. Then the cost is that of the change;
            otherwise all older tokens are compared.
    """

    def __init__(self, *, tail_only: bool = False) -> None:
        """Start without any sequence."""
        self.tail_only = tail_only
        self._length = 0
        self._seen: Tensor | None = None  # [B, capacity]

    def follow(self, input_ids: Tensor) -> Change:
        """Take sequences in and tell what changed.

        Args:
            input_ids: Tokens so far, int64 [B, T].
        """
        batch, length = input_ids.shape
        seen = self._seen
        if seen is None or seen.shape[0] != batch or seen.device != input_ids.device:
            self._seen, self._length = input_ids.clone(), length
            return Change(0, None, input_ids)
        kept = self._kept(seen, input_ids)
        removed = seen[:, kept : self._length].clone()
        added = input_ids[:, kept:]
        if length > seen.shape[1]:
            self._seen = seen.new_empty(batch, max(length, 2 * seen.shape[1]))
            self._seen[:, :kept] = seen[:, :kept]
        # A copy: the caller may go on writing to the buffer that these ids are a view of.
        self._seen[:, kept:length] = added  # type: ignore[index]
        self._length = length
        return Change(kept, removed, added)

    def _kept(self, seen: Tensor, input_ids: Tensor) -> int:
        """Tokens at the beginning that are the same as before."""
        length = input_ids.shape[1]
        if self.tail_only:
            return max(min(self._length, length - 1), 0)
        common = min(self._length, length)
        same = (seen[:, :common] == input_ids[:, :common]).all(dim=0)
        return int(same.long().cumprod(dim=0).sum())


class TokenCounts:
    """How often each token occurs in each row, kept up with the sequences."""

    def __init__(self, *, tail_only: bool = False) -> None:
        """Start without any sequence; for ``tail_only`` see `Growth`."""
        self._growth = Growth(tail_only=tail_only)
        self._counts: Tensor | None = None

    def update(self, input_ids: Tensor, vocab_size: int, first: Tensor | int = 0) -> Tensor:
        """Count.

        Args:
            input_ids: Tokens so far, int64 [B, T].
            vocab_size: V.
            first: The first position that counts, the same in every call; of each row where it is
                int64 [B].

        Returns:
            Counts, float32 [B, V]; the object's own memory, not to be written to.
        """
        change = self._growth.follow(input_ids)
        counts = self._counts
        if counts is None or change.removed is None or counts.shape[1] != vocab_size:
            counts = torch.zeros(input_ids.shape[0], vocab_size, device=input_ids.device)
            self._add(counts, input_ids, 0, first, 1.0)
        else:
            self._add(counts, change.removed, change.kept, first, -1.0)
            self._add(counts, change.added, change.kept, first, 1.0)
        self._counts = counts
        return counts

    @staticmethod
    def _add(counts: Tensor, tokens: Tensor, start: int, first: Tensor | int, what: float) -> None:
        """Add a number for each of the tokens [B, N], which stand at ``start`` and behind."""
        if not tokens.shape[1]:
            return
        places = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        if not isinstance(first, int):
            first = first.to(tokens.device)[:, None]
        counted = (places >= first).to(counts.dtype) * what
        counts.scatter_add_(1, tokens, counted.expand_as(tokens))
