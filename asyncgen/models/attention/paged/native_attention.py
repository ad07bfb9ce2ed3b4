"""Attention over pages with our own kernel: all rows of a step at once, read in place.

The kernel writes new keys and values to their pages and reads only what a text has written, so
nothing is copied together and nothing cleared. The numbers of a text do not depend on the other
rows, on how the text was cut into steps or on the number of threads.
"""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, Any

import torch

from asyncgen import native
from asyncgen.cache.layer_groups import first_block

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from asyncgen.cache.paged_storage import PagedStorage
    from asyncgen.families.config import ModelConfig
    from asyncgen.families.plans.attention_options import AttentionOptions
    from asyncgen.models.attention.paged.packed_rows import PackedRow


class NativeAttention:
    """The `AttentionContext` of packed rows on processors that have the kernel.

    Attributes:
        compiled: See `AttentionContext`.
    """

    fused = None

    def __init__(self, config: ModelConfig, storage: PagedStorage) -> None:
        """Attend over a storage.

        Args:
            config: The model's.
            storage: Its pages, of a kind that is served.
        """
        assert native.kernels is not None
        self._dtype = storage.dtype
        size = config.head_dim
        self._width = config.num_attention_heads * size
        self._page_size = storage.page_size
        self._windows = storage.plan.windows
        groups = [group for group, _ in storage.plan.places()]
        self._kernel = native.kernels.Attention(
            [
                _layer(_matrices(storage, layer), options, size, group)
                for layer, (options, group) in enumerate(zip(config.attention, groups, strict=True))
            ],
            num_heads=config.num_attention_heads,
            kv_heads=storage.num_kv_heads,
            head_dim=size,
            page_size=storage.page_size,
            uses_tiles=native.uses_tiles(),
            codes_of=None if storage.scales is None else storage.dtype,
        )
        # See `AttentionContext`. A step calls it directly, without a Python function around it.
        self.attend: Callable[..., Tensor] = self._kernel.attend
        self.compiled = self._kernel
        self._num_tokens = 0
        self._memory = torch.empty(0, dtype=storage.dtype, device="cpu")
        self._out = self._memory.view(0, self._width)

    @staticmethod
    def serves(storage: PagedStorage) -> bool:
        """Return whether there is a kernel for these pages on this machine."""
        is_here = storage.device.type == "cpu" and storage.heads_first
        if storage.scales is not None and not native.supports_packed_pages():
            return False
        return (
            is_here and native.supports(storage.dtype) and storage.head_dim <= native.MOST_HEAD_DIM
        )

    def lay_out(self, rows: Sequence[PackedRow]) -> None:
        """See `PagedAttention`."""
        numbers: list[int] = []
        pages: list[int] = []
        token = 0
        for group, window in enumerate(self._windows):
            token = 0
            for row in rows:
                count, table = row.count, row.more[group - 1] if group else row.pages
                if window is None:
                    numbers += (token, count, row.start, len(pages))
                    pages += table
                else:
                    # The kernel finds a page by its number, but reads none before the window.
                    first = first_block(window, row.start, self._page_size)
                    numbers += (token, count, row.start, len(pages) - first)
                    pages += table[first:]
                token += count
        if token != self._num_tokens:
            self._lay_out_results(token)
        self._kernel.lay_out(array("q", numbers), array("q", pages), self._out)

    def begin(self, rows: int, length: int) -> None:
        """See `AttentionContext`; the step's rows are those that were laid out."""
        assert rows * length == self._num_tokens, "lay out the rows of this step first"

    def _lay_out_results(self, tokens: int) -> None:
        """Allocate room for the results of so many tokens, unless it is there."""
        count = tokens * self._width
        # Tensors made in inference mode cannot be written to outside of it.
        with torch.inference_mode(False):
            if self._memory.numel() < count:
                self._memory = torch.empty(count, dtype=self._dtype, device="cpu")
            self._out = self._memory[:count].view(tokens, self._width)
        self._num_tokens = tokens  # last: what fails above is done again by the next step


def _matrices(storage: PagedStorage, layer: int) -> tuple[Tensor, ...]:
    """View keys and values ``[P * K, page_size, D]``; of packed pages also their scales, ``[P * K,
    page_size]`` each."""
    scales = storage.scales_of(layer)
    if scales is None:
        return storage.matrices[layer]
    return *storage.matrices[layer], *scales.view(2, -1, storage.page_size).unbind(0)


def _layer(
    kept: tuple[Tensor, ...], options: AttentionOptions, size: int, group: int
) -> tuple[Any, ...]:
    """Describe a layer to the kernel: pages (`_matrices`), options, and the group's number."""
    scale = 1 / math.sqrt(size) if options.scale is None else options.scale
    window, cap = options.window or 0, options.cap or 0.0
    has_sinks = options.has_sinks
    return kept, window, options.is_chunked, scale, cap, options.slopes, has_sinks, group
