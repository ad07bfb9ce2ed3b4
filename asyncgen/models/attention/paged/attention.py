"""Attention over pages: the tokens of many texts packed into one step.

It knows pages and positions, not requests; who may read which page is decided before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.models.attention.paged.by_torch import TorchAttention
from asyncgen.models.attention.paged.native import NativeAttention
from asyncgen.models.attention.paged.plan import PackedRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from asyncgen.cache.paged import PagedStorage
    from asyncgen.models.attention.paged.fused import FusedKernel
    from asyncgen.models.config import ModelConfig

__all__ = ["PackedRow", "PagedAttention"]


class PagedAttention:
    """The `AttentionContext` of packed rows.

    For every forward pass: `lay_out` with the rows, then ``DecoderLM.decode_packed``.
    """

    def __init__(self, config: ModelConfig, storage: PagedStorage) -> None:
        """Attend over a storage.

        Args:
            config: The model's.
            storage: Its pages; made for the same configuration.
        """
        self._storage = storage
        chosen = NativeAttention if NativeAttention.serves(storage) else TorchAttention
        self._chosen: NativeAttention | TorchAttention = chosen(config, storage)

    @property
    def storage(self) -> PagedStorage:
        """Where keys and values are."""
        return self._storage

    @property
    def fused(self) -> FusedKernel | None:
        """The accelerator's kernel, where that is what computes."""
        return self._chosen.fused

    def lay_out(self, rows: Sequence[PackedRow]) -> None:
        """Get ready for a forward pass of these rows, whose tokens lie one row after another.

        Args:
            rows: At least one; texts differ, but their first pages may be the same.
        """
        self._chosen.lay_out(rows)

    def begin(self, rows: int, length: int) -> None:
        """See `AttentionContext`; the step's rows are those that were laid out."""
        self._chosen.begin(rows, length)

    def attend(self, layer: int, heads: Tensor) -> Tensor:
        """See `AttentionContext`."""
        return self._chosen.attend(layer, heads)
