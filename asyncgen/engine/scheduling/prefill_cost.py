"""Shrink prefill chunks as the context grows, so that each takes equal time.

A token's products cost the same everywhere; its attention grows with what lies before it. Chunks
of one size would hold running streams up for longer and longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from asyncgen.models.kernels.linear import Linear

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.families.config import ModelConfig

LEAST = 16
"""Tokens that a chunk has at least, where so many are allowed: fewer waste the weights."""

SLOWER = 2
"""Multiplications of attention take about so many times as long as those of products."""


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Cost of a prompt token, in multiplications.

    Attributes:
        products: With all weights.
        layers: For each layer those of attention for one key, and its window.
    """

    products: int
    layers: Sequence[tuple[int, int | None]]

    def chunk(self, most: int, depth: int) -> int:
        """Return the tokens after a text that take as long as a full chunk at its beginning.

        Args:
            most: Tokens of a chunk at the beginning of a text, at least 1.
            depth: Tokens of the text before this chunk.

        Returns:
            From the smaller of ``most`` and 16 to ``most``.
        """
        attention = sum(
            each * (depth if window is None else min(depth, window)) for each, window in self.layers
        )
        costs = self.products + SLOWER * attention
        return max(most * self.products // costs, min(most, LEAST)) if costs else most


def prefill_cost(core: Any) -> PrefillCost | None:
    """The cost of a core of ours: of its linear layers, and of queries with keys and values.

    ``None`` for what is no network.
    """
    if not isinstance(core, nn.Module):
        return None
    config: ModelConfig = core.config  # type: ignore[assignment]
    products = sum(
        module.in_features * module.out_features
        for module in core.modules()
        if isinstance(module, Linear) and module is not core.lm_head
    )
    each = 2 * config.num_attention_heads * config.head_dim
    return PrefillCost(products, [(each, config.window(layer)) for layer in config.attending])
