"""Who holds which page of the key-value cache. Plain Python over integers; knows no tensors.

A page is in exactly one of three places:

    free    no request holds it, and what it contains is worth nothing
    used    one or more requests hold it
    kept    no request holds it, but it has a key: a request that begins alike may find it;
            the one that was left longest ago makes room first

Full pages are published under a key (`keys`), and a full page is never written again. A page that
is not full has a key only while it is kept, as the end of a text (`tails`): the one text that goes
on from it takes it over, and the key away. So a write never meets a shared page, and nothing is
ever copied. ``check_integrity`` proves it.

Layers of a model form groups (``asyncgen.cache.layer_groups``), and a page holds the layers of one
of them: whoever takes it decides of which. What a request holds in each group is the business of
``groups``; the pool only knows the groups' windows.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, Protocol

from asyncgen.cache.layer_groups import first_block, most_blocks
from asyncgen.engine.kv_cache.block_hashes import block_hashes, group_hash
from asyncgen.engine.kv_cache.partial_blocks import PartialBlocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from asyncgen.engine.kv_cache.state_slots import SlotPool

UNREAD = -1
"""Stands in a request's tokens for one that was sampled but not read from the device yet."""

GONE: Final = -1
"""Stands in a page table for a page behind a window, which was given back."""


class OutOfBlocksError(Exception):
    """Fewer pages are available than were asked for. Internal: the scheduler asks before."""


class BlockHolder(Protocol):
    """What ``check_integrity`` reads of a request."""

    @property
    def tables(self) -> Sequence[list[int]]:
        """Its page tables, one a group of layers."""

    @property
    def slot(self) -> int:
        """See `SlotHolder`."""

    @property
    def next_slot(self) -> int:
        """See `SlotHolder`."""

    @property
    def block_hashes(self) -> list[bytes]:
        """See `SlotHolder`."""

    @property
    def tokens(self) -> list[int]:
        """Prompt and generated tokens."""

    @property
    def num_computed(self) -> int:
        """How many of the tokens have their keys and values in the pages."""

    @property
    def salt(self) -> bytes:
        """What the content depends on beside the tokens."""


class Reservation:
    """Space set aside for a cache outside the pool; see ``BlockPool.reserve``."""

    __slots__ = ("_pool", "client", "num_pages")

    def __init__(self, pool: BlockPool, num_pages: int, client: str) -> None:
        """Belongs to ``BlockPool.reserve``.

        Args:
            pool: Whose pages.
            num_pages: How many.
            client: For whom.
        """
        self._pool = pool
        self.client = client
        self.num_pages = num_pages

    def release(self) -> None:
        """Give the space back; a second call does nothing."""
        self._pool._end_reservation(self)
        self.num_pages = 0


class BlockPool:
    """Pages ``0..num_pages-1`` of equal size, and who holds them.

    Attributes:
        windows: Keys that a query sees, itself included, in each group of layers; ``None``: all.
        slots: Those for states, where the model keeps any.
        snapshot_pages: A text's state is kept every so many pages.
        reserved_by: Pages set aside for caches outside the pool, by client.
        tails: Which kept pages are not full.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        sharing: bool = True,
        windows: tuple[int | None, ...] = (None,),
        slots: SlotPool | None = None,
        snapshot_pages: int = 1,
    ) -> None:
        """Start with all pages free.

        Args:
            num_pages: How many pages there are, at least 1.
            page_size: Tokens of a page, at least 1.
            sharing: Whether pages are published at all; without it every request computes its
                whole prompt and nothing is kept.
            windows: Keys that a query sees, itself included, in each group of layers; ``None``:
                all. By default there is one group, which keeps everything.
            slots: Those for states; ``None``: the model keeps none.
            snapshot_pages: A text's state is kept every so many pages, at least 1.

        Raises:
            ValueError: A size below 1.
        """
        if num_pages < 1 or page_size < 1:
            raise ValueError(
                f"`num_pages` is {num_pages} and `page_size` is {page_size}: both must be at "
                "least 1; give the pool more memory"
            )
        self.num_pages = num_pages
        self.page_size = page_size
        self.sharing = sharing
        self.slots = slots
        self.snapshot_pages = snapshot_pages
        self.windows = windows
        # Pages from `_untouched` on were never used: the heap of free ones starts empty, however
        # large the pool, and memory that is only mapped on first use stays unmapped.
        self._untouched = 0
        self._freed: list[int] = []
        self._holders: dict[int, int] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()  # in the order in which they were left
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._num_reserved = 0
        self.reserved_by: Counter[str] = Counter()
        self.tails = PartialBlocks()

    @property
    def num_available(self) -> int:
        """Pages that can be taken: free ones and kept ones, less those that are reserved."""
        return self.num_pages - len(self._holders) - self._num_reserved

    @property
    def num_used(self) -> int:
        """Pages that requests hold."""
        return len(self._holders)

    @property
    def num_held(self) -> int:
        """Pages that requests hold or that are reserved."""
        return len(self._holders) + self._num_reserved

    @property
    def occupied(self) -> tuple[int, int]:
        """How much of the memory requests hold or have reserved, of how much: rows or pages."""
        if self.slots is not None:
            return self.slots.num_running, self.slots.num_rows
        return self.num_held, self.num_pages

    @property
    def num_kept(self) -> int:
        """Pages that no request holds and that may be found again."""
        return len(self._kept)

    @property
    def num_reserved(self) -> int:
        """Pages set aside for caches outside the pool."""
        return self._num_reserved

    @property
    def num_touched(self) -> int:
        """Pages that were used at some time: those with ids below this number."""
        return self._untouched

    def pages_for(self, num_tokens: int) -> int:
        """How many pages of one table so many tokens fill."""
        return -(-num_tokens // self.page_size)

    def take(self, count: int) -> list[int]:
        """Take pages that no request holds, lowest ids first so that used pages lie close together.

        Args:
            count: How many. Kept pages make room where the free ones do not suffice, the one that
                was left longest ago first.

        Returns:
            Their ids in ascending order.

        Raises:
            OutOfBlocksError: Fewer are available; nothing was taken.
        """
        self._require(count)
        self._evict(count + self._num_reserved - self._num_free)
        freed, holders = self._freed, self._holders
        pages = [heapq.heappop(freed) for _ in range(min(count, len(freed)))]
        fresh = self._untouched
        self._untouched = fresh + count - len(pages)
        pages.extend(range(fresh, self._untouched))
        for page in pages:
            holders[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Hold pages that ``lookup`` found, together with the requests that hold them already."""
        holders = self._holders
        for page in pages:
            count = holders.get(page, 0)
            if not count:
                del self._kept[page]
            holders[page] = count + 1

    def release(self, pages: Sequence[int]) -> None:
        """Hold pages no longer.

        Those that no other request holds are free at once, or kept if they have a key. The end of a
        request is given up before its beginning, which more requests may have in common.

        Args:
            pages: Pages that the caller holds, from the beginning of the request to its end.
        """
        holders, keys = self._holders, self._key_of
        for page in reversed(pages):
            count = holders[page]
            if count > 1:
                holders[page] = count - 1
                continue
            del holders[page]
            if page in keys:
                self._kept[page] = None
            else:
                heapq.heappush(self._freed, page)

    def publish(self, page: int, key: bytes) -> None:
        """Let others find a page that will not be written again, or not before somebody takes it.

        Of two pages with the same content the first one stays the one that is found.

        Args:
            page: A page that the caller holds.
            key: Name of its content (see `keys`).
        """
        if self.sharing and key not in self._page_of and page not in self._key_of:
            self._page_of[key] = page
            self._key_of[page] = key

    def withdraw(self, pages: Iterable[int]) -> None:
        """Take the keys of pages away, so that no request finds them; they may contain NaN.

        Args:
            pages: Any pages; those that are only kept become free.
        """
        for page in pages:
            key = self._key_of.pop(page, None)
            if key is None:
                continue
            del self._page_of[key]
            self.tails.forget(page)
            if page in self._kept:
                del self._kept[page]
                heapq.heappush(self._freed, page)

    def lookup(self, keys: Iterable[bytes]) -> list[int]:
        """Find pages with this content; ``share`` them before anything else is taken.

        Args:
            keys: Keys of a request's first pages, in order.

        Returns:
            The pages of the longest run from the beginning.
        """
        page_of = self._page_of
        pages: list[int] = []
        for key in keys:
            page = page_of.get(key)
            if page is None:
                break
            pages.append(page)
        return pages

    def num_whole(self, keys: Sequence[bytes]) -> int:
        """How many of a request's first pages are known in all groups that keep everything."""
        count = len(keys)
        for group, window in enumerate(self.windows):
            if window is None:
                count = len(self.lookup(group_hash(key, group) for key in keys[:count]))
        return count

    def knows(self, key: bytes) -> bool:
        """Whether there is a page with this content."""
        return key in self._page_of

    def num_with_others(self, pages: Iterable[int]) -> int:
        """How many of these used pages have more than one holder."""
        return sum(self._holders[page] > 1 for page in pages)

    def num_kept_among(self, pages: Iterable[int]) -> int:
        """How many of these would no longer be available once they are shared."""
        kept = self._kept
        return sum(page in kept for page in pages)

    def is_private(self, page: int) -> bool:
        """Whether a used page has one holder and cannot be found, so that it may be written."""
        return self._holders[page] == 1 and page not in self._key_of

    def reserve(self, num_pages: int, client: str = "") -> Reservation:
        """Set space aside for a cache outside the pool, which is planned with the same memory.

        It is accounting only: so many pages are left free, and because the lowest ids are taken
        first, it is the high end of the pool that stays unused.

        Args:
            num_pages: How many pages' worth of memory, at least 0.
            client: For whom.

        Returns:
            What to release when the cache is gone.

        Raises:
            OutOfBlocksError: Fewer are available; nothing was reserved.
        """
        self._require(num_pages)
        self._evict(num_pages + self._num_reserved - self._num_free)
        self._num_reserved += num_pages
        self.reserved_by[client] += num_pages
        return Reservation(self, num_pages, client)

    def forget_kept(self) -> None:
        """Free every page that is only kept."""
        self._evict(len(self._kept))

    def check_integrity(self, states: Iterable[BlockHolder]) -> None:
        """Prove that the books are right; for tests, since it recomputes every key.

        Args:
            states: Every request that holds pages.

        Raises:
            AssertionError: A page is in two places or in none, has more or fewer holders than
                requests name it, or is shared although it will be written; a table is too short,
                or lacks a page that is seen; a key does not belong to the content;
                reservations do not add up; a tail is held, or cannot be found.
        """
        states = list(states)
        free = {*self._freed}  # and those that were never used, which are no others' either
        touched = free | self._holders.keys() | self._kept.keys()
        assert not touched or max(touched) < self._untouched, "a page was never taken"
        assert len(free) == len(self._freed), "a page is free twice"
        assert not free & self._holders.keys(), "a page is both free and used"
        assert not free & self._kept.keys(), "a page is both free and kept"
        assert not self._kept.keys() & self._holders.keys(), "a page is both kept and used"
        assert len(free) + len(self._kept) + len(self._holders) == self._untouched, "a page is lost"
        assert 0 <= self._num_reserved <= self._num_free, "reserved pages are in use"
        assert Counter(page for state in states for page in held(state.tables)) == self._holders, (
            "holders are not those that name the page"
        )
        assert self._key_of == {page: key for key, page in self._page_of.items()}
        assert self._kept.keys() <= self._key_of.keys(), "a page is kept that cannot be found"
        assert not free & self._key_of.keys(), "a free page can be found"
        self.tails.check_integrity(self.page_size)
        for page, key in self.tails.keys():
            assert page in self._kept, "a tail is held"
            names = [group_hash(key, group) for group in range(len(self.windows))]
            assert self._key_of[page] in names, "a tail can be found under a wrong key"
        for state in states:
            self._check_tables(state)
        if self.slots is not None:
            self.slots.check_integrity(states, self.page_size)

    def _check_tables(self, state: BlockHolder) -> None:
        """Prove that what a request computed and will see is there, and the rest is its own."""
        size, computed = self.page_size, state.num_computed
        full = computed // size
        pages = held(state.tables)
        assert len(set(pages)) == len(pages), "a page is twice in the tables of a request"
        assert len(state.tables) == len(self.windows), "a group has no table"
        keys = block_hashes(state.tokens[: full * size], size, state.salt)
        for group, (table, window) in enumerate(zip(state.tables, self.windows, strict=True)):
            assert len(table) * size >= computed, "the table is too short"
            num_gone = table.count(GONE)
            assert num_gone <= first_block(window, computed, size), "a page that is seen is gone"
            assert GONE not in table[num_gone:], "a page is gone behind one that is not"
            for page in table[full:]:
                assert self._holders[page] == 1, "a page that will be written is shared"
                assert page not in self._key_of, "a page that will be written can be found"
            for page, chained in zip(table, keys, strict=False):
                key = group_hash(chained, group)
                assert self._key_of.get(page, key) == key, "a page can be found under a wrong key"

    @property
    def _num_free(self) -> int:
        return self.num_pages - self._untouched + len(self._freed)

    def _require(self, count: int) -> None:
        if count > self.num_available:
            raise OutOfBlocksError(f"{count} pages are wanted, {self.num_available} are available")

    def _evict(self, count: int) -> None:
        """Free so many kept pages, the one that was left longest ago first."""
        for _ in range(count):
            page, _ = self._kept.popitem(last=False)
            del self._page_of[self._key_of.pop(page)]
            self.tails.forget(page)
            heapq.heappush(self._freed, page)

    def _end_reservation(self, reservation: Reservation) -> None:
        self._num_reserved -= reservation.num_pages
        self.reserved_by[reservation.client] -= reservation.num_pages
        if not self.reserved_by[reservation.client]:
            del self.reserved_by[reservation.client]


def most_pages(
    windows: Sequence[int | None], page_size: int, positions: int, chunk: int = 1
) -> int:
    """Pages that a text holds at most, in all groups, until it has so many positions.

    Args:
        windows: Of each group.
        page_size: Positions of a page.
        positions: At least 1.
        chunk: Tokens of it that are computed at once, at least 1.
    """
    blocks, total = -(-positions // page_size), 0
    for window in windows:
        seen = blocks if window is None else most_blocks(window - 1 + chunk, page_size)
        total += min(blocks, seen)
    return total


def held(tables: Sequence[Sequence[int]]) -> list[int]:
    """The pages in some tables, from the beginning of the text to its end."""
    if len(tables) == 1:
        return [page for page in tables[0] if page != GONE]
    blocks = zip_longest(*tables, fillvalue=GONE)
    return [page for pages in blocks for page in pages if page != GONE]
