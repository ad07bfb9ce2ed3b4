"""Which states of a text are kept, and from which one a text goes on. Plain Python over integers.

A state does not tell what it was before, so a text can go on only from where a state was kept: a
*snapshot*, at the end of a page and under the key of that page (`slots`). These are kept:

    of every text           each so many pages (``BlockPool.snapshot_pages``)
    of a prompt             the end of its last full page, and where it parts from a known text
    of what is generated    the end of its last full page, where the next turn of a chat goes on

The end of a prompt is worth more than what lies on its way, until an answer has a snapshot.
A chunk of a prompt stops where a snapshot is due, so that whoever computes need not know of it.
Texts begin alike as far as pages of all groups and a snapshot are there: where pages reach farther
than the last snapshot, the end of these is where both texts part, and the next ones may go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.engine.kv_cache.cache_groups import find_block_tables
from asyncgen.engine.kv_cache.state_slots import NO_SLOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.engine.kv_cache.block_pool import BlockPool
    from asyncgen.engine.kv_cache.state_slots import SlotPool
    from asyncgen.engine.scheduling.state import RequestState, ScheduledRow


def find_start(pool: BlockPool, keys: Sequence[bytes]) -> tuple[list[list[int]], int, int]:
    """Look for the longest beginning of a request that can be gone on from.

    Args:
        pool: Whose pages and slots.
        keys: Keys of the request's first pages, in order.

    Returns:
        What `find_block_tables` does, of as many pages as a snapshot allows, and how many there
        would be if there were a snapshot everywhere.
    """
    tables, count = find_block_tables(pool, keys)
    longest = count
    if pool.slots is not None:
        knows = pool.slots.knows
        while count and not knows(keys[count - 1]):
            count = next((end for end in range(count - 1, 0, -1) if knows(keys[end - 1])), 0)
            tables, count = find_block_tables(pool, keys[:count])
    return tables, count, longest


def begin_states(pool: BlockPool, state: RequestState, num_known: int) -> None:
    """Let an admitted request go on from a snapshot.

    Args:
        pool: Whose slots.
        state: The request; the first pages have their keys.
        num_known: Tokens that it is behind; 0: there is none, and the text begins.
    """
    if pool.slots is not None:
        blocks = num_known // pool.page_size
        state.slot = pool.slots.start(state.block_hashes[blocks - 1] if blocks else None)


def end_states(pool: BlockPool, state: RequestState) -> None:
    """Take a request's slots away, if it runs; its snapshots are kept."""
    if pool.slots is not None and state.pages:
        pool.slots.end(state.slot, state.next_slot)
    state.slot = state.next_slot = NO_SLOT
    state.newest_snapshot = 0


def slot_to_write(slots: SlotPool, state: RequestState) -> int:
    """Where the next step of a running request leaves its state."""
    if state.next_slot == NO_SLOT:
        state.next_slot = slots.take()
    return state.next_slot


def advance(pool: BlockPool, row: ScheduledRow) -> None:
    """Note that a row's state is where its step left it; a second call does nothing."""
    state = row.state
    if pool.slots is not None and state.slot != row.target:
        state.slot, state.next_slot = row.target, pool.slots.leave(state.slot)


def ask_for_snapshot(state: RequestState, blocks: int) -> None:
    """Have a request keep its state behind so many pages, if it has not come there."""
    if blocks and blocks not in state.partings:
        state.partings.append(blocks)


def stop_at_snapshot(pool: BlockPool, state: RequestState, end: int) -> int:
    """Where a chunk of a prompt ends.

    Args:
        pool: Whose pages.
        state: Whose prompt it is.
        end: Where the chunk would end.

    Returns:
        The first position at which a snapshot is due that is not there, or ``end``.
    """
    slots, size = pool.slots, pool.page_size
    if slots is None or not pool.sharing or not state.keeps_states or state.is_whole:
        return end
    first = state.num_computed // size + 1
    regular = -(-first // pool.snapshot_pages) * pool.snapshot_pages
    due = [*range(regular, end // size + 1, pool.snapshot_pages), *state.partings]
    due.append((len(state.tokens) - 1) // size)
    missing = (
        blocks * size
        for blocks in due
        if first <= blocks <= end // size and not slots.knows(state.block_hashes[blocks - 1])
    )
    return min(missing, default=end)


def keep_state(pool: BlockPool, row: ScheduledRow) -> None:
    """Make the state behind a row a snapshot, if one is due there; before its next step."""
    state, size, end = row.state, pool.page_size, row.start + row.count
    slots, blocks = pool.slots, end // size
    if slots is None or not pool.sharing or not state.keeps_states:
        return
    if end % size or len(state.block_hashes) < blocks:
        return
    key, is_prompt = state.block_hashes[blocks - 1], end < state.admitted_with
    is_regular = blocks % pool.snapshot_pages == 0
    is_worthy = blocks in state.partings or blocks == (state.admitted_with - 1) // size
    if is_prompt and not is_regular and not is_worthy:
        return
    is_new = slots.publish(row.target, key, is_worthy=is_worthy or not is_prompt)
    if not is_new or is_prompt:
        return
    # The one before is worth less now: that at the end of the prompt, or in the answer.
    last = state.newest_snapshot or (len(state.initial_tokens) - 1) // size
    if state.newest_snapshot and last % pool.snapshot_pages:
        slots.withdraw(state.block_hashes[last - 1 : last])
    elif last:
        slots.demote(state.block_hashes[last - 1])
    state.newest_snapshot = blocks
