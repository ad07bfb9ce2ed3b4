"""Allocate, extend, publish and free the blocks of a sequence in all cache groups. Plain Python.

Each cache group has a block table of its own, and all of them take blocks from one pool. A group
with a window holds the blocks that later tokens see: behind the window its table says ``GONE``, and
a sequence whose beginning is in the cache needs only the last window of it. All tables name the
same positions under the same number. States are in slots (`state_slots`), not in blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.cache.layer_groups import first_block, most_blocks
from asyncgen.engine.kv_cache.block_hashes import extend_block_hashes, group_hash, next_block_hash
from asyncgen.engine.kv_cache.block_pool import blocks_in
from asyncgen.engine.kv_cache.cached_sequence import GONE, NO_SLOT, UNREAD

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from asyncgen.engine.kv_cache.block_pool import BlockPool
    from asyncgen.engine.kv_cache.cached_sequence import CachedSequence


# Find the beginning of a sequence in the prefix cache.


def find_cached(pool: BlockPool, sequence: CachedSequence) -> tuple[list[list[int]], int]:
    """Find the longest beginning of a waiting sequence that is in the prefix cache.

    The last token is computed in any case, because its logits are needed.

    Returns:
        Tables to begin with, one for each group, and the number of tokens that they cover. If the
        last block is partial, the sequence is the one that takes it over. ``share`` the blocks
        before any others are taken.
    """
    if not pool.sharing:
        return [[] for _ in pool.windows], 0
    size, tokens = pool.page_size, sequence.tokens
    usable = (len(tokens) - 1) // size
    extend_block_hashes(sequence.block_hashes, tokens, size, sequence.salt, usable)
    hashes = sequence.block_hashes[:usable]
    tables, count = find_full_blocks(pool, hashes)
    if pool.slots is not None:
        longest, has_snapshot = count, pool.slots.knows
        while count and not has_snapshot(hashes[count - 1]):
            ends = (end for end in range(count - 1, 0, -1) if has_snapshot(hashes[end - 1]))
            tables, count = find_full_blocks(pool, hashes[: next(ends, 0)])
        if longest > count:
            sequence.keep_state_behind(longest)
    elif pool.partial_blocks.by_block and hashes:
        return _find_partial_block(pool, sequence, count) or (tables, count * size)
    return tables, count * size


def find_full_blocks(pool: BlockPool, hashes: Sequence[bytes]) -> tuple[list[list[int]], int]:
    """Find the longest run of full blocks that a sequence can begin with.

    Args:
        pool: Pool of the blocks.
        hashes: Hashes of the sequence's first blocks, in order.

    Returns:
        Tables to begin with, one for each group, and the number of blocks that they cover.
    """
    windows = pool.windows
    if len(windows) == 1 and windows[0] is None:
        blocks = pool.lookup(hashes)
        return [blocks], len(blocks)
    count, longest = pool.num_in_full_groups(hashes), -1
    while longest != count:  # a block that one window lacks may shorten the others
        longest = count
        for group, window in enumerate(windows):
            if window is not None:
                count = _limit_to_window(pool, hashes, count, group, window)
    return _visible_blocks(pool, hashes[:count], count * pool.page_size), count


def _visible_blocks(pool: BlockPool, hashes: Sequence[bytes], position: int) -> list[list[int]]:
    """Look up the blocks of these hashes that the token at a position sees, for each group."""
    tables = []
    for group, window in enumerate(pool.windows):
        first = first_block(window, position, pool.page_size)
        blocks = pool.lookup(group_hash(each, group) for each in hashes[first:])
        tables.append([*[GONE] * first, *blocks])
    return tables


def _limit_to_window(
    pool: BlockPool, hashes: Sequence[bytes], count: int, group: int, window: int
) -> int:
    """Return the most blocks, at most ``count``, behind which the whole window is cached."""
    while count:
        first = first_block(window, count * pool.page_size, pool.page_size)
        missing = (
            number
            for number in range(count - 1, first - 1, -1)
            if not pool.knows(group_hash(hashes[number], group))
        )
        gap = next(missing, None)
        if gap is None:
            return count
        count = gap  # any larger count would see the same gap
    return 0


def _find_partial_block(
    pool: BlockPool, sequence: CachedSequence, count: int
) -> tuple[list[list[int]], int] | None:
    """Find the partial block behind at least ``count`` full blocks that a sequence can take over.

    With a partial block a window may need less than without one, and so reach farther.
    """
    size, last = pool.page_size, len(sequence.tokens) - 1
    hashes = sequence.block_hashes[: last // size]
    for number in range(pool.num_in_full_groups(hashes), max(count, 1) - 1, -1):
        before, start = hashes[number - 1], number * size
        text = sequence.tokens[start : min(start + size, last)]
        found = pool.partial_blocks.find(before, text)
        if found is None:
            continue
        partial, common = found
        tables = _visible_blocks(pool, hashes[:number], start + common)
        for group, table in enumerate(tables):
            table += pool.lookup([group_hash(next_block_hash(before, partial), group)])
        if all(len(table) == number + 1 for table in tables):
            return tables, start + common
    return None


# Allocate and extend.


def blocks_to_start(pool: BlockPool, num_cached: int, num_tokens: int) -> int:
    """Return the blocks beside the cached ones with which a sequence can compute all its tokens.

    Args:
        pool: Pool of the blocks.
        num_cached: Number of its tokens in the cache.
        num_tokens: Number of its tokens.
    """
    size, total = pool.page_size, 0
    needed, cached = -(-num_tokens // size), -(-num_cached // size)
    for window in pool.windows:
        if window is None:
            total += needed - cached
        else:
            first = first_block(window, num_cached, size)
            most = min(needed - first, most_blocks(window, size))
            total += max(most - (cached - first), 0)
    return total


def share_cached(pool: BlockPool, tables: list[list[int]], num_cached: int) -> None:
    """Hold the blocks that were found in the cache; a partial one becomes the sequence's own."""
    pool.share(blocks_in(tables))
    if num_cached % pool.page_size:
        pool.unpublish(table[-1] for table in tables)


def allocate(
    pool: BlockPool, sequence: CachedSequence, tables: list[list[int]], num_cached: int
) -> None:
    """Give an admitted sequence its block tables, and a state slot if the model keeps states.

    Groups without a window get blocks for all tokens of the sequence, so that it is not preempted
    half way; groups with a window get blocks for the next token.

    Args:
        pool: Pool of the blocks.
        sequence: The sequence.
        tables: Blocks found in the cache, which it holds; extended in place.
        num_cached: Number of tokens in them.
    """
    size, num_tokens = pool.page_size, len(sequence.tokens)
    for table, window in zip(tables, pool.windows, strict=True):
        positions = num_tokens if window is None else num_cached + 1
        table += pool.take(-(-positions // size) - len(table))
    sequence.block_tables = tables
    sequence.num_allocated = min(map(len, tables)) * size
    sequence.num_gone = sum([table.count(GONE) for table in tables])
    sequence.num_computed = sequence.num_cached = num_cached
    sequence.num_published = full = num_cached // size
    sequence.num_admitted = num_tokens
    if pool.slots is not None:
        sequence.slot = pool.slots.start(sequence.block_hashes[full - 1] if full else None)


def num_missing(sequence: CachedSequence, count: int) -> int:
    """Return the blocks that a sequence lacks to have ``count`` in every table."""
    return sum([max(count - len(table), 0) for table in sequence.block_tables])


def extend(pool: BlockPool, sequence: CachedSequence, count: int) -> None:
    """Take blocks until every table of a sequence has ``count`` of them."""
    for table in sequence.block_tables:
        if len(table) < count:
            table += pool.take(count - len(table))
    sequence.num_allocated = min(map(len, sequence.block_tables)) * pool.page_size


# Free.


def free(pool: BlockPool, sequence: CachedSequence) -> None:
    """Free the blocks and slots of a sequence; published ones stay in the prefix cache."""
    if not sequence.block_tables:
        return
    if pool.slots is not None:
        pool.slots.end(sequence.slot, sequence.next_slot)
    elif sequence.num_published:
        _keep_partial_block(pool, sequence)
    pool.release(blocks_in(sequence.block_tables))
    sequence.block_tables = []
    sequence.slot = sequence.next_slot = NO_SLOT
    sequence.num_computed = sequence.num_published = sequence.newest_snapshot = 0
    sequence.num_allocated = sequence.num_gone = 0


def _keep_partial_block(pool: BlockPool, sequence: CachedSequence) -> None:
    """Keep the last block of a sequence in the prefix cache, if it is not full.

    Only tokens behind which another one was sampled are known to be computed without errors, so
    nothing is kept of a prompt that was not read to its end.
    """
    first = sequence.num_prompt_tokens
    if sequence.tokens[first : first + 1] in ([], [UNREAD]):
        return
    size, full = pool.page_size, sequence.num_computed // pool.page_size
    behind = sequence.tokens[full * size : sequence.num_computed + 1]
    if UNREAD in behind:
        del behind[behind.index(UNREAD) :]
    tokens = tuple(behind[:-1])
    if not tokens or not pool.sharing:
        return
    if sequence.is_unshared or sequence.num_published != full:
        return
    before, blocks = (
        sequence.block_hashes[full - 1],
        [table[full] for table in sequence.block_tables],
    )
    for group, block in enumerate(blocks):
        name = group_hash(next_block_hash(before, tokens), group)
        pool.unpublish(pool.lookup([name]))  # this one is newer
        pool.publish(block, name)
    pool.partial_blocks.add(before, tokens, blocks)


def free_behind_windows(pool: BlockPool, sequence: CachedSequence) -> None:
    """Free the blocks of a sequence that no token still to compute sees."""
    size = pool.page_size
    for window, table in zip(pool.windows, sequence.block_tables, strict=True):
        if window is None:
            continue
        first = min(first_block(window, sequence.num_computed, size), len(table))
        begin = first
        while begin and table[begin - 1] != GONE:
            begin -= 1
        if begin == first:
            continue
        blocks = table[begin:first]
        pool.release(blocks)
        table[begin:first] = [GONE] * len(blocks)
        sequence.num_gone += len(blocks)


# Publish.


def publish_full_blocks(pool: BlockPool, sequence: CachedSequence) -> list[bytes]:
    """Add the newly full blocks of a sequence to the prefix cache; return their hashes."""
    size, tokens = pool.page_size, sequence.tokens
    first, full = sequence.num_published, sequence.num_computed // size
    while pool.sharing and full > first and UNREAD in tokens[(full - 1) * size : full * size]:
        full -= 1
    if full <= first:
        return []
    sequence.num_published = full
    if not pool.sharing:
        return []
    hashes = sequence.block_hashes
    extend_block_hashes(hashes, tokens, size, sequence.salt, full)
    for number in range(first, full):
        for group, table in enumerate(sequence.block_tables):
            if table[number] != GONE:
                pool.publish(table[number], group_hash(hashes[number], group))
    return hashes[first:full]


def unshare(pool: BlockPool, sequence: CachedSequence, first: int = 0) -> None:
    """Take everything that a sequence computed out of the prefix cache, freed blocks included.

    Args:
        pool: Pool of the blocks.
        sequence: The sequence.
        first: Number of its first blocks that stay as they are.
    """
    sequence.is_unshared = True
    pool.unpublish(blocks_in([table[first:] for table in sequence.block_tables]))
    if pool.slots is not None:
        pool.slots.unpublish(sequence.block_hashes[first:])
    if sequence.num_gone:
        for group, table in enumerate(sequence.block_tables):
            for each in sequence.block_hashes[first : table.count(GONE)]:
                pool.unpublish(pool.lookup([group_hash(each, group)]))


# Count.


def num_exclusive(pool: BlockPool, sequence: CachedSequence) -> int:
    """Return the blocks that nobody but this sequence holds: preempting it makes them available."""
    return sequence.allocated_blocks - pool.num_with_others(blocks_in(sequence.block_tables))


def num_distinct(sequences: Iterable[CachedSequence], page_size: int) -> int:
    """Return the blocks that some running sequences hold together, shared ones counted once."""
    sequences = list(sequences)
    total = sum([sequence.allocated_blocks for sequence in sequences])
    # Only blocks that one of them found in the cache can be shared.
    most = max([sequence.num_cached for sequence in sequences], default=0) // page_size
    if not most:
        return total
    parts = [table[:most] for sequence in sequences for table in sequence.block_tables]
    num_held = sum(len(part) - part.count(GONE) for part in parts)
    return total - num_held + len({GONE}.union(*parts)) - 1
