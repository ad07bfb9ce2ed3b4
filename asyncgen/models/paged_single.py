"""Attention of a single token that is alone in its step: its text's keys, side by side.

One text on a CPU is bound by the number of operator calls. Its pages are copied together once for
all layers; from then on each step appends to that copy and reads it with one kernel. The pages are
written when somebody else may read them: at the next layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from asyncgen.cache.paged import PagedStorage
    from asyncgen.models.paged_plan import PackedRow, PlacedRow

__all__ = ["MOST_COPIED", "SingleToken"]

MOST_COPIED: Final = 1024
"""Keys of the longest text that is copied together: more would be memory that nobody planned."""

SPARE_PAGES: Final = 4
"""Pages that the text may begin before it is copied again."""


class SingleToken:
    """The only row of a step, with one token."""

    def __init__(
        self, row: PlacedRow, storage: PagedStorage, window: int | None, group: int
    ) -> None:
        """Copy the row's pages together.

        Args:
            row: The row.
            storage: Where the pages are, with each head's keys together.
            window: Keys that the token sees, itself included; ``None``: all.
            group: Query heads for each key head, G.
        """
        self._storage = storage
        self._size = storage.page_size
        self._window = window
        self._kv_heads, self._heads = storage.num_kv_heads, storage.num_kv_heads * group
        self._known: Tensor | None = None
        self._start = self._unwritten = row.start
        self._pages = list(row.pages[: row.start // self._size + 1])
        count, size, head = len(self._pages), self._size, storage.head_dim
        shape = (storage.num_layers, 2, self._kv_heads, (count + SPARE_PAGES) * size, head)
        self._most = min(shape[3], MOST_COPIED)
        self._copy = storage.data.new_empty(shape)  # [L, 2, K, T, D]
        self._paged(0, count).copy_(storage.data[:, :, self._pages].transpose(2, 3))
        self._see()

    def advance(self, rows: Sequence[PackedRow]) -> bool:
        """Serve the next step with what was laid out for this one; see `SingleTokens.advance`."""
        if len(rows) != 1:
            return False
        row, known = rows[0], len(self._pages)
        if row.start != self._start + 1 or row.start >= self._most:
            return False
        if list(row.pages[:known]) != self._pages:
            return False
        if row.start == known * self._size:
            self._pages.append(row.pages[known])
            self._paged(known, known + 1).zero_()  # nobody shall find NaN in the rest of it
        self._start = row.start
        self._see()
        return True

    def settle(self) -> None:
        """Write to the pages what was only appended to the copy."""
        first = self._unwritten // self._size
        new = self._paged(first, len(self._pages))
        self._storage.data[:, :, self._pages[first:]] = new.transpose(2, 3)
        self._unwritten = self._start + 1

    @property
    def is_whole(self) -> bool:
        """Whether `compute` gives the results of all tokens of the step."""
        return True

    def attend(self, layer: int, heads: Tensor, out: Tensor, scale: float | None) -> None:
        """Write the row's part of ``out`` ``[1, H * D]``; ``heads`` is ``[1, H + 2K, D]``."""
        out.copy_(self.compute(layer, heads, scale))

    def compute(self, layer: int, heads: Tensor, scale: float | None) -> Tensor:
        """The row's results ``[1, H * D]``."""
        if heads is not self._known:  # most models use the same memory in every layer and step
            own = heads.view(-1, heads.shape[2])
            self._queries = own[: self._heads].view(self._kv_heads, 1, -1, heads.shape[2])
            self._new = own[self._heads :].view(2, self._kv_heads, heads.shape[2])
            self._known = heads
        self._newest[layer].copy_(self._new)
        attended = scaled_dot_product_attention(
            self._queries, self._seen[2 * layer], self._seen[2 * layer + 1], scale=scale
        )
        return attended.view(1, -1)  # from [K, 1, G, D]

    def _paged(self, first: int, end: int) -> Tensor:
        """Some pages of the copy, ``[L, 2, K, pages, page_size, D]``."""
        part = self._copy.narrow(3, first * self._size, (end - first) * self._size)
        return part.view(*part.shape[:3], end - first, self._size, -1)

    def _see(self) -> None:
        """Point at the place of the newest token, and at what it sees, in every layer."""
        end = self._start + 1
        first = 0 if self._window is None else max(end - self._window, 0)
        self._newest = self._copy.select(3, self._start).unbind(0)  # [2, K, D] each
        seen = self._copy.narrow(3, first, end - first)
        self._seen = seen.unsqueeze(3).flatten(0, 1).unbind(0)  # [K, 1, T, D], two a layer
