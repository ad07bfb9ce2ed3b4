"""Single tokens over pages, page by page, against plain products."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.families.config import ModelConfig
from asyncgen.families.plans.attention_options import AttentionOptions
from asyncgen.models.attention.paged.decode import DecodeRows
from asyncgen.models.attention.paged.packed_rows import PlacedRow
from tests.models.build import random_config
from tests.models.written_out import attend_plainly, sinks_of, some_options

D = 8


def storage_of(kv_heads: int, num_pages: int, page_size: int) -> PagedStorage:
    raw = random_config("llama", num_attention_heads=kv_heads, num_key_value_heads=kv_heads)
    storage = PagedStorage(ModelConfig.from_hf(raw), num_pages, page_size)
    storage.data.normal_()
    return storage


@settings(max_examples=60, deadline=None)
@given(
    starts=st.lists(st.integers(0, 90), min_size=1, max_size=9),
    prefix=st.integers(0, 12),
    kv_heads=st.sampled_from([1, 2, 3]),
    group=st.sampled_from([1, 2, 3, 4, 7]),
    page_size=st.sampled_from([1, 4, 16]),
    drawn=st.data(),
    spread=st.sampled_from([1, 3, 40]),
    seed=st.integers(0, 10**6),
)
def test_it_equals_plain_products(
    starts: list[int],
    prefix: int,
    kv_heads: int,
    group: int,
    page_size: int,
    drawn: st.DataObject,
    spread: int,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    options = drawn.draw(some_options(group * kv_heads, [None, 1, 5, 40]))
    sinks = sinks_of(options, group * kv_heads)
    tables = [start // page_size + 1 for start in starts]
    total = (sum(tables) + prefix) * spread
    storage = storage_of(kv_heads, total, page_size)
    pages = random.Random(seed).sample(range(total), sum(tables) + prefix)
    if spread == 1 and seed % 2:
        pages.sort()
    common, pages = pages[:prefix], pages[prefix:]
    rows = []
    for number, (start, count) in enumerate(zip(starts, tables, strict=True)):
        table = (common + pages)[:count] if number % 3 else pages[:count]
        pages = pages[count:] if number % 3 == 0 else pages[max(count - prefix, 0) :]
        # Rows of several tokens lie between.
        rows.append(PlacedRow(2 * number, start, 1, table))
    heads = torch.randn(2 * len(rows), (group + 2) * kv_heads, D)
    out = torch.zeros(2 * len(rows), group * kv_heads * D)
    DecodeRows(rows, storage, options.kind, group).attend(0, heads, out, options.scale, sinks)
    assert (out[1::2] == 0).all()
    for row in rows:
        queries = heads[row.token : row.token + 1, : group * kv_heads]
        expected = attend_plainly(row, storage, options, group, queries)[0]
        torch.testing.assert_close(out[row.token], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("start", "pages"),
    [(5, [1, 0]), (6, [2, 0]), (8, [1, 0, 3])],
    ids=["no further", "other pages", "next page"],
)
def test_advance_accepts_only_the_same_rows(start: int, pages: list[int]) -> None:
    part = DecodeRows([PlacedRow(0, 5, 1, [1, 0])], storage_of(2, 4, 4), AttentionOptions(), 1)
    assert not part.advance([PlacedRow(0, start, 1, pages)])
    assert not part.advance([])
    assert part.advance([PlacedRow(0, 6, 1, [1, 0, 3])])
    assert part.advance([PlacedRow(0, 7, 1, [1, 0])])


@settings(max_examples=25, deadline=None)
@given(
    starts=st.lists(st.integers(0, 20), min_size=2, max_size=7),
    shared=st.integers(0, 3),
    group=st.sampled_from([1, 3]),
    drawn=st.data(),
    seed=st.integers(0, 10**6),
)
def test_rows_that_begin_pages_go_on_in_the_same_layout(
    starts: list[int], shared: int, group: int, drawn: st.DataObject, seed: int
) -> None:
    begin_pages(starts, shared, group, drawn.draw(some_options(2 * group, [None, 8, 25])), seed)


def test_a_layout_has_room_for_pages_that_are_begun() -> None:
    assert begin_pages([0, 5, 9], 0, 1, AttentionOptions(), 0)


def begin_pages(
    starts: list[int], shared: int, group: int, options: AttentionOptions, seed: int
) -> int:
    """Compare twelve steps with plain attention; return the number of pages begun in a layout."""
    torch.manual_seed(seed)
    size, kv_heads = 4, 2
    storage = storage_of(kv_heads, 80, size)
    free = iter(range(80))
    common = [next(free) for _ in range(shared)]
    tables = [
        (common + [next(free) for _ in range(start // size + 1)])[: start // size + 1]
        for start in starts
    ]
    used = {page for table in tables for page in table}
    for page in range(80):
        if page not in used:
            storage.data[:, :, page] = torch.nan
    part, begun = None, 0
    for step in range(12):
        rows = []
        for number, (start, table) in enumerate(zip(starts, tables, strict=True)):
            place = start + step
            if place // size == len(table):
                table.append(next(free))
                storage.data[:, :, table[-1]].normal_()
            rows.append(PlacedRow(number, place, 1, table))
        if part is None or not part.advance(rows):
            part = DecodeRows(rows, storage, options.kind, group)
        else:
            begun += sum(row.start % size == 0 for row in rows)
        heads = torch.randn(len(rows), (group + 2) * kv_heads, D)
        found = part.compute(0, heads, options.scale, sinks_of(options, 2 * group))
        for row, one in zip(rows, found, strict=True):
            queries = heads[row.token : row.token + 1, : group * kv_heads]
            expected = attend_plainly(row, storage, options, group, queries)[0]
            torch.testing.assert_close(one, expected, atol=1e-5, rtol=0)
    return begun
