"""Keep snapshots of states, so that other texts go on from them. Plain Python over integers.

A state does not tell what it was before, so a text can go on only from a *snapshot*: a state kept
at the end of a block, under the hash of that block (`state_slots`). These are kept:

    of every text    one each so many blocks (``BlockPool.snapshot_pages``)
    of a prompt      at the end of its last full block, and where it parts from a known text
    of an answer     at the end of its last full block, where the next turn of a chat goes on

The end of a prompt is more important than snapshots along it, until the answer has a snapshot. A
chunk of a prompt stops where a snapshot is due, so the runner need not know of them. A text begins
with as many cached blocks as a snapshot follows; where more blocks are cached, both texts part at
the end of these, and a snapshot is kept there for the next ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncgen.engine.kv_cache.block_pool import BlockPool
    from asyncgen.engine.kv_cache.cached_sequence import CachedSequence
    from asyncgen.engine.kv_cache.state_slots import SlotPool


def advance_state(slots: SlotPool, sequence: CachedSequence, target: int) -> None:
    """Note that a step left a sequence's state in its target slot; a second call does nothing."""
    if sequence.slot != target:
        sequence.slot, sequence.next_slot = target, slots.leave(sequence.slot)


def stop_at_snapshot(pool: BlockPool, slots: SlotPool, sequence: CachedSequence, end: int) -> int:
    """Shorten a chunk of a prompt to end where a snapshot is due.

    Args:
        pool: Pool of the blocks.
        slots: Its slots.
        sequence: Sequence of the prompt.
        end: Planned end of the chunk.

    Returns:
        The first position at which a snapshot is due and missing, or ``end``.
    """
    if not pool.sharing or not sequence.keeps_states:
        return end
    size = pool.page_size
    first = sequence.num_computed // size + 1
    regular = -(-first // pool.snapshot_pages) * pool.snapshot_pages
    due = [*range(regular, end // size + 1, pool.snapshot_pages), *sequence.branch_blocks]
    due.append((len(sequence.tokens) - 1) // size)
    missing = (
        blocks * size
        for blocks in due
        if first <= blocks <= end // size and not slots.knows(sequence.block_hashes[blocks - 1])
    )
    return min(missing, default=end)


def keep_snapshot(pool: BlockPool, slots: SlotPool, sequence: CachedSequence) -> None:
    """Make the state of a sequence a snapshot, if one is due where it is; before its next step."""
    size, end, target = pool.page_size, sequence.num_computed, sequence.slot
    blocks = end // size
    if not pool.sharing or not sequence.keeps_states:
        return
    if end % size or len(sequence.block_hashes) < blocks:
        return
    name, is_prompt = sequence.block_hashes[blocks - 1], end < sequence.num_admitted
    is_regular = blocks % pool.snapshot_pages == 0
    is_important = blocks in sequence.branch_blocks or blocks == (sequence.num_admitted - 1) // size
    if is_prompt and not is_regular and not is_important:
        return
    is_new = slots.publish(target, name, is_important=is_important or not is_prompt)
    if not is_new or is_prompt:
        return
    # The snapshot before, at the end of the prompt or in the answer, is less important now.
    last = sequence.newest_snapshot or (sequence.num_prompt_tokens - 1) // size
    if sequence.newest_snapshot and last % pool.snapshot_pages:
        slots.unpublish(sequence.block_hashes[last - 1 : last])
    elif last:
        slots.demote(sequence.block_hashes[last - 1])
    sequence.newest_snapshot = blocks
