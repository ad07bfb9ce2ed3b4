"""Mixers with lightning attention as files describe them. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues

_EPS: Final = 1e-6
"""Of the norm of what is read, whatever files say of the others."""
_LEAST: Final = 1e-5
"""What keeps the decays of the last layer from nothing."""


@dataclass(frozen=True, slots=True)
class LightningPlan:
    """A mixer with lightning attention: see `LightningMixer`.

    Attributes:
        heads: Heads of queries, keys and values, H.
        size: Of each, D.
        slopes: How fast each head forgets: a token keeps ``exp(-slope)`` of what was stored.
        eps: Of the norm of what is read.
        scale: Factor on what it adds to the stream.
    """

    heads: int
    size: int
    slopes: tuple[float, ...]
    eps: float
    scale: float

    window = 0
    convolved = 0

    @property
    def channels(self) -> int:
        """Features of all heads."""
        return self.heads * self.size

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the state of a row."""
        return self.heads, self.size, self.size


def lightning_plan(values: ConfigValues, layer: int) -> LightningPlan:
    """Read the heads, and how fast those of a layer forget.

    Slopes halve from head to head as those of ALiBi do, and shrink from layer to layer to nothing:
    Qin and others, "TransNormerLLM" (2023), section 3.2, equation 9.

    Args:
        values: The file's.
        layer: Number of the layer.
    """
    heads, layers = values.count("num_attention_heads"), values.count("num_hidden_layers")
    size = values.head_dim(values.count("hidden_size"), heads, is_turned=True)
    part = 1 - layer / (layers - 1 + _LEAST) + _LEAST
    slopes = tuple(2.0 ** (-8 * (head + 1) / heads) * part for head in range(heads))
    scale = values.number("linear_attn_beta_factor")
    return LightningPlan(heads, size, slopes, _EPS, scale)
