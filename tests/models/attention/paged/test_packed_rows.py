"""The planner: every row finds every page it reads, in a batch that reads it for that row."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from asyncgen.models.attention.paged.packed_rows import (
    MOST_PADDING,
    SHORTEST_RUN,
    SPARE_PAGES,
    PagePlan,
    PlacedRow,
    bucket_chunks,
    bucket_lengths,
    plan_pages,
)

K = 3


def found(plan: PagePlan, number_of_rows: int) -> list[list[int]]:
    """List, for each row, the pages at its places and strides, seen from the batches' side."""
    pages: dict[tuple[int, int], tuple[int, int | None]] = {}
    place = 0
    for batch in plan.batches:
        readers = batch.readers or (None,)
        for slot, page in enumerate(batch.pages):
            for member, reader in enumerate(readers):
                owner = batch.owners[slot] if reader is None else reader
                pages[place + slot * K * len(readers) + member, len(readers)] = page, owner
        place += len(batch.pages) * K * len(readers)
    result = []
    for row in range(number_of_rows):
        strides = plan.strides[row] if plan.strides else [1] * len(plan.places[row])
        mine = [pages[at, stride] for at, stride in zip(plan.places[row], strides, strict=True)]
        assert all(owner == row for _, owner in mine)
        result.append([page for page, _ in mine])
    return result


@given(
    private=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    shared=st.integers(0, 40),
    some=st.integers(0, 20),
    scattered=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_every_page_is_found_by_its_readers(
    private: list[int], shared: int, some: int, scattered: bool, seed: int
) -> None:
    pages = list(range(400))
    if scattered:
        random.Random(seed).shuffle(pages)
    common, pages = pages[:shared], pages[shared:]
    partly, pages = pages[:some], pages[some:]
    tables = []
    for row, count in enumerate(private):
        tables.append(common + (partly if row % 2 else []) + pages[:count])
        pages = pages[count:]
    plan = plan_pages(tables, K)
    assert found(plan, len(tables)) == tables
    flat = [number for row in plan.results for number in row]
    assert len(set(flat)) == len(flat)
    total = sum(len(b.pages) if b.readers is None else len(b.readers) for b in plan.batches)
    assert all(0 <= number < total for number in flat)


def test_pages_side_by_side_are_one_block_read_in_place() -> None:
    plan = plan_pages([[0, 2, 4], [1, 3, 7]], K)
    assert [batch.pages for batch in plan.batches] == [range(8)]
    assert plan.strides is None


def test_pages_that_lie_alone_are_copied_together() -> None:
    plan = plan_pages([[0, 100, 200], list(range(300, 300 + SHORTEST_RUN))], K)
    assert [batch.pages for batch in plan.batches] == [range(300, 308), [0, 100, 200]]


def test_a_long_common_prefix_is_read_once() -> None:
    tables = [[*range(40), 50 + row] for row in range(8)]
    plan = plan_pages(tables, K)
    assert [batch.readers for batch in plan.batches] == [None, tuple(range(8))]
    assert [len(row) for row in plan.results] == [2] * 8


def test_a_short_common_prefix_is_copied() -> None:
    plan = plan_pages([[0, 1], [0, 2]], K)
    assert all(batch.readers is None for batch in plan.batches)
    assert sorted(page for batch in plan.batches for page in batch.pages) == [0, 0, 1, 2]


@given(st.lists(st.integers(1, 500), min_size=1, max_size=40))
def test_padding_at_most_doubles_a_bucket(lengths: list[int]) -> None:
    buckets = bucket_lengths(lengths)
    assert sorted(row for bucket in buckets for row in bucket) == list(range(len(lengths)))
    for bucket in buckets:
        assert 2 * min(lengths[row] for row in bucket) >= lengths[bucket[0]]
    assert len(buckets) <= 9


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(2, 90)), min_size=1, max_size=20))
def test_chunks_of_a_bucket_are_of_a_kind_and_of_similar_size(sizes: list[tuple[int, int]]) -> None:
    rows, token = [], 0
    for start, count in sizes:
        rows.append(PlacedRow(token, start, count, range(100)))
        token += count
    buckets = bucket_chunks(rows)
    assert sorted(row.token for bucket in buckets for row in bucket) == [row.token for row in rows]
    for bucket in buckets:
        assert len({row.start for row in bucket}) == 1
        padded = len(bucket) * max(row.count for row in bucket)
        assert padded <= MOST_PADDING + sum(row.count for row in bucket)


@given(st.integers(0, 50), st.integers(1, 50), st.sampled_from([1, 4, 16]))
def test_cells_are_where_positions_lie(start: int, count: int, size: int) -> None:
    pages = random.Random(0).sample(range(200), 101)
    row = PlacedRow(0, start, count, pages)
    expected = [pages[at // size] * size + at % size for at in range(start, start + count)]
    assert list(row.cells(size)) == expected
    end = start + count
    begins = [at for at in range(start, end) if at % size == 0]
    begun = pages[begins[-1] // size] if begins and end % size else None
    assert row.begun_page(size) == begun


def test_the_last_block_has_room_for_pages_to_come() -> None:
    plan = plan_pages([[3, 4], [40, 41]], K, num_pages=50)
    far = plan_pages([list(range(10)), [40, *range(41, 49)]], K, num_pages=50)
    assert plan.batches[-1].pages == [3, 4, 40, 41]  # copied, so there is no place beside them
    assert plan.number_of(5) is None
    assert [batch.pages for batch in far.batches] == [range(10), range(40, 50)]
    assert far.number_of(49) == 19 and far.number_of(39) is None
    alone = plan_pages([list(range(2, 18))], K, num_pages=200)
    assert alone.batches[0].pages == range(2, 2 + 2 * SPARE_PAGES)
    assert alone.number_of(20) == 18
