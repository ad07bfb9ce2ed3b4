"""Plans of mixers with lightning attention, and their reader. This module imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues

_EPS: Final = 1e-6
"""Of the norm of the results, whatever a file says of the other norms."""
_LEAST: Final = 1e-5
"""Keeps the decays of the last layer above zero."""


@dataclass(frozen=True, slots=True)
class LightningPlan:
    """Mixer with lightning attention: see `LightningMixer`.

    Attributes:
        heads: Heads of queries, keys and values, H.
        size: Size of each, D.
        slopes: Speed at which each head forgets: a token keeps ``exp(-slope)`` of the state.
        eps: Of the norm of the results.
        scale: Factor on its output.
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
        """Shape of the state of a row."""
        return self.heads, self.size, self.size


def lightning_plan(values: ConfigValues, layer: int) -> LightningPlan:
    """Read the heads of a layer, and the speed at which they forget.

    Slopes halve from head to head as those of ALiBi do, and shrink from layer to layer to nothing:
    Qin and others, "TransNormerLLM" (2023), section 3.2, equation 9.

    Args:
        values: The file's.
        layer: Number of the layer.
    """
    heads, layers = values.count("num_attention_heads"), values.count("num_hidden_layers")
    size = values.head_dim(values.count("hidden_size"), heads, is_rotary=True)
    part = 1 - layer / (layers - 1 + _LEAST) + _LEAST
    slopes = tuple(2.0 ** (-8 * (head + 1) / heads) * part for head in range(heads))
    scale = values.number("linear_attn_beta_factor")
    return LightningPlan(heads, size, slopes, _EPS, scale)
