"""Buffers of recorded steps: their content after rows were placed."""

from __future__ import annotations

from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.models.attention.paged.fused import FusedKernel
from asyncgen.models.attention.paged.graph_buffers import GraphRows
from asyncgen.models.attention.paged.packed_rows import PlacedRow
from tests.doubles.varlen import varlen_attn
from tests.models.packing import model


def test_rows_are_placed_and_the_rest_is_padding() -> None:
    config = model("llama").config
    storage = PagedStorage(config, 10, 4, heads_first=False)
    kernel = FusedKernel(varlen_attn, True, options={"enable_gqa": True})
    fixed = GraphRows(config, storage, kernel, rows=3, pages=3, scratch=9)
    [inputs] = fixed.groups
    table = inputs.reads.table
    addresses = [part.data_ptr() for part in (fixed.ids, fixed.positions, inputs.reads.table)]
    assert table.tolist() == [[9, 9, 9]] * 3
    pages = [5, 2]
    fixed.place([PlacedRow(0, 6, 1, pages), PlacedRow(1, 0, 1, [7])], [11, 12])
    assert fixed.ids.tolist() == [11, 12, 0]
    assert fixed.positions.tolist() == [6, 0, 0]
    assert inputs.cells.tolist() == [2 * 4 + 2, 7 * 4, 9 * 4]
    assert inputs.reads.used.tolist() == [7, 1, 1]
    assert inputs.reads.keys.tolist() == [0, 7, 8, 9]
    assert table.tolist() == [[5, 2, 5], [7, 7, 7], [9, 9, 9]]
    pages.append(8)  # a request's own list, which grows
    fixed.place([PlacedRow(0, 8, 1, pages)], [13])
    assert table.tolist() == [[5, 2, 8], [9, 9, 9], [9, 9, 9]]
    assert inputs.reads.used.tolist() == [9, 1, 1]
    assert addresses == [
        part.data_ptr() for part in (fixed.ids, fixed.positions, inputs.reads.table)
    ]


def test_keys_that_are_not_in_use_are_a_row_without_queries() -> None:
    config = model("llama").config
    storage = PagedStorage(config, 10, 4, heads_first=False)
    storage.data.zero_()
    kernel = FusedKernel(varlen_attn, False, options={"enable_gqa": True})
    fixed = GraphRows(config, storage, kernel, rows=3, pages=2, scratch=9)
    fixed.place([PlacedRow(0, 6, 1, [5, 2]), PlacedRow(1, 7, 1, [7, 0])], [11, 12])
    [inputs] = fixed.groups
    reads = inputs.reads
    assert reads.queries.tolist() == [0, 1, 1, 2, 2, 3, 3]
    assert reads.keys.tolist() == [0, 7, 8, 16, 16, 17, 24]
    assert (reads.most_queries, reads.most_keys) == (1, 8)
    fixed.begin(3, 1)
    assert inputs.gathered is not None
    assert inputs.gathered.tolist() == [5, 2, 7, 0, 9, 9, 15, 12, 17, 10, 19, 19]
