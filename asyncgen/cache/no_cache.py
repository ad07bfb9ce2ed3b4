"""What stands in the place of a cache with ``use_cache=False``: what the model has read so far.

Every forward pass begins anew from there. Rows change places, are repeated and cropped as those of
a cache are, so that strategies need not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.cache.caches import Cache
from asyncgen.cache.layers import DynamicLayer

if TYPE_CHECKING:
    from torch import Tensor


class NoCache(Cache):
    """Keeps embeddings, and no keys or values."""

    def __init__(self) -> None:
        """Begin with nothing."""
        super().__init__((), DynamicLayer)

    def read(self, embeddings: Tensor) -> Tensor:
        """Add embeddings ``[B, S, E]``; return all of them, ``[B, T, E]``."""
        (layer,) = self.ensure_layers(1)
        one_head = embeddings[:, None]  # [B, 1, S, E]
        keys, _ = layer.append(one_head.expand(2, *one_head.shape))
        return keys[:, 0]
