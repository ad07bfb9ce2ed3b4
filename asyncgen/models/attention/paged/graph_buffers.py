"""Decode attention over pages from fixed memory, for steps that are recorded as CUDA graphs.

A recording repeats the same kernels on the same addresses, with the same plain numbers. So
everything that changes from step to step lies in tensors that are written anew before each
repetition. The number of rows and the number of pages of each row cannot lie in a tensor: they are
fixed, and steps are padded to them.

A row of padding writes its key to a page that no text has, and reads that one key. A row without
keys would be a special case of each kernel.

Each group of layers has its own block table; with a window it begins at the first visible page.

If the kernel takes no block table, every row's pages are copied together first, as many as a row
may have. A kernel that reads keys one row after another must then skip the unused ones: they are
given to a row of their own, which has no query.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Final

import torch

from asyncgen.cache.layer_groups import first_block, most_blocks
from asyncgen.models.attention.paged.fused import Reads, attend_fused
from asyncgen.models.attention.paged.packed_rows import padded
from asyncgen.runtime.transfer import host_range, to_device

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
    """Fixed tensors that the layers of one group read.

    Attributes:
        window: Keys that a query sees, itself included; ``None``: all.
        pages: Pages that each row may have in the table.
        cells: Place of each row's new key: page times ``page_size``, plus the place in the page,
            int32 ``[rows]``.
        reads: What each row reads.
        known: Content of the table, by row.
        slots: Rows of ``[2 * P * K * page_size, D]`` that are written, int64 ``[rows, 2K]``; made
            by the step itself.
        gathered: Pages that are copied together, int32 ``[2 * rows * pages]``; made by the step
            itself.
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

    Call `place` before each step. Everything else may be recorded.

    Attributes:
        rows: Tokens of a step, padding included.
        pages: Pages that each may have.
        ids: Their ids, int32 ``[rows]``; an id that only the device knows is written here.
        positions: Their positions, int32 ``[rows]``.
        groups: Buffers of each group of layers.
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
        """Allocate the buffers; all rows are padding.

        Args:
            config: The model's.
            storage: Storage of the pages, tokens first.
            kernel: The kernel that computes.
            rows: At least 1.
            pages: At least 1.
            scratch: Page that padding writes to, of finite numbers.
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
        # Without a table keys lie one row after another; with the gaps there are twice as many
        # ends.
        self._ends_per_row = 1 if kernel.reads_pages else 2
        num_ends = self._ends_per_row * rows + 1
        self._width = -(-num_ends // _ALIGNMENT) * _ALIGNMENT
        windows = storage.plan.windows
        kinds = host_range(2)[:, None]
        with torch.inference_mode(False):
            num_parts = 2 + 3 * len(windows)
            self._numbers = torch.zeros(num_parts * self._width, dtype=torch.int32, device=device)
            parts = self._numbers.view(num_parts, self._width)
            self.ids, self.positions = parts[:2, :rows].unbind(0)
            offsets = kinds * (storage.num_pages * size * kv_heads) + host_range(kv_heads)
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
        """Make the buffers of one group: three parts of the shared memory, and a table."""
        rows, size, pages = self.rows, self._storage.page_size, self.pages
        if window is not None:
            pages = min(pages, most_blocks(window, size))
        cells, used = parts[:2, :rows].unbind(0)
        table = torch.zeros((rows, pages), dtype=torch.int32, device=parts.device)
        reads = Reads(queries, parts[2, : len(queries)], 1, pages * size, used, table)
        return GroupBuffers(window, pages, cells, reads)

    def place(self, rows: Sequence[PackedRow], ids: Sequence[int]) -> None:
        """Write the rows of the next step into the buffers; the rest is padding.

        Args:
            rows: At most as many as there are, of one token each, with at most as many pages up to
                that token.
            ids: Ids of their tokens; any valid ones if `ids` is written to afterwards.
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
        self._numbers.copy_(
            to_device(torch.tensor(numbers, dtype=torch.int32, device="cpu"), device)
        )
        # Pages begin only once in many steps; otherwise the tables are right already.
        for inputs in changed:
            table = torch.tensor(
                padded(inputs.known, inputs.pages), dtype=torch.int32, device="cpu"
            )
            inputs.reads.table.copy_(to_device(table, device))

    def _place_in(
        self, group: int, window: int | None, rows: Sequence[PackedRow]
    ) -> tuple[list[int], list[int], list[list[int]]]:
        """Give, for one group, the place of each row's key, the number of keys it reads, and their
        pages."""
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
        """List the first key of each row and the end of the last one, with the gaps if there are
        any."""
        if self._ends_per_row == 1:
            return [0, *accumulate(used)]
        room = inputs.pages * self._storage.page_size
        pairs = ((row * room, row * room + count) for row, count in enumerate(used))
        return [*chain.from_iterable(pairs), self.rows * room]

    def begin(self, rows: int, length: int) -> None:
        """See `AttentionContext`; a part of the recording."""
        assert rows * length == self.rows
        for inputs in self.groups:
            cells = inputs.cells.long() * self._storage.num_kv_heads
            inputs.slots = cells[:, None] + self._offsets
            if not self._kernel.reads_pages:
                inputs.gathered = (self._kinds + inputs.reads.table.flatten()).flatten()

    def attend(self, layer: int, heads: Tensor, sinks: Tensor | None = None) -> Tensor:
        """See `AttentionContext`; a part of the recording."""
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
