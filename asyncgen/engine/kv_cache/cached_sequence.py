"""Describe the memory of one sequence in the KV cache: block tables, state slots, computed tokens.

Plain Python over integers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

UNREAD: Final = -1
"""Token id of a token that was sampled, but not yet read from the device."""

GONE: Final = -1
"""Entry of a block table for a block behind a window, which was freed."""

NO_SLOT: Final = -1
"""Number of no state slot."""


@dataclass(slots=True, eq=False, kw_only=True)
class CachedSequence:
    """Tokens of a sequence, and the blocks and slots with what was computed of them.

    Attributes:
        tokens: Prompt and generated tokens; sampled ones are appended here.
        num_prompt_tokens: Number of prompt tokens among them.
        block_tables: Block ids in the order of positions, one table for each cache group; no
            tables while the sequence waits.
        block_hashes: Hashes of the first blocks, as far as they were needed.
        num_allocated: Positions that every table has blocks for.
        num_gone: ``GONE`` entries in all tables.
        num_computed: Number of ``tokens`` whose keys and values are in the blocks.
        num_cached: Number of these that were found in the cache at the last admission.
        num_published: Blocks of a table that were offered to the prefix cache.
        num_admitted: Number of ``tokens`` at the last admission.
        is_unshared: True once its blocks were taken out of the prefix cache; the partial block at
            its end is not kept either.
        slot: Slot of its state; ``NO_SLOT`` if it has none.
        next_slot: Slot that its next step writes; ``NO_SLOT`` until one is chosen.
        keeps_states: False if no other sequence could find its state snapshots.
        branch_blocks: Block counts behind which other texts branch off its prompt; its state is
            kept there.
        newest_snapshot: Block count behind which the last snapshot of its answer was kept.
    """

    tokens: list[int] = field(default_factory=list)
    num_prompt_tokens: int = field(init=False, default=0)
    block_tables: list[list[int]] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_allocated: int = 0
    num_gone: int = 0
    num_computed: int = 0
    num_cached: int = 0
    num_published: int = 0
    num_admitted: int = 0
    is_unshared: bool = False
    slot: int = NO_SLOT
    next_slot: int = NO_SLOT
    keeps_states: bool = True
    branch_blocks: list[int] = field(default_factory=list)
    newest_snapshot: int = 0

    @property
    def salt(self) -> bytes:
        """Everything beside the tokens that the content of a block depends on (model, adapter)."""
        return b""

    @property
    def allocated_blocks(self) -> int:
        """Number of blocks that it holds."""
        return sum(map(len, self.block_tables)) - self.num_gone

    def keep_state_behind(self, num_blocks: int) -> None:
        """Have its state kept behind so many blocks, if it has not come there yet."""
        if num_blocks and num_blocks not in self.branch_blocks:
            self.branch_blocks.append(num_blocks)
