"""Decode attention over one contiguous copy of the keys and values of all rows.

Short steps on a CPU are bound by the number of operator calls. So the pages of all rows are copied
together once for all layers. From then on each step appends to that copy and reads it with one
kernel. New keys are written back to the pages at the next layout, when another row may read them.

All texts end in the same column of the copy, so one operator appends to all of them, and a sliding
window is the same columns for all. Shorter texts begin later, after zeros that are masked.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from asyncgen.cache.layer_groups import first_block
from asyncgen.models.kernels.products import has_intel_kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from asyncgen.cache.paged_storage import PagedStorage
    from asyncgen.models.attention.paged.packed_rows import PackedRow, PlacedRow


MOST_COPIED: Final = 1024
"""Keys of the longest text that is copied; more would take memory that was not planned."""

MOST_COPIED_TOGETHER: Final = 8192
"""Keys of all texts that are copied together, with the zeros before and the room behind them."""

MOST_MATRICES: Final = 32
"""Matrices of keys (texts times heads) to copy if torch's kernel does not use Intel's own products.

That kernel takes microseconds for each small matrix, so more of them are as fast page by page,
without a copy: 32 texts with three heads take 52 ms a step page by page and 59 copied (two threads
of Zen 4 at bfloat16; 81 and 88 at float32).
"""

MOST_OF_POOL: Final = 0.125
"""Largest size of a copy, as a part of the pages' memory."""

LEAST_USED: Final = 0.5
"""Smallest part of the copied columns that must be keys, not zeros before short texts."""

SPARE_TOKENS: Final = 64
"""Tokens that the texts may grow by before they are copied again."""

HIDDEN: Final = -1e30
"""Number that hides a key. Finite, so that a block of hidden keys has a finite maximum."""


def are_worth_copying(rows: Sequence[PlacedRow], storage: PagedStorage) -> bool:
    """Return whether a copy of these rows' pages is small enough, and mostly keys."""
    longest = max(row.start for row in rows) + 1
    total = len(rows) * (longest + SPARE_TOKENS)
    if len(rows) > 1 and total > MOST_COPIED_TOGETHER:
        return False
    if len(rows) > 1 and len(rows) * storage.num_kv_heads > MOST_MATRICES:
        if not has_intel_kernels():
            return False
    token = storage.nbytes / (storage.num_pages * storage.page_size)
    if len(rows) > 1 and total * token > MOST_OF_POOL * storage.nbytes:
        return False
    used = sum(row.start + 1 for row in rows)
    return longest <= MOST_COPIED and used >= LEAST_USED * len(rows) * longest


class CopyBuffer:
    """Memory for one copy at a time; kept, since new memory costs more than copying into it."""

    def __init__(self, storage: PagedStorage) -> None:
        """Begin empty, in the dtype and on the device of the pages."""
        self._memory = torch.empty(0, dtype=storage.dtype, device=storage.device)

    def take(self, shape: tuple[int, ...]) -> Tensor:
        """Give memory of this shape, with arbitrary content; the memory given before is
        overwritten."""
        count = prod(shape)
        if self._memory.numel() < count:
            self._memory = self._memory.new_empty(0)  # free the smaller one first
            self._memory = self._memory.new_empty(count)
        return self._memory[:count].view(shape)


class ContiguousRows:
    """All rows of a step, with one token each, over a contiguous copy of their pages."""

    def __init__(
        self,
        rows: Sequence[PlacedRow],
        storage: PagedStorage,
        window: int | None,
        group: int,
        memory: CopyBuffer,
    ) -> None:
        """Copy the rows' pages together.

        Args:
            rows: The rows, in the order of their tokens.
            storage: Storage of the pages, with each head's keys together.
            window: Keys that a token sees, itself included; ``None``: all.
            group: Query heads for each key head, G.
            memory: Memory of the copy; used by this copy alone from now on.
        """
        self._storage = storage
        self._size = size = storage.page_size
        self._window = window
        self._group = group
        self._kv_heads, self._heads = storage.num_kv_heads, storage.num_kv_heads * group
        self._places = [place for _, place in storage.plan.places()]
        self._known: Tensor | None = None
        self._column = longest = max(row.start for row in rows)  # of the newest tokens
        # What was appended must be written back before its page leaves the window.
        spare = SPARE_TOKENS if window is None else min(SPARE_TOKENS, window - 1)
        self._most = min(longest + 1 + spare, MOST_COPIED)
        # The longest rows begin in the first column, shorter ones so many columns later.
        self._shifts = [longest - row.start for row in rows]
        self._unwritten = [row.start for row in rows]
        self._pages = [list(row.pages[: row.start // size + 1]) for row in rows]
        # The last page of a row may end beyond the last column that is used.
        width = self._most + size
        layout = (len(storage.data), 2, len(rows), self._kv_heads, width, storage.head_dim)
        self._copy = memory.take(layout)  # [L, 2, R, K, T, D]
        for number, (pages, shift) in enumerate(zip(self._pages, self._shifts, strict=True)):
            self._copy[:, :, number, :, :shift].zero_()
            first = first_block(window, rows[number].start, size)
            there = storage.data[:, :, pages[first:]].transpose(2, 3)
            self._paged(number, first, len(pages)).copy_(there)
        self._mask: Tensor | None = None
        if any(self._shifts):
            self._mask = _hide_beginnings(self._shifts, width, storage.data)
        self._see()

    def advance(self, rows: Sequence[PackedRow]) -> bool:
        """Serve the next step with this layout; see `DecodeRows.advance`."""
        column, size = self._column + 1, self._size
        if len(rows) != len(self._pages) or column >= self._most:
            return False
        for row, pages, shift in zip(rows, self._pages, self._shifts, strict=True):
            first = first_block(self._window, row.start, size)
            if row.start != column - shift or list(row.pages[first : len(pages)]) != pages[first:]:
                return False
        for number, (row, pages) in enumerate(zip(rows, self._pages, strict=True)):
            known = len(pages)
            if row.start == known * size:
                pages.append(row.pages[known])
                # The rest of the page must hold no NaN.
                self._paged(number, known, known + 1).zero_()
        self._column = column
        self._see()
        return True

    def settle(self) -> None:
        """Write the keys that were only appended to the copy to their pages."""
        for number, (pages, shift) in enumerate(zip(self._pages, self._shifts, strict=True)):
            first = self._unwritten[number] // self._size
            new = self._paged(number, first, len(pages))
            self._storage.data[:, :, pages[first:]] = new.transpose(2, 3)
            self._unwritten[number] = self._column - shift + 1

    def compute(
        self, layer: int, heads: Tensor, scale: float | None, sinks: Tensor | None = None
    ) -> Tensor:
        """Compute the rows' results ``[R, H * D]``; the layers have no sinks."""
        if heads is not self._known:  # most models use the same memory in every layer and step
            count, size = len(self._pages), heads.shape[2]
            own = heads.view(count, -1, size)
            queries, new = own[:, : self._heads], own[:, self._heads :]
            self._queries = queries.view(count, self._kv_heads, self._group, size)
            self._new = new.view(count, 2, self._kv_heads, size).transpose(0, 1)
            self._known = heads
        place = self._places[layer]
        self._newest[place].copy_(self._new)
        attended = scaled_dot_product_attention(
            self._queries,
            self._seen[2 * place],
            self._seen[2 * place + 1],
            attn_mask=self._hidden,
            scale=scale,
        )
        return attended.view(len(self._pages), -1)  # from [R, K, G, D]

    def _paged(self, row: int, first: int, end: int) -> Tensor:
        """View some pages of a row in the copy, ``[L, 2, K, pages, page_size, D]``."""
        begin, length = self._shifts[row] + first * self._size, (end - first) * self._size
        part = self._copy[:, :, row].narrow(3, begin, length)
        return part.view(*part.shape[:3], end - first, self._size, -1)

    def _see(self) -> None:
        """Point at the places of the newest tokens, and at the keys that they see, in all
        layers."""
        end = self._column + 1
        first = 0 if self._window is None else max(end - self._window, 0)
        self._newest = self._copy.select(4, self._column).unbind(0)  # [2, R, K, D] each
        seen = self._copy.narrow(4, first, end - first)
        self._seen = seen.flatten(0, 1).unbind(0)  # [R, K, T, D], two a layer
        self._hidden: Tensor | None = None
        if self._mask is not None:
            self._hidden = self._mask[..., first:end].expand(-1, -1, self._group, -1)


def _hide_beginnings(shifts: Sequence[int], width: int, like: Tensor) -> Tensor:
    """Make the mask that hides the columns before each text, ``[R, 1, 1, width]``."""
    mask = like.new_zeros(len(shifts), 1, 1, width)
    for row, shift in enumerate(shifts):
        mask[row, ..., :shift] = HIDDEN
    return mask
