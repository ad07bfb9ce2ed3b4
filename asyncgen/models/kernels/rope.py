"""Rotary position embeddings: the angles of each position, for every scaling in use.

Su et al., "RoFormer" (2021), section 3.4, with the halves of a head as partners. Scalings: *linear*
(Chen et al. 2023, section 2.3), *dynamic* NTK-aware base (bloc97 and emozilla, 2023), *llama3*
(Llama 3.1's frequency bands), *yarn* (Peng et al. 2023, sections 3.2 and 3.4), *longrope* (Ding et
al. 2024, section 3.2: a searched factor for each pair), *proportional* (Gemma 4: only the fastest
pairs rotate).

`Rotary` keeps no state of a request: the angles of *dynamic* and *longrope* depend on the largest
position of the forward pass alone.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from asyncgen import native
from asyncgen.errors import InvalidRequestError
from asyncgen.runtime.transfer import host_ints

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from asyncgen.families.config import ModelConfig, QueryScaling, RopeConfig


_FIRST_TABLE = 512
"""Positions in the first table; it doubles as longer texts come."""


def inverse_frequencies(rope: RopeConfig, head_dim: int, length: int | None = None) -> Tensor:
    """Compute the radians per position of each pair of a head, ``[D / 2]`` float32 on the CPU.

    Args:
        rope: The scaling and its parameters.
        head_dim: Size of a head, D.
        length: Tokens of the longest text; read by ``dynamic`` and ``longrope``, which change
            beyond their original length.
    """
    rotated = rope.exponents(head_dim)
    if rotated < head_dim:
        first = inverse_frequencies(replace(rope, partial_rotary_factor=1.0), rotated, length)
        return torch.cat((first, first.new_zeros(head_dim // 2 - rope.pairs(head_dim))))
    theta = rope.theta
    if rope.rope_type == "dynamic" and length is not None:
        theta = _dynamic_theta(rope, head_dim, length)
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
    plain = 1.0 / (theta**exponents)
    if rope.rope_type == "none":
        return torch.zeros_like(plain)
    if rope.rope_type == "longrope":
        is_long = length is not None and length > rope.original_max_position_embeddings
        factors = rope.long_factors if is_long else rope.short_factors
        assert factors is not None and len(factors) == len(plain)
        return plain / torch.tensor(factors, dtype=torch.float32, device="cpu")
    if rope.rope_type == "linear":
        return plain / rope.factor
    if rope.rope_type == "proportional":
        pairs = int(rope.kept * head_dim // 2)
        return torch.where(
            torch.arange(len(plain), dtype=torch.int64, device="cpu") < pairs,
            plain / rope.factor,
            0,
        )
    if rope.rope_type == "llama3":
        return _llama3(plain, rope)
    if rope.rope_type == "yarn":
        return _yarn(plain, rope, head_dim)
    return plain


def attention_factor(rope: RopeConfig) -> float:
    """Compute the factor on cos and sin of pairs that rotate.

    It differs from 1 for ``yarn`` (section 3.4, equation 22) and ``longrope`` (section 3.3) only.
    """
    if rope.rope_type not in ("yarn", "longrope"):
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.rope_type == "longrope":
        if rope.factor <= 1:
            return 1.0
        return math.sqrt(
            1 + math.log(rope.factor) / math.log(rope.original_max_position_embeddings)
        )
    if rope.mscale and rope.mscale_all_dim:
        return _temperature(rope.factor, rope.mscale) / _temperature(
            rope.factor, rope.mscale_all_dim
        )
    return _temperature(rope.factor, 1.0)


def _temperature(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _dynamic_theta(rope: RopeConfig, head_dim: int, length: int) -> float:
    original = rope.original_max_position_embeddings
    if length <= original:
        return rope.theta
    stretch = rope.factor * length / original - (rope.factor - 1)
    return rope.theta * stretch ** (head_dim / (head_dim - 2))


def _llama3(plain: Tensor, rope: RopeConfig) -> Tensor:
    rotations = rope.original_max_position_embeddings * plain / (2 * math.pi)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    # 0 below the low bound, 1 above the high one, linear between them.
    kept = ((rotations - low) / (high - low or 1e-30)).clamp(0.0, 1.0)
    return plain / rope.factor * (1 - kept) + plain * kept


def _yarn(plain: Tensor, rope: RopeConfig, head_dim: int) -> Tensor:
    def pair_of(rotations: float) -> float:
        span = rope.original_max_position_embeddings / (rotations * 2 * math.pi)
        return head_dim * math.log(span) / (2 * math.log(rope.theta))

    low, high = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    # Equal bounds mean a step, which is a ramp of a thousandth of a pair.
    width = high - low or 0.001
    pairs = torch.arange(head_dim // 2, dtype=torch.float32, device="cpu")
    stretched = ((pairs - low) / width).clamp(0.0, 1.0)
    return plain / rope.factor * stretched + plain * (1 - stretched)


def query_factors(scaling: QueryScaling, positions: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute the factors on rotated queries at positions ``[N]``: ``[N, 1, 1]``."""
    steps = (positions + scaling.offset).div(scaling.length, rounding_mode="floor")
    factors = 1 + scaling.beta * torch.log1p(steps.to(torch.float32))
    return factors.to(dtype)[:, None, None]


def sinusoids(width: int, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Make the function from positions ``[N]`` to their sines, then cosines, ``[N, width]``.

    Vaswani et al., "Attention Is All You Need" (2017), section 3.5, with wavelengths that end at
    10,000, and the two halves one behind the other.

    Args:
        width: Features, an even number.
        dtype: Of the rows.
    """
    half = width // 2
    step = math.log(10000) / (half - 1)
    frequencies = torch.exp(torch.arange(half, dtype=torch.float32, device="cpu") * -step)

    def rows(positions: Tensor) -> Tensor:
        angles = positions.to(torch.float32)[:, None] * frequencies.to(positions.device)
        return torch.cat((angles.sin(), angles.cos()), dim=1).to(dtype)

    return rows


def make_rotate(like: Tensor) -> Callable[[Tensor, Tensor, Tensor], None]:
    """Make the function that rotates heads in halves ``[N, heads, 2, D / 2]`` by `Rotary.rows`, in
    place.

    Args:
        like: Tensor of the dtype and on the device of the heads.
    """
    if like.device.type != "cpu" or not native.supports(like.dtype):
        return _rotate
    assert native.kernels is not None
    rotate: Callable[[Tensor, Tensor, Tensor], None] = native.kernels.Rotary(like.dtype).turn
    return rotate


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    swapped = heads.roll(1, -2)  # of two halves; faster than to flip them
    heads.mul_(cos).addcmul_(swapped, sin)


class Rotary:
    """Gives the cosines and sines of positions, in the model's dtype.

    A head in two halves ``[2, D / 2]`` is rotated by ``x * cos + x.flip(0) * sin``: the first half
    of ``sin`` is negated here, so nothing needs to be split, negated and joined.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        """Prepare for a model.

        Args:
            config: Its rope parameters and head size.
            dtype: Dtype of the rows given out.
        """
        self._rope = config.rope
        self._head_dim = config.head_dim
        self._factor = attention_factor(config.rope)
        self._pairs = config.rope.pairs(config.head_dim)
        self._is_switched = config.rope.rope_type in ("dynamic", "longrope")
        self._frequencies = inverse_frequencies(config.rope, config.head_dim)
        self._table: Tensor | None = None
        self._sent: Tensor | None = None
        self.dtype = dtype

    @property
    def frequencies(self) -> Tensor:
        """Radians per position of each pair of a head, ``[D / 2]`` float32 on the CPU, of texts
        that are not longer than the original length."""
        return self._frequencies

    def rows(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Give cosines and signed sines, each ``[N, 1, 2, D / 2]``, of positions.

        Args:
            positions: ``[N]``, int64, from 0.

        Raises:
            InvalidRequestError: A position is negative.
        """
        if self._is_switched:
            length = int(positions.max()) + 1
            if length > self._rope.original_max_position_embeddings:
                frequencies = inverse_frequencies(self._rope, self._head_dim, length)
                return self._compute(positions, frequencies).unbind(1)
        if positions.device.type != "cpu":
            # Compute the angles: a look-up past the end of a table cannot be caught on an
            # accelerator.
            if self._sent is None or self._sent.device != positions.device:
                # Send them once: a copy in each step would wait for the device, and could not be
                # recorded.
                self._sent = self._frequencies.to(positions.device)
            return self._compute(positions, self._sent).unbind(1)
        if self._table is not None and self._table.dtype is self.dtype:
            try:
                return self._table.index_select(0, positions).unbind(1)
            except IndexError:
                pass
        return self._grow(positions).index_select(0, positions).unbind(1)

    def reserve(self, length: int) -> None:
        """Make the table for so many positions.

        Raises:
            InvalidRequestError: There is none, as frequencies depend on the length of the text.
        """
        if self._is_switched:
            allowed = "its frequencies depend on the length of a text, which a program cannot hold"
            raise InvalidRequestError("rope_type", self._rope.rope_type, allowed)
        self.rows(host_ints([length - 1]))

    def _grow(self, positions: Tensor) -> Tensor:
        """Make the table longer than the largest position."""
        if int(positions.min()) < 0:
            raise InvalidRequestError(
                "position_ids", int(positions.min()), "positions count from 0"
            )
        length = _FIRST_TABLE
        while length <= int(positions.max()):
            length *= 2
        self._table = self._compute(
            torch.arange(length, dtype=torch.int64, device="cpu"), self._frequencies
        )
        return self._table

    def _compute(self, positions: Tensor, frequencies: Tensor) -> Tensor:
        """Compute cosines and signed sines, ``[N, 2, 1, 2, D / 2]``, in float32."""
        angles = positions.to(torch.float32)[:, None] * frequencies.to(positions.device)
        cos, sin = angles.cos(), angles.sin()  # [N, D / 2]
        if self._factor != 1:
            cos[:, : self._pairs] *= self._factor
            sin *= self._factor
        rows = torch.stack((cos, cos, -sin, sin), dim=1)
        return rows.view(len(rows), 2, 1, 2, -1).to(self.dtype)
