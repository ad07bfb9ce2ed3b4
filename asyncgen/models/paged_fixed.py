"""Attention of single tokens over pages, from memory that stays: what a recorded step reads.

A recording repeats the same kernels on the same addresses, with the same numbers wherever a kernel
was given a plain number. So all that changes from step to step lies in tensors that are written
anew before each repetition, and what cannot lie in a tensor (how many rows, how many pages of
each) is fixed, and padded to.

A row of padding writes its key to a page that is nobody's, and reads that one key. It could read
none; but a row without keys is a special case of each kernel, and one key is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from asyncgen.models.paged_cuda import PageReads, attend_pages
from asyncgen.transfer import to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from asyncgen.cache.paged import PagedStorage
    from asyncgen.models.config import ModelConfig
    from asyncgen.models.paged_cuda import FusedKernel
    from asyncgen.models.paged_plan import PackedRow

__all__ = ["FixedRows"]

_ALIGNMENT: Final = 64
"""In numbers of 4 bytes: kernels ask for addresses that are multiples of 16 bytes or more."""


class FixedRows:
    """The `AttentionContext` of a fixed number of single tokens.

    Before each step: `place`. Everything else may be recorded.

    Attributes:
        rows: Tokens of a step, padding included.
        pages: Pages that each may have.
        ids: Their ids, int32 ``[rows]``; whoever knows an id only on the device writes it here.
        positions: Their positions, int32 ``[rows]``.
    """

    def __init__(
        self,
        config: ModelConfig,
        storage: PagedStorage,
        kernel: FusedKernel,
        *,
        rows: int,
        pages: int,
        scratch: int,
    ) -> None:
        """Allocate; all rows are padding.

        Args:
            config: The model's.
            storage: Where the pages are, tokens first.
            kernel: Reads pages.
            rows: At least 1.
            pages: At least 1.
            scratch: The page that padding writes to, of finite numbers.
        """
        assert kernel.reads_pages and not storage.heads_first
        self.rows, self.pages = rows, pages
        self._storage, self._kernel = storage, kernel
        self._scratch = scratch
        self._heads = config.num_attention_heads
        self._scales = config.attention_scales
        self._windows = [config.window(layer) for layer in range(config.num_hidden_layers)]
        device, size = storage.device, storage.page_size
        kv_heads = storage.num_kv_heads
        self._flat = [layer.view(-1, storage.head_dim) for layer in storage.layers]
        self._width = -(-rows // _ALIGNMENT) * _ALIGNMENT
        kinds = torch.arange(2)[:, None] * (storage.num_pages * size * kv_heads)
        with torch.inference_mode(False):
            self._numbers = torch.zeros(4 * self._width, dtype=torch.int32, device=device)
            parts = self._numbers.view(4, self._width)[:, :rows]
            self.ids, self.positions, self._cells, used = parts.unbind(0)
            self._table = torch.zeros((rows, pages), dtype=torch.int32, device=device)
            self._offsets = (kinds + torch.arange(kv_heads)).flatten().to(device)  # [2K]
            queries = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self._reads = PageReads(queries, used, self._table, 1, pages * size)
        self._slots: Tensor | None = None
        # What the table says of each row.
        self._known: list[list[int]] = [[] for _ in range(rows)]
        self.place([], [])

    def place(self, rows: Sequence[PackedRow], ids: Sequence[int]) -> None:
        """Say what the next step computes; the rest is padding.

        Args:
            rows: No more than there are, of one token each, with no more pages up to that token
                than there are.
            ids: Of their tokens; any valid ones where `ids` is written to afterwards.
        """
        size, width = self._storage.page_size, self._width
        numbers = [0] * (4 * width)
        scratch = self._scratch * size
        numbers[2 * width : 2 * width + self.rows] = [scratch] * self.rows
        numbers[3 * width : 3 * width + self.rows] = [1] * self.rows
        numbers[: len(rows)] = ids
        tables = []
        for number, row in enumerate(rows):
            start = row.start
            last = start // size
            numbers[width + number] = start
            numbers[2 * width + number] = row.pages[last] * size + start % size
            numbers[3 * width + number] = start + 1
            tables.append(list(row.pages[: last + 1]))
        tables += [[self._scratch]] * (self.rows - len(rows))
        device = self._storage.device
        self._numbers.copy_(to_device(torch.tensor(numbers, dtype=torch.int32), device))
        if tables != self._known:
            # Pages are begun once in so many steps; otherwise the table is right as it is.
            self._known = tables
            padded = [pages + pages[:1] * (self.pages - len(pages)) for pages in tables]
            self._table.copy_(to_device(torch.tensor(padded, dtype=torch.int32), device))

    def begin(self, rows: int, length: int) -> None:
        """See `AttentionContext`; a part of what is recorded."""
        assert rows * length == self.rows
        cells = self._cells.long() * self._storage.num_kv_heads
        self._slots = cells[:, None] + self._offsets  # [rows, 2K]

    def attend(self, layer: int, heads: Tensor) -> Tensor:
        """See `AttentionContext`; a part of what is recorded."""
        assert self._slots is not None
        self._flat[layer].index_put_((self._slots,), heads[:, self._heads :])
        return attend_pages(
            self._kernel,
            self._storage,
            layer,
            heads,
            self._reads,
            self._windows[layer],
            None if self._scales is None else self._scales[layer],
        )
