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

__all__ = ["FIRST", "SECOND", "STEP", "HashDraw", "as_int64", "gumbel_noise", "mix64"]

_MASK64 = (1 << 64) - 1
_UNIFORM = _MASK64
"""In the place of a row, for numbers that are no token's; no request has so many rows."""


def as_int64(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= _MASK64
    return value - (1 << 64) if value >> 63 else value


STEP, FIRST, SECOND = map(as_int64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""The constants of `mix64`, as int64."""
_MASK33, _MASK34, _MASK37, _MASK52 = ((1 << bits) - 1 for bits in (33, 34, 37, 52))


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
            [self.draw_row(row, scores[row], position, stream) for row in range(len(scores))]
        )

    def successive(self, scores: Tensor, position: int) -> Tensor:
        """Draw for successive positions of row 0: scores float32 ``[S, V]`` to ids ``[S]``.

        Raises:
            FloatingPointError: A row has a NaN score or no finite score at all.
        """
        places = range(len(scores))
        return torch.stack([self.draw_row(0, scores[i], position + i) for i in places])

    def uniform(self, position: int, count: int, stream: int = 0) -> Tensor:
        """Draw float32 ``[count]`` from [0, 1), one a position, independent of all tokens."""
        keys = [mix64(self.seed, _UNIFORM, position + i, stream) for i in range(count)]
        # 24 bits are what a float32 below 1 can hold evenly.
        return torch.tensor([(key >> 40) * 2.0**-24 for key in keys], dtype=torch.float32)

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
        noise = gumbel_noise(self.key(row, position), candidates)
        return candidates[torch.topk(scores[candidates] + noise, count).indices]

    def draw_row(self, row: int, scores: Tensor, position: int, stream: int = 0) -> Tensor:
        """Draw the token of one row.

        Args:
            row: Index of the row in its request, which tells the draws of its rows apart.
            scores: Processed scores, float32 ``[V]``.
            position: Absolute position of the token.
            stream: As in a call.

        Returns:
            Token id, int64 without dimensions.

        Raises:
            FloatingPointError: The row has a NaN score or no finite score at all.
        """
        # After top-k or top-p few candidates are left, and only those need noise. NaN stays in.
        candidates = torch.nonzero(scores != -torch.inf).squeeze(1)
        kept = scores[candidates]
        noisy = kept + gumbel_noise(self.key(row, position, stream), candidates)
        best, winner = (noisy if candidates.numel() else scores).max(dim=0)
        require_finite(best[None], position)
        return candidates[winner]

    def key(self, row: int, position: int, stream: int = 0) -> int:
        """Hash everything but the token, to a signed 64-bit number."""
        where = (row, position, stream) if stream else (row, position)
        mixed = mix64(self.seed, *where)
        return mixed - (1 << 64) if mixed >> 63 else mixed


def gumbel_noise(key: int | Tensor, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise for each token id.

    Args:
        key: 64-bit hash of everything but the token; or several, int64 of a shape that
            broadcasts.
        token_ids: int64, any shape.

    Returns:
        float32 noise of the same shape.
    """
    # `mix64` on int64, whose products wrap as they must; masks make its shifts logical.
    bits = token_ids * STEP + (as_int64(key) if isinstance(key, int) else key)
    bits = (bits ^ (bits >> 30 & _MASK34)) * FIRST
    bits = (bits ^ (bits >> 27 & _MASK37)) * SECOND
    bits = bits ^ (bits >> 31 & _MASK33)
    # Near 1 a float32 could not tell -log(u) from zero; with 53 bits a float64 could round to 1.
    uniform = ((bits >> 12 & _MASK52).double() + 0.5) * 2.0**-52
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
