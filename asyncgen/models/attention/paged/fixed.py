"""Attention of single tokens over pages, from memory that stays: what a recorded step reads.

A recording repeats the same kernels on the same addresses, with the same numbers wherever a kernel
was given a plain number. So all that changes from step to step lies in tensors that are written
anew before each repetition, and what cannot lie in a tensor (how many rows, how many pages of
each) is fixed, and padded to.

A row of padding writes its key to a page that no text has, and reads that one key. It could read
none; but a row without keys is a special case of each kernel, and one key is not.

Where the kernel takes no table of pages, every row's pages are copied together first, as many as a
row may have. A kernel that reads keys one row after another has to be told to pass over those that
are not in use: they are given to a row of their own, which has no query.
"""

from __future__ import annotations

from itertools import accumulate, chain
from typing import TYPE_CHECKING, Final

import torch

from asyncgen.models.attention.paged.fused import Reads, attend_fused
from asyncgen.models.attention.paged.plan import padded
from asyncgen.transfer import to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from asyncgen.cache.paged import PagedStorage
    from asyncgen.models.attention.paged.fused import FusedKernel
    from asyncgen.models.attention.paged.plan import PackedRow
    from asyncgen.models.config import ModelConfig


_ALIGNMENT: Final = 64
"""In numbers of 4 bytes: kernels ask for addresses that are multiples of 16 bytes or more."""


class FixedRows:
    """The `AttentionContext` of a fixed number of single tokens.

    Before each step: `place`. Everything else may be recorded.

    Attributes:
        rows: Tokens of a step, padding included.
        pages: Pages that each may have.
        ids: Their ids, int32 ``[rows]``; an id that is known on the device alone is written here.
        positions: Their positions, int32 ``[rows]``.
    """

    compiled = None

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
            kernel: What computes.
            rows: At least 1.
            pages: At least 1.
            scratch: The page that padding writes to, of finite numbers.
        """
        assert kernel.is_recordable and not storage.heads_first
        self.rows, self.pages = rows, pages
        self._storage, self._kernel = storage, kernel
        self._scratch = scratch
        self._heads = config.num_attention_heads
        self._scales = [options.scale for options in config.attention]
        self._windows = [config.window(layer) for layer in range(config.num_hidden_layers)]
        device, size = storage.device, storage.page_size
        kv_heads = storage.num_kv_heads
        self._flat = [layer.view(-1, storage.head_dim) for layer in storage.layers]
        # Rows whose keys lie one after another: with the gaps between them twice as many.
        self._ends_per_row = 1 if kernel.reads_pages else 2
        num_ends = self._ends_per_row * rows + 1
        self._width = -(-num_ends // _ALIGNMENT) * _ALIGNMENT
        kinds = torch.arange(2)[:, None]
        with torch.inference_mode(False):
            self._numbers = torch.zeros(5 * self._width, dtype=torch.int32, device=device)
            parts = self._numbers.view(5, self._width)
            self.ids, self.positions, self._cells, self._used = parts[:4, :rows].unbind(0)
            self._table = torch.zeros((rows, pages), dtype=torch.int32, device=device)
            offsets = kinds * (storage.num_pages * size * kv_heads) + torch.arange(kv_heads)
            self._offsets = offsets.flatten().to(device)  # [2K]
            self._kinds = (kinds * storage.num_pages).to(device)  # [2, 1]
            starts = torch.arange(num_ends, dtype=torch.int32, device=device)
            queries = (starts + self._ends_per_row - 1) // self._ends_per_row
        ends = parts[4, :num_ends]
        self._reads = Reads(queries, ends, 1, pages * size, self._used, self._table)
        self._slots: Tensor | None = None
        self._gathered: Tensor | None = None
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
        size, padding = self._storage.page_size, self.rows - len(rows)
        starts, cells, used, tables = [], [], [], []
        for row in rows:
            page, place = divmod(row.start, size)
            starts.append(row.start)
            cells.append(row.pages[page] * size + place)
            used.append(row.start + 1)
            tables.append(list(row.pages[: page + 1]))
        cells += [self._scratch * size] * padding
        used += [1] * padding
        tables += [[self._scratch]] * padding
        numbers: list[int] = []
        for part in (ids, starts, cells, used, self._key_ends(used)):
            numbers += [*part, *[0] * (self._width - len(part))]
        device = self._storage.device
        self._numbers.copy_(to_device(torch.tensor(numbers, dtype=torch.int32), device))
        if tables != self._known:
            # Pages are begun once in so many steps; otherwise the table is right as it is.
            self._known = tables
            table = torch.tensor(padded(tables, self.pages), dtype=torch.int32)
            self._table.copy_(to_device(table, device))

    def _key_ends(self, used: list[int]) -> list[int]:
        """First key of each row, and the end of the last one; with the gaps if there are any."""
        if self._ends_per_row == 1:
            return [0, *accumulate(used)]
        room = self.pages * self._storage.page_size
        pairs = ((row * room, row * room + count) for row, count in enumerate(used))
        return [*chain.from_iterable(pairs), self.rows * room]

    def begin(self, rows: int, length: int) -> None:
        """See `AttentionContext`; a part of what is recorded."""
        assert rows * length == self.rows
        cells = self._cells.long() * self._storage.num_kv_heads
        self._slots = cells[:, None] + self._offsets  # [rows, 2K]
        if not self._kernel.reads_pages:
            self._gathered = (self._kinds + self._table.flatten()).flatten()  # [2 * rows * pages]

    def attend(self, layer: int, heads: Tensor, sinks: Tensor | None = None) -> Tensor:
        """See `AttentionContext`; a part of what is recorded."""
        assert self._slots is not None
        self._flat[layer].index_put_((self._slots,), heads[:, self._heads :])
        pages = self._storage.layers[layer]  # [2, P, page_size, K, D]
        if self._gathered is not None:
            copies = pages.flatten(0, 1).index_select(0, self._gathered)
            pages = copies.view(2, -1, *pages.shape[3:])
        keys, values = pages.unbind(0)
        window, scale = self._windows[layer], self._scales[layer]
        return attend_fused(self._kernel, heads, keys, values, self._reads, window, scale)
