"""Randomness of the engine: a pure function of (seed, position, token), and of a stream number.

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
_UNIFORM = _MASK64
"""In the place of a row, for numbers that are no token's; no request has so many rows."""


class HashDraw:
    """A :data:`~asyncgen.generation.strategies.step.Draw` whose noise is a hash."""

    def __init__(self, seed: int) -> None:
        """Keep the seed.

        Args:
            seed: Any integer; taken modulo 2**64.
        """
        self.seed = seed & _MASK64

    def __call__(self, scores: Tensor, position: int, stream: int = 0) -> Tensor:
        """Draw one token a row.

        Args:
            scores: Processed scores, float32 ``[B, V]``; ``-inf`` for banned tokens.
            position: Absolute position of the token, prompt included.
            stream: Independent draws for one position have different numbers.

        Returns:
            Token ids, int64 ``[B]``.

        Raises:
            FloatingPointError: A row has a NaN score or no finite score at all.
        """
        return torch.stack(
            [self._draw_row(row, scores[row], position, stream) for row in range(len(scores))]
        )

    def successive(self, scores: Tensor, position: int) -> Tensor:
        """Draw for successive positions of row 0: scores float32 ``[S, V]`` to ids ``[S]``.

        Raises:
            FloatingPointError: A row has a NaN score or no finite score at all.
        """
        places = range(len(scores))
        return torch.stack([self._draw_row(0, scores[i], position + i, 0) for i in places])

    def uniform(self, position: int, count: int, stream: int = 0) -> Tensor:
        """Draw float32 ``[count]`` from [0, 1), one a position, independent of all tokens."""
        keys = [mix64(self.seed, _UNIFORM, position + i, stream) for i in range(count)]
        # 24 bits are what a float32 below 1 can hold evenly.
        return torch.tensor([(key >> 40) * 2.0**-24 for key in keys], dtype=torch.float32)

    def _draw_row(self, row: int, scores: Tensor, position: int, stream: int) -> Tensor:
        """Draw from one row, float32 ``[V]``; rows of a request differ by their index."""
        key = (row, position, stream) if stream else (row, position)
        # After top-k or top-p few candidates are left, and only those need noise. NaN stays in.
        candidates = torch.nonzero(scores != -torch.inf).squeeze(1)
        kept = scores[candidates]
        noisy = kept + gumbel_noise(mix64(self.seed, *key), candidates)
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
