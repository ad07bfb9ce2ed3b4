"""The stand-in of a cache with ``use_cache=False``: the embeddings read so far.

Every forward pass begins anew from them. Rows are reordered, repeated and cropped as those of a
cache, so that strategies need not know.
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
        """Begin empty."""
        self._open((), DynamicLayer)

    def read(self, embeddings: Tensor) -> Tensor:
        """Add embeddings ``[B, S, E]``; return all of them, ``[B, T, E]``."""
        (layer,) = self.ensure_layers(1)
        one_head = embeddings[:, None]  # [B, 1, S, E]
        keys, _ = layer.append(one_head.expand(2, *one_head.shape))
        return keys[:, 0]
