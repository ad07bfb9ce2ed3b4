"""Plans of mixers with a real-gated linear recurrent unit. This module imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncgen.families.plans.delta_plan import MOST_WINDOW

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues


@dataclass(frozen=True, slots=True)
class GriffinPlan:
    """The recurrent block of Griffin: see `GriffinMixer`.

    Attributes:
        convolved: Channels, D, all of which go through the convolution.
        heads: Blocks of them, H, each with gates of its own.
        window: Inputs that the convolution sees, W.
    """

    convolved: int
    heads: int
    window: int

    @property
    def size(self) -> int:
        """Channels of a block."""
        return self.convolved // self.heads

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of a row's state: a number a channel, and one that is 1 once the text has begun."""
        return 1, 1, self.convolved + 1


def griffin_plan(values: ConfigValues) -> GriffinPlan:
    """Read ``lru_width``, ``num_attention_heads`` and ``conv1d_width``."""
    heads = values.count("num_attention_heads")
    width = values.count("lru_width", default=values.count("hidden_size"))
    if width % heads:
        raise values.bad("lru_width", width, f"must be a multiple of the {heads} heads")
    return GriffinPlan(width, heads, values.count("conv1d_width", most=MOST_WINDOW))
