"""Rotary positions as plain data: the angles of one rope and the factors on queries.

This module imports nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DEFAULT_THETA = 10000.0
"""Base of the wavelengths where a file names none."""


def part_of_head(features: int, size: int) -> float:
    """Give the part of a head that a number of features is, such that it gives them back in
    ``int(part * size)``."""
    part = features / size
    return part if int(part * size) == features else math.nextafter(part, 1.0)


@dataclass(frozen=True, slots=True)
class QueryScaling:
    """Queries that grow with the logarithm of their position, so that long texts stay sharp.

    The factor at position p is ``1 + beta * log(1 + floor((p + offset) / length))``.

    Attributes:
        beta: Factor on the logarithm.
        length: Positions that share a factor, at least 1.
        offset: 1 if positions are counted from 1 (Llama 4), 0 otherwise (Ministral).
    """

    beta: float
    length: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding, in one spelling for all the ways in files.

    Attributes:
        rope_type: ``none``, ``default``, ``linear``, ``dynamic``, ``llama3``, ``yarn``,
            ``longrope`` or ``proportional``.
        theta: Base of the wavelengths, above 0.
        factor: Factor by which the context became longer, at least 1 in sensible checkpoints.
        original_max_position_embeddings: Context length in tokens before it was stretched.
        low_freq_factor: ``llama3``: wavelengths above original / low are stretched in full.
        high_freq_factor: ``llama3``: wavelengths below original / high are left alone.
        beta_fast: ``yarn``: rotations within the original context above which nothing changes.
        beta_slow: ``yarn``: rotations below which the wavelength is stretched in full.
        attention_factor: ``yarn``: factor on cos and sin; ``None`` derives it from the rest.
        mscale: ``yarn``: numerator's weight in the derived attention factor.
        mscale_all_dim: ``yarn``: denominator's weight in the derived attention factor.
        truncate: ``yarn``: true if the bounds of the ramp are rounded outwards.
        short_factors: ``longrope``: divisors of the frequency of each rotated pair, up to the
            original length of the longest text.
        long_factors: ``longrope``: the same beyond it.
        partial_rotary_factor: Part of a head that is rotated, above 0 and at most 1: the first
            pairs; the others have frequency 0. See `exponents` and `pairs`.
        kept: ``proportional``: part of the pairs that rotate, above 0 and at most 1, each as if all
            did; the others have frequency 0.
        query_scaling: Factor on the queries by position; ``None``: none.
    """

    rope_type: str = "default"
    theta: float = DEFAULT_THETA
    factor: float = 1.0
    original_max_position_embeddings: int = 2048
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factors: tuple[float, ...] | None = None
    long_factors: tuple[float, ...] | None = None
    partial_rotary_factor: float = 1.0
    kept: float = 1.0
    query_scaling: QueryScaling | None = None

    def exponents(self, head_dim: int) -> int:
        """Return the number that divides the exponents of theta: rotated features of a head."""
        return round(self.partial_rotary_factor * head_dim)

    def pairs(self, head_dim: int) -> int:
        """Return the pairs of a head that rotate; an odd number of features is rounded up."""
        return (self.exponents(head_dim) + 1) // 2
