"""Plans of gated short convolutions, and their reader. This module imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncgen.families.plans.delta_plan import MOST_WINDOW

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues


@dataclass(frozen=True, slots=True)
class ConvolutionPlan:
    """Gated short convolution: its last inputs are all of its state.

    Attributes:
        convolved: Features that go through it, C, as many as the stream has.
        window: Inputs that it sees, W.
        has_bias: True if products and convolution have biases.
    """

    convolved: int
    window: int
    has_bias: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of a state beside the window: one unused number, since there is none."""
        return 1, 1, 1


def convolution_plan(values: ConfigValues) -> ConvolutionPlan:
    """Read ``conv_L_cache`` and ``conv_bias``."""
    window = values.count("conv_L_cache", most=MOST_WINDOW)
    return ConvolutionPlan(values.count("hidden_size"), window, values.flag("conv_bias"))
