"""Fixed rows: what lies in their memory after they were placed."""

from __future__ import annotations

from asyncgen.cache.paged import PagedStorage
from asyncgen.models.paged_cuda import FusedKernel
from asyncgen.models.paged_fixed import FixedRows
from asyncgen.models.paged_plan import PlacedRow
from tests.doubles.recorders import paged_attention
from tests.models.test_paged import model


def test_rows_are_placed_and_the_rest_is_padding() -> None:
    config = model("llama").config
    storage = PagedStorage(config, 10, 4, heads_first=False)
    kernel = FusedKernel(paged_attention, True)
    fixed = FixedRows(config, storage, kernel, rows=3, pages=3, scratch=9)
    addresses = [part.data_ptr() for part in (fixed.ids, fixed.positions, fixed._table)]
    assert fixed._table.tolist() == [[9, 9, 9]] * 3
    pages = [5, 2]
    fixed.place([PlacedRow(0, 6, 1, pages), PlacedRow(1, 0, 1, [7])], [11, 12])
    assert fixed.ids.tolist() == [11, 12, 0]
    assert fixed.positions.tolist() == [6, 0, 0]
    assert fixed._cells.tolist() == [2 * 4 + 2, 7 * 4, 9 * 4]
    assert fixed._reads.used.tolist() == [7, 1, 1]
    assert fixed._table.tolist() == [[5, 2, 5], [7, 7, 7], [9, 9, 9]]
    pages.append(8)  # a request's own list, which grows
    fixed.place([PlacedRow(0, 8, 1, pages)], [13])
    assert fixed._table.tolist() == [[5, 2, 8], [9, 9, 9], [9, 9, 9]]
    assert fixed._reads.used.tolist() == [9, 1, 1]
    assert addresses == [part.data_ptr() for part in (fixed.ids, fixed.positions, fixed._table)]
