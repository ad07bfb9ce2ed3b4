"""Attention of single tokens over pages, from memory that stays: what a recorded step reads.

A recording repeats the same kernels on the same addresses, with the same numbers wherever a kernel
was given a plain number. So all that changes from step to step lies in tensors that are written
anew before each repetition, and what cannot lie in a tensor (how many rows, how many pages of
each) is fixed, and padded to.

A row of padding writes its key to a page that no text has, and reads that one key. It could read
none; but a row without keys is a special case of each kernel, and one key is not.

Each group of layers has a table of its own; where there is a window, it begins at the first page
that is seen.

Where the kernel takes no table of pages, every row's pages are copied together first, as many as a
row may have. A kernel that reads keys one row after another has to be told to pass over those that
are not in use: they are given to a row of their own, which has no query.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Final

import torch

from asyncgen.cache.layer_groups import first_block, most_blocks
from asyncgen.models.attention.paged.fused import Reads, attend_fused
from asyncgen.models.attention.paged.packed_rows import padded
from asyncgen.runtime.transfer import to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from asyncgen.cache.paged_storage import PagedStorage
    from asyncgen.families.config import ModelConfig
    from asyncgen.models.attention.paged.fused import FusedKernel
    from asyncgen.models.attention.paged.packed_rows import PackedRow


_ALIGNMENT: Final = 64
"""In numbers of 4 bytes: kernels ask for addresses that are multiples of 16 bytes or more."""


@dataclass(slots=True)
class GroupBuffers:
    """What the layers of one group read; all of it stays where it is.

    Attributes:
        window: Keys that a query sees, itself included; ``None``: all.
        pages: Pages that each row may have in the table.
        cells: Where each row's key goes: page times ``page_size``, plus the place in the page,
            int32 ``[rows]``.
        reads: Who reads how much.
        known: What the table says of each row.
        slots: Rows of ``[2 * P * K * page_size, D]`` that are written, int64 ``[rows, 2K]``; made
            by the step itself.
        gathered: Pages that are copied together, where they are, int32 ``[2 * rows * pages]``;
            likewise.
    """

    window: int | None
    pages: int
    cells: Tensor
    reads: Reads
    known: list[list[int]] = field(default_factory=list)
    slots: Tensor | None = None
    gathered: Tensor | None = None


class GraphRows:
    """The `AttentionContext` of a fixed number of single tokens.

    Before each step: `place`. Everything else may be recorded.

    Attributes:
        rows: Tokens of a step, padding included.
        pages: Pages that each may have.
        ids: Their ids, int32 ``[rows]``; an id that is known on the device alone is written here.
        positions: Their positions, int32 ``[rows]``.
        groups: What the layers of each group read.
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
        self._group_of = [group for group, _ in storage.plan.places()]
        device, size = storage.device, storage.page_size
        kv_heads = storage.num_kv_heads
        self._flat = [layer.view(-1, storage.head_dim) for layer in storage.layers]
        # Rows whose keys lie one after another: with the gaps between them twice as many.
        self._ends_per_row = 1 if kernel.reads_pages else 2
        num_ends = self._ends_per_row * rows + 1
        self._width = -(-num_ends // _ALIGNMENT) * _ALIGNMENT
        windows = storage.plan.windows
        kinds = torch.arange(2)[:, None]
        with torch.inference_mode(False):
            num_parts = 2 + 3 * len(windows)
            self._numbers = torch.zeros(num_parts * self._width, dtype=torch.int32, device=device)
            parts = self._numbers.view(num_parts, self._width)
            self.ids, self.positions = parts[:2, :rows].unbind(0)
            offsets = kinds * (storage.num_pages * size * kv_heads) + torch.arange(kv_heads)
            self._offsets = offsets.flatten().to(device)  # [2K]
            self._kinds = (kinds * storage.num_pages).to(device)  # [2, 1]
            starts = torch.arange(num_ends, dtype=torch.int32, device=device)
            queries = (starts + self._ends_per_row - 1) // self._ends_per_row
            self.groups = [
                self._inputs(window, parts[2 + 3 * group :], queries)
                for group, window in enumerate(windows)
            ]
        self.place([], [])

    def _inputs(self, window: int | None, parts: Tensor, queries: Tensor) -> GroupBuffers:
        """The memory of one group: of the first three parts, and of a table."""
        rows, size, pages = self.rows, self._storage.page_size, self.pages
        if window is not None:
            pages = min(pages, most_blocks(window, size))
        cells, used = parts[:2, :rows].unbind(0)
        table = torch.zeros((rows, pages), dtype=torch.int32, device=parts.device)
        reads = Reads(queries, parts[2, : len(queries)], 1, pages * size, used, table)
        return GroupBuffers(window, pages, cells, reads)

    def place(self, rows: Sequence[PackedRow], ids: Sequence[int]) -> None:
        """Say what the next step computes; the rest is padding.

        Args:
            rows: No more than there are, of one token each, with no more pages up to that token
                than there are.
            ids: Of their tokens; any valid ones where `ids` is written to afterwards.
        """
        parts: list[Sequence[int]] = [ids, [row.start for row in rows]]
        changed = []
        for group, inputs in enumerate(self.groups):
            cells, used, tables = self._place_in(group, inputs.window, rows)
            parts += [cells, used, self._key_ends(inputs, used)]
            if tables != inputs.known:
                inputs.known = tables
                changed.append(inputs)
        numbers: list[int] = []
        for part in parts:
            numbers += [*part, *[0] * (self._width - len(part))]
        device = self._storage.device
        self._numbers.copy_(to_device(torch.tensor(numbers, dtype=torch.int32), device))
        # Pages are begun once in so many steps; otherwise the tables are right as they are.
        for inputs in changed:
            table = torch.tensor(padded(inputs.known, inputs.pages), dtype=torch.int32)
            inputs.reads.table.copy_(to_device(table, device))

    def _place_in(
        self, group: int, window: int | None, rows: Sequence[PackedRow]
    ) -> tuple[list[int], list[int], list[list[int]]]:
        """For one group: where each row's key goes, how many it reads, and of which pages."""
        size, padding = self._storage.page_size, self.rows - len(rows)
        cells, used, tables = [], [], []
        for row in rows:
            table = row.more[group - 1] if group else row.pages
            page, place = divmod(row.start, size)
            first = first_block(window, row.start, size)
            cells.append(table[page] * size + place)
            used.append(row.start + 1 - first * size)
            tables.append(list(table[first : page + 1]))
        cells += [self._scratch * size] * padding
        used += [1] * padding
        tables += [[self._scratch]] * padding
        return cells, used, tables

    def _key_ends(self, inputs: GroupBuffers, used: list[int]) -> list[int]:
        """First key of each row, and the end of the last one; with the gaps if there are any."""
        if self._ends_per_row == 1:
            return [0, *accumulate(used)]
        room = inputs.pages * self._storage.page_size
        pairs = ((row * room, row * room + count) for row, count in enumerate(used))
        return [*chain.from_iterable(pairs), self.rows * room]

    def begin(self, rows: int, length: int) -> None:
        """See `AttentionContext`; a part of what is recorded."""
        assert rows * length == self.rows
        for inputs in self.groups:
            cells = inputs.cells.long() * self._storage.num_kv_heads
            inputs.slots = cells[:, None] + self._offsets
            if not self._kernel.reads_pages:
                inputs.gathered = (self._kinds + inputs.reads.table.flatten()).flatten()

    def attend(self, layer: int, heads: Tensor, sinks: Tensor | None = None) -> Tensor:
        """See `AttentionContext`; a part of what is recorded."""
        inputs = self.groups[self._group_of[layer]]
        assert inputs.slots is not None
        self._flat[layer].index_put_((inputs.slots,), heads[:, self._heads :])
        pages = self._storage.layers[layer]  # [2, P, page_size, K, D]
        if inputs.gathered is not None:
            copies = pages.flatten(0, 1).index_select(0, inputs.gathered)
            pages = copies.view(2, -1, *pages.shape[3:])
        keys, values = pages.unbind(0)
        scale, window = self._scales[layer], inputs.window
        return attend_fused(self._kernel, heads, keys, values, inputs.reads, window, scale, sinks)
