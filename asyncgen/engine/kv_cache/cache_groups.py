"""The pages of a request in all groups of layers together. Plain Python over integers.

Every group has a page table of its own, and all of them take from one pool. A group with a window
holds the pages that later tokens see, and no others: behind the window, ``GONE`` stands in its
table, and a request whose beginning is known needs of it the last window only. A group without a
window has no page that is gone. All tables name the same positions under the same number.

Groups of what an encoder read (a table that is taken whole and shared by all samples) have their
place here as further rules of what a text holds and gives back. States are no pages: they are in
slots (`slots`), and go on from where one was kept (`snapshots`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING

from asyncgen.cache.layer_groups import first_block, most_blocks
from asyncgen.engine.kv_cache.block_hashes import extend_block_hashes, group_hash, next_block_hash
from asyncgen.engine.kv_cache.block_pool import GONE, UNREAD, held, most_pages

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from asyncgen.engine.kv_cache.block_pool import BlockPool
    from asyncgen.engine.scheduling.state import RequestState


@dataclass(frozen=True, slots=True)
class CacheRoom:
    """The memory that an engine has for keys and values.

    Attributes:
        num_pages: Pages in all.
        page_size: Positions of a page.
        num_spare: Pages beside these that no request gets.
        windows: Keys that a query sees, itself included, in each group of layers; ``None``: all.
        num_slots: Texts that have states at a time; ``None``: the model keeps none.
        num_snapshots: States that are kept beside those of these texts.
        outside: How many times a page's memory its positions take in a cache beside the pages:
            more than one where pages are packed.
    """

    num_pages: int
    page_size: int
    num_spare: int = 0
    windows: tuple[int | None, ...] = (None,)
    num_slots: int | None = None
    num_snapshots: int = 0
    outside: Fraction = Fraction(1)

    def blocks(self, positions: int) -> int:
        """Pages of one table that a row of so many positions takes."""
        return -(-positions // self.page_size)

    def pages(self, positions: int) -> int:
        """Pages' worth of memory that a row of so many positions takes in a cache that keeps all
        of them in every layer."""
        return ceil(self.blocks(positions) * len(self.windows) * self.outside)

    def positions(self, rows: int) -> int:
        """Most positions that each of so many such rows can have, if no other row has any."""
        a_block = rows * len(self.windows) * self.outside
        return floor(self.num_pages / a_block) * self.page_size

    def longest_text(self, limit: int) -> int:
        """Most positions that a row of the shared batch can have, if no other row has any.

        Args:
            limit: More are of no use.
        """
        fits = bisect_right(
            range(1, self.blocks(limit) + 1),
            self.num_pages,
            key=lambda blocks: most_pages(self.windows, self.page_size, blocks * self.page_size),
        )
        return min(fits * self.page_size, limit)


def find_block_tables(pool: BlockPool, keys: Sequence[bytes]) -> tuple[list[list[int]], int]:
    """Look for the longest beginning of a request that can be gone on from.

    Args:
        pool: Whose pages.
        keys: Keys of the request's first pages, in order.

    Returns:
        What its tables begin with, one a group, and how many pages' worth of tokens they stand
        for. ``share`` what they hold before anything else is taken.
    """
    windows = pool.windows
    if len(windows) == 1 and windows[0] is None:
        pages = pool.lookup(keys)
        return [pages], len(pages)
    count, longest = pool.num_whole(keys), -1
    while longest != count:  # what one window lacks may leave another one short
        longest = count
        for group, window in enumerate(windows):
            if window is not None:
                count = _with_window(pool, keys, count, group, window)
    tables = _tables(pool, keys[:count], count * pool.page_size)
    return tables, count


def _tables(pool: BlockPool, keys: Sequence[bytes], position: int) -> list[list[int]]:
    """What is known of the pages with these keys which the token at a position sees."""
    tables = []
    for group, window in enumerate(pool.windows):
        first = first_block(window, position, pool.page_size)
        pages = pool.lookup(group_hash(key, group) for key in keys[first:])
        tables.append([*[GONE] * first, *pages])
    return tables


def _with_window(
    pool: BlockPool, keys: Sequence[bytes], count: int, group: int, window: int
) -> int:
    """The most pages, ``count`` or fewer, behind which all that a window sees is known."""
    while count:
        first = first_block(window, count * pool.page_size, pool.page_size)
        unknown = (
            number
            for number in range(count - 1, first - 1, -1)
            if not pool.knows(group_hash(keys[number], group))
        )
        gap = next(unknown, None)
        if gap is None:
            return count
        count = gap  # any more than that would see the same gap
    return 0


def find_partial_block(
    pool: BlockPool, state: RequestState, blocks: int
) -> tuple[list[list[int]], int] | None:
    """Look for the end of a text that a request goes on from.

    Args:
        pool: Whose pages.
        state: The request; all pages before its last token have their keys, and that token is left
            to compute.
        blocks: Full pages that it can go on from. Behind windows it may need less with a tail than
            without one, and so find one farther on.

    Returns:
        What its tables begin with, and how many tokens they stand for: the last pages are not full,
        and the request's own from now on (`withdraw` them once they are shared).
    """
    if not pool.tails:
        return None
    size, last = pool.page_size, len(state.tokens) - 1
    keys = state.block_hashes[: last // size]
    for count in range(pool.num_whole(keys), max(blocks, 1) - 1, -1):
        before, start = keys[count - 1], count * size
        found = pool.tails.find(before, state.tokens, start, min(start + size, last))
        if found is None:
            continue
        tail, common = found
        tables = _tables(pool, keys[:count], start + common)
        for group, table in enumerate(tables):
            table += pool.lookup([group_hash(next_block_hash(before, tail), group)])
        if all(len(table) == count + 1 for table in tables):
            return tables, start + common
    return None


def leave_partial_block(pool: BlockPool, state: RequestState) -> None:
    """Let another one go on from the last page, if it is not full, of a request that is to lose it.

    Of what was computed last it is known to be good once a token was sampled behind it, so none is
    left of a prompt that was not read to its end.
    """
    first = len(state.initial_tokens)
    if state.tokens[first : first + 1] in ([], [UNREAD]):
        return
    size, full = pool.page_size, state.num_computed // pool.page_size
    behind = state.tokens[full * size : state.num_computed + 1]
    if UNREAD in behind:
        del behind[behind.index(UNREAD) :]
    tail = tuple(behind[:-1])
    # A text of less than a page is soon computed. A state does not tell what it was before its end,
    # which is where most texts part from this one.
    if not tail or not full or not pool.sharing or pool.slots is not None:
        return
    if state.is_withdrawn or state.num_published != full:
        return
    before, pages = state.block_hashes[full - 1], [table[full] for table in state.tables]
    for group, page in enumerate(pages):
        key = group_hash(next_block_hash(before, tail), group)
        pool.withdraw(pool.lookup([key]))  # of those with the same content, this is the newest
        pool.publish(page, key)
    pool.tails.add(before, tail, pages)


def num_to_start(pool: BlockPool, num_known: int, num_tokens: int) -> int:
    """Pages that must be available beside what is known for a request to run to the end of its
    tokens, a few at a time.

    Args:
        pool: Whose pages.
        num_known: Tokens of it that are known.
        num_tokens: How many tokens it has.
    """
    size, total = pool.page_size, 0
    blocks, known = pool.pages_for(num_tokens), pool.pages_for(num_known)
    for window in pool.windows:
        if window is None:
            total += blocks - known
        else:
            first = first_block(window, num_known, size)
            most = min(blocks - first, most_blocks(window, size))
            total += max(most - (known - first), 0)
    return total


def begin_block_tables(
    pool: BlockPool, tables: list[list[int]], num_known: int, num_tokens: int
) -> list[list[int]]:
    """Take what an admitted request begins with, beside what it shares.

    Groups that keep everything get pages for all of its tokens, so that it does not stop half way;
    the others for its next token, and more with every chunk.

    Args:
        pool: Whose pages.
        tables: What is known, for each group; extended in place.
        num_known: Tokens that are known.
        num_tokens: How many tokens it has.
    """
    every, next_one = pool.pages_for(num_tokens), pool.pages_for(num_known + 1)
    for table, window in zip(tables, pool.windows, strict=True):
        table += pool.take((every if window is None else next_one) - len(table))
    return tables


def give_back(pool: BlockPool, state: RequestState) -> None:
    """Release the pages of a request that no token sees any more which is still to compute."""
    size = pool.page_size
    for window, table in zip(pool.windows, state.tables, strict=True):
        if window is None:
            continue
        first = min(first_block(window, state.num_computed, size), len(table))
        begin = first
        while begin and table[begin - 1] != GONE:
            begin -= 1
        if begin == first:
            continue
        pages = table[begin:first]
        pool.release(pages)
        table[begin:first] = [GONE] * len(pages)
        state.num_gone += len(pages)


def num_missing(state: RequestState, blocks: int) -> int:
    """Pages that a request lacks to have so many in every table."""
    return sum(max(blocks - len(table), 0) for table in state.tables)


def extend_block_tables(pool: BlockPool, state: RequestState, blocks: int) -> None:
    """Take pages so that every table of a request has so many."""
    for table in state.tables:
        if len(table) < blocks:
            table += pool.take(blocks - len(table))
    state.room = min(map(len, state.tables)) * pool.page_size


def publish(pool: BlockPool, state: RequestState) -> list[bytes]:
    """Let others find the pages of a request that became full; returns what names them."""
    size = pool.page_size
    first, full = state.num_published, state.num_computed // size
    if full <= first:
        return []
    tokens = state.tokens
    while pool.sharing and full > first and UNREAD in tokens[(full - 1) * size : full * size]:
        full -= 1
    state.num_published = full
    if not pool.sharing:
        return []
    keys = state.block_hashes
    extend_block_hashes(keys, tokens, size, state.salt, full)
    for number in range(first, full):
        for group, table in enumerate(state.tables):
            if table[number] != GONE:
                pool.publish(table[number], group_hash(keys[number], group))
    return keys[first:full]


def withdraw(pool: BlockPool, state: RequestState, first: int = 0) -> None:
    """Let no request find what this one computed, pages that it has given back included.

    Args:
        pool: Where the pages are.
        state: The request.
        first: Its pages before this one are left as they are.
    """
    state.is_withdrawn = True
    pool.withdraw(held([table[first:] for table in state.tables]))
    if pool.slots is not None:
        pool.slots.withdraw(state.block_hashes[first:])
    if state.num_gone:
        for group, table in enumerate(state.tables):
            keys = state.block_hashes[first : table.count(GONE)]
            for key in keys:
                pool.withdraw(pool.lookup([group_hash(key, group)]))


def pages_of_clients(pool: BlockPool, running: Iterable[RequestState]) -> Counter[str]:
    """Pages that each client holds, in all groups, and what the side lane has of it.

    What several rows of a client hold together counts once, what rows of several clients hold
    together once for each of these.

    Args:
        pool: Whose pages.
        running: The running requests.
    """
    count, size = Counter(pool.reserved_by), pool.page_size
    rows: dict[str, list[RequestState]] = {}
    for state in running:
        count[state.client] += state.allocated_blocks
        rows.setdefault(state.client, []).append(state)
    for client, states in rows.items():
        # Only what one of them found when it was admitted can others hold as well.
        most = max(state.num_cached for state in states) // size
        if most:
            parts = [table[:most] for state in states for table in state.tables]
            num_held = sum(len(part) - part.count(GONE) for part in parts)
            count[client] -= num_held - len({GONE}.union(*parts) - {GONE})
    return count


def num_alone(pool: BlockPool, state: RequestState) -> int:
    """Pages that nobody but this request holds: they can be taken when it gives its pages up."""
    return state.allocated_blocks - pool.num_with_others(held(state.tables))
