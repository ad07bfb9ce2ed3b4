"""Randomness of the engine: a pure function of (seed, position, token).

A token is drawn as argmax(scores + Gumbel noise) (Gumbel-max; Maddison, Tarlow and Minka 2014,
"A* Sampling", section 2). The noise of each candidate comes from an integer hash of the seed, the
position and the token id, so a draw depends on nothing else: not on the neighbours in a batch, not
on arrival order, not on where a request was interrupted and resumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.generation.strategies.finite import require_finite

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["HashDraw", "gumbel_noise", "mix64"]

_MASK64 = (1 << 64) - 1


class HashDraw:
    """A :data:`~asyncgen.generation.strategies.step.Draw` whose noise is a hash."""

    def __init__(self, seed: int) -> None:
        """Keep the seed.

        Args:
            seed: Any integer; taken modulo 2**64.
        """
        self.seed = seed & _MASK64

    def __call__(self, scores: Tensor, position: int) -> Tensor:
        """Draw one token a row.

        Args:
            scores: Processed scores, float32 ``[B, V]``; ``-inf`` for banned tokens.
            position: Absolute position of the token, prompt included.

        Returns:
            Token ids, int64 ``[B]``.

        Raises:
            FloatingPointError: A row has a NaN score or no finite score at all.
        """
        return torch.stack(
            [self._draw_row(row, scores[row], position) for row in range(len(scores))]
        )

    def several(self, scores: Tensor, count: int, position: int) -> Tensor:
        """Draw without replacement: the ``count`` highest of scores plus noise.

        That is an exact sample (Gumbel-top-k; Kool, van Hoof and Welling 2019, arXiv 1903.06059,
        section 2.3).

        Args:
            scores: float32 ``[B, M]``.
            count: How many to draw of each row.
            position: Absolute position of the token, prompt included.

        Returns:
            Indices, int64 ``[B, count]``, in the order in which they are drawn.

        Raises:
            FloatingPointError: A row has a NaN score or no finite score at all.
        """
        require_finite(scores.amax(dim=1), position)
        return torch.stack(
            [self._draw_several(row, each, count, position) for row, each in enumerate(scores)]
        )

    def _draw_several(self, row: int, scores: Tensor, count: int, position: int) -> Tensor:
        candidates = torch.nonzero(scores != -torch.inf).squeeze(1)
        if len(candidates) < count:
            candidates = torch.arange(len(scores), device=scores.device)
        noise = gumbel_noise(mix64(self.seed, row, position), candidates)
        return candidates[torch.topk(scores[candidates] + noise, count).indices]

    def _draw_row(self, row: int, scores: Tensor, position: int) -> Tensor:
        """Draw from one row, float32 ``[V]``; rows of a request differ by their index."""
        # After top-k or top-p few candidates are left, and only those need noise. NaN stays in.
        candidates = torch.nonzero(scores != -torch.inf).squeeze(1)
        kept = scores[candidates]
        noisy = kept + gumbel_noise(mix64(self.seed, row, position), candidates)
        best, winner = (noisy if candidates.numel() else scores).max(dim=0)
        require_finite(best[None], position)
        return candidates[winner]


def gumbel_noise(key: int, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise for each token id.

    Args:
        key: 64-bit hash of everything but the token.
        token_ids: int64, any shape.

    Returns:
        float32 noise of the same shape.
    """
    bits = _finalize(token_ids * _signed(0x9E3779B97F4A7C15) + _signed(key))
    # Near 1 a float32 could not tell -log(u) from zero; with 53 bits a float64 could round to 1.
    uniform = (_shift(bits, 12).double() + 0.5) * 2.0**-52
    return (-torch.log(-torch.log(uniform))).float()


def mix64(*values: int) -> int:
    """Hash integers to 64 bits (the SplitMix64 step: Steele, Lea and Flood 2014, figure 17)."""
    state = 0
    for value in values:
        state = (state ^ (value & _MASK64)) + 0x9E3779B97F4A7C15 & _MASK64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK64
        state ^= state >> 31
    return state


def _finalize(state: Tensor) -> Tensor:
    """The same finalizer on int64 tensors; torch wraps on overflow, shifts are made logical."""
    state = (state ^ _shift(state, 30)) * _signed(0xBF58476D1CE4E5B9)
    state = (state ^ _shift(state, 27)) * _signed(0x94D049BB133111EB)
    return state ^ _shift(state, 31)


def _shift(state: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= _MASK64
    return value - (1 << 64) if value >> 63 else value
