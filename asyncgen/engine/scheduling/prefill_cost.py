"""Shrink prefill chunks as the context grows, so that each takes equal time.

The products of a token cost the same everywhere; its attention grows with the tokens before it. So
chunks of one size would delay running streams more and more. Plain Python over integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST = 16
"""Least tokens of a chunk, if its limit allows them: fewer tokens waste the read of the weights."""

SLOWER = 2
"""Time of a multiplication in attention, over that of one in a matrix product."""


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Cost of a prompt token, in multiplications.

    Attributes:
        products: Multiplications with all weights.
        layers: Multiplications of attention for one key, and the window, of each layer.
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
