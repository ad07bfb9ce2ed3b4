"""Rows of a packed step, and the batches of pages that decode attention computes: integers alone.

Decode rows read the cache page by page. Pages of all rows that lie side by side in memory form one
*batch* of matrices that is read in place. This module decides which batches there are. A few unused
pages inside a batch are computed and ignored; pages that lie alone are copied together; pages that
many rows share are read once for all of them. This module imports no torch.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import chain, count, product
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from asyncgen.families.plans.attention_options import AttentionOptions

WIDEST_HOLE: Final = 8
"""Unused pages in a row that a batch computes over; another batch costs about as much."""

SHORTEST_RUN: Final = 8
"""Runs of fewer used pages are copied together, if there are several."""

LEAST_SAVED: Final = 16
"""Reads of a page that sharing must save to be worth a batch of its own."""

SPARE_PAGES: Final = 16
"""The last batch that is read in place is as long as a multiple of so many pages.

The pages that rows begin next mostly lie there, and then need no new layout. It also keeps the
number of batch sizes small: oneDNN compiles a product for each, which takes longer than ten layers.
"""

MOST_PADDING: Final = 8
"""Tokens of padding that prompt chunks computed together may need in all.

From chunks of 16 tokens on, more padding costs more than the calls that it saves.
"""


class PackedRow(Protocol):
    """A row of a packed step: some tokens of one text.

    Attributes:
        start: Position of the first token that is computed now.
        count: Tokens that are computed now, at least 1.
        pages: Block table of the first group of layers: the pages of positions 0 to ``start + count
            - 1``, in order; there may be more. Entries that no computed token sees hold any number.
        more: Block tables of the other groups, in order.
    """

    @property
    def start(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def pages(self) -> Sequence[int]: ...
    @property
    def more(self) -> Sequence[Sequence[int]]: ...


@dataclass(slots=True)
class PlacedRow:
    """A row with the place of its tokens in the step.

    Attributes:
        token: Number of its first token among the step's N.
        start: Position of that token in its text.
        count: Tokens that are computed now.
        pages: Block table.
        more: Those of other groups, if the row is for several.
    """

    token: int
    start: int
    count: int
    pages: Sequence[int]
    more: Sequence[Sequence[int]] = ()

    def begun_page(self, page_size: int) -> int | None:
        """Return the page that this step begins and does not fill, if there is one."""
        end = self.start + self.count
        first = (end - 1) // page_size * page_size
        return self.pages[first // page_size] if end % page_size and first >= self.start else None

    def cells(self, page_size: int) -> Iterable[int]:
        """Yield the places of its tokens: page times ``page_size``, plus the place in the page."""
        end = self.start + self.count
        for number in range(self.start // page_size, (end - 1) // page_size + 1):
            begin, base = number * page_size, self.pages[number] * page_size
            yield from range(base + max(self.start - begin, 0), base + min(end - begin, page_size))


@dataclass(frozen=True, slots=True)
class PageBatch:
    """Pages that are computed as one batch.

    Attributes:
        pages: Their numbers; a range is read in place, a list is copied first.
        readers: Rows that read each of the pages; ``None``: a page has one reader or none.
        owners: Without ``readers``: the row that reads each page; unread pages name any row.
    """

    pages: range | list[int]
    readers: tuple[int, ...] | None
    owners: list[int]


@dataclass(frozen=True, slots=True)
class PagePlan:
    """The batches of a step, and the place of each row's pages in them.

    The scores of a batch are ``[pages, K, M, G, page_size]`` for its M readers (one without
    ``readers``). Those of all batches follow each other, and *places* count in steps of ``G *
    page_size``. Results are ``[pages, H * D]`` for batches without ``readers``, all of them one
    after another, then one of ``[H * D]`` for each reader of each other batch.

    Attributes:
        batches: Those without ``readers`` first.
        places: For each row and each of its pages in order, the place of the first key head.
        strides: Places from one key head to the next; ``None``: always 1.
        results: For each row, the results that add up to its own.
    """

    batches: list[PageBatch]
    places: list[list[int]]
    strides: list[list[int]] | None
    results: list[list[int]]

    def number_of(self, page: int) -> int | None:
        """Return the number of a page that is computed in place and has one reader or none."""
        before = 0
        for batch in self.batches:
            if batch.readers is None and isinstance(batch.pages, range) and page in batch.pages:
                return before + page - batch.pages[0]
            before += len(batch.pages)
        return None


def place_rows(rows: Sequence[PackedRow], group: int = 0) -> list[PlacedRow]:
    """Number the tokens of the rows, in the order of the rows, for one group of layers."""
    placed, token = [], 0
    for row in rows:
        pages = row.more[group - 1] if group else row.pages
        placed.append(PlacedRow(token, row.start, row.count, pages))
        token += row.count
    return placed


def visible_pages(
    rows: Sequence[PlacedRow], page_size: int, options: AttentionOptions
) -> tuple[list[int], list[list[int]]]:
    """List the pages that each row's queries see: the number of the first one, and all from there
    on."""
    firsts, tables = [], []
    for row in rows:
        first = options.first_seen(row.start) // page_size
        firsts.append(first)
        tables.append(list(row.pages[first : (row.start + row.count - 1) // page_size + 1]))
    return firsts, tables


def plan_pages(
    tables: Sequence[Sequence[int]], kv_heads: int, num_pages: int | None = None
) -> PagePlan:
    """Decide how the pages of rows with one token each are computed.

    Args:
        tables: Pages that each row sees, at least one a row, none twice in a row.
        kv_heads: Key heads, K.
        num_pages: Number of all pages, to leave room for those that rows begin later; ``None``
            leaves none.
    """
    flat = list(chain.from_iterable(tables))
    owners = {page: row for row, table in enumerate(tables) for page in table}
    copies: list[tuple[int, int]] = []
    groups: dict[tuple[int, ...], list[int]] = {}
    if len(owners) < len(flat):
        groups, copies = _share(tables, owners)
    batches, strays = _private_batches(owners, num_pages)
    # A page in a batch has its number there; copies for other readers come last.
    known = dict(zip(chain.from_iterable(batch.pages for batch in batches), count(), strict=False))
    first_stray = sum(len(batch.pages) for batch in batches)
    known.update(zip((page for page, _ in strays), count(first_stray), strict=False))
    first_copy = first_stray + len(strays)
    copied = dict(zip(copies, count(first_copy), strict=False))
    strays += copies
    if strays:
        batches.append(PageBatch([page for page, _ in strays], None, [row for _, row in strays]))
    if not groups and not copies:
        results = [[known[page] for page in table] for table in tables]
        return PagePlan(batches, [[n * kv_heads for n in row] for row in results], None, results)
    return _place_shared(tables, kv_heads, batches, groups, known, copied)


def _place_shared(
    tables: Sequence[Sequence[int]],
    kv_heads: int,
    batches: list[PageBatch],
    groups: dict[tuple[int, ...], list[int]],
    known: dict[int, int],
    copied: dict[tuple[int, int], int],
) -> PagePlan:
    """Make the plan if pages have several readers."""
    result = sum(len(batch.pages) for batch in batches)
    place = result * kv_heads
    shared: dict[tuple[int, int], tuple[int, int]] = {}
    results: list[list[int]] = [[] for _ in tables]
    for readers, members in groups.items():
        pages = _as_range(sorted(members))
        batches.append(PageBatch(pages, readers, []))
        width = len(readers)
        for (slot, page), (member, row) in product(enumerate(pages), enumerate(readers)):
            shared[page, row] = place + slot * width * kv_heads + member, width
        for row in readers:
            results[row].append(result)
            result += 1
        place += len(pages) * width * kv_heads
    places, strides = [], []
    for row, table in enumerate(tables):
        own: list[tuple[int, int]] = []
        for page in table:
            spot = shared.get((page, row))
            if spot is None:
                number = copied.get((page, row))
                number = known[page] if number is None else number
                results[row].append(number)
                spot = number * kv_heads, 1
            own.append(spot)
        places.append([at for at, _ in own])
        strides.append([stride for _, stride in own])
    return PagePlan(batches, places, strides, results)


def _share(
    tables: Sequence[Sequence[int]], owners: dict[int, int]
) -> tuple[dict[tuple[int, ...], list[int]], list[tuple[int, int]]]:
    """Take the pages of several readers out of ``owners`` if reading them together pays.

    Returns:
        Pages by their readers; and pages that a second or later reader gets a copy of.
    """
    readers: defaultdict[int, list[int]] = defaultdict(list)
    for row, table in enumerate(tables):
        for page in table:
            readers[page].append(row)
    groups: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for page, rows in readers.items():
        if len(rows) > 1:
            groups[tuple(rows)].append(page)
    kept, copies = {}, []
    for group, pages in groups.items():
        if len(pages) * (len(group) - 1) >= LEAST_SAVED:
            kept[group] = pages
            for page in pages:
                del owners[page]
            continue
        for page in pages:
            owners[page] = group[0]
            copies += [(page, row) for row in group[1:]]
    return kept, copies


def _private_batches(
    owners: dict[int, int], num_pages: int | None
) -> tuple[list[PageBatch], list[tuple[int, int]]]:
    """Make batches of pages side by side, and list the other pages with their readers."""
    used = sorted(owners)
    runs: list[list[int]] = []
    previous = -WIDEST_HOLE - 2
    for page in used:
        if page - previous > WIDEST_HOLE + 1:
            runs.append([])
        runs[-1].append(page)
        previous = page
    batches, strays, short = [], [], [run for run in runs if len(run) < SHORTEST_RUN]
    if len(short) > 1:
        runs = [run for run in runs if len(run) >= SHORTEST_RUN]
        strays = [(page, owners[page]) for run in short for page in run]
    for run in runs:
        end = run[-1] + 1
        if num_pages is not None and run is runs[-1]:
            whole = (end - run[0]) // SPARE_PAGES * SPARE_PAGES + SPARE_PAGES
            end = max(end, min(run[0] + whole, num_pages))
        pages, anyone = range(run[0], end), owners[run[0]]
        batches.append(PageBatch(pages, None, [owners.get(page, anyone) for page in pages]))
    return batches, strays


def _as_range(pages: list[int]) -> range | list[int]:
    """Give sorted pages as a range if they lie side by side."""
    is_run = pages[-1] - pages[0] == len(pages) - 1
    return range(pages[0], pages[-1] + 1) if is_run else pages


def padded(lists: Sequence[Sequence[int]], length: int | None = None) -> list[list[int]]:
    """Fill lists of numbers up with their first number to a length, or to that of the longest."""
    length = max(map(len, lists)) if length is None else length
    return [[*numbers, *[numbers[0]] * (length - len(numbers))] for numbers in lists]


def bucket_lengths(lengths: Sequence[int]) -> list[list[int]]:
    """Sort rows into buckets; in each the shortest is at least half as long as the longest."""
    buckets: list[list[int]] = []
    longest = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if not buckets or 2 * lengths[row] < longest:
            buckets.append([])
            longest = lengths[row]
        buckets[-1].append(row)
    return buckets


def bucket_chunks(rows: Sequence[PlacedRow]) -> list[list[PlacedRow]]:
    """Sort chunks into batches of similar size; either all or none of a batch begin their texts."""
    buckets: list[list[PlacedRow]] = []
    for fresh in (True, False):
        kind = [row for row in rows if (row.start == 0) is fresh]
        # Chunks of one size keep their order, so that their tokens may lie side by side.
        kind.sort(key=lambda row: (-row.count, row.token))
        bucket: list[PlacedRow] = []
        tokens = 0
        for row in kind:
            tokens += row.count
            if bucket and bucket[0].count * (len(bucket) + 1) > tokens + MOST_PADDING:
                buckets.append(bucket)
                bucket, tokens = [], row.count
            bucket.append(row)
        if bucket:
            buckets.append(bucket)
    return buckets
