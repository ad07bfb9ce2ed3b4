"""The next forward pass, begun before the tokens of the step before were read from the device.

A step ends with the device picking tokens. To read them the host waits for the device, and while
it then tells readers and plans the next step the device would wait for the host. So the next pass
is asked for first: its input ids are there, on the device, and everything else about it is known
as soon as one assumes that every row goes on. Then the tokens are read. Rows that turn out to have
ended have one token too many in the pass, which is dropped: what it wrote lies in pages that were
theirs, behind all that counts, and the next owner of these pages overwrites it.

Only the pass is ahead. A step is sampled after the tokens of all steps before it were read, so
whatever the host keeps of a sequence is complete by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from asyncgen.engine.kv_cache.block_pool import UNREAD
from asyncgen.engine.scheduling.state import RequestStatus
from asyncgen.runtime.transfer import to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from asyncgen.engine.scheduling.state import RequestState, ScheduledRow


@dataclass(frozen=True, slots=True)
class UnreadTokens:
    """The tokens of a step that lie on the device, and stand as ``UNREAD`` in their texts.

    Attributes:
        tokens: Valid ids, int64 ``[R]``.
        numbers: For each text that goes on, which of them is its newest token.
    """

    tokens: Tensor
    numbers: dict[RequestState, int]

    def expect(self) -> None:
        """Lengthen the texts by a token that is to come."""
        for state in self.numbers:
            state.tokens.append(UNREAD)

    def forget(self) -> None:
        """Shorten them again, since the tokens are here."""
        for state in self.numbers:
            last = state.tokens.pop()
            assert last == UNREAD

    def inserter(
        self, rows: Sequence[ScheduledRow], ids: Sequence[int]
    ) -> Callable[[Tensor], object] | None:
        """What writes these tokens to where a step wants them.

        Args:
            rows: Of the step, in order.
            ids: Ids of all their tokens, ``UNREAD`` where one of these is wanted.

        Returns:
            Writes to a tensor of all ids, ``[>= N]`` of any integer type, on the device; ``None``
            where none is wanted.
        """
        places = [place for place, token in enumerate(ids) if token == UNREAD]
        if not places:
            return None
        numbers = [
            self.numbers[row.state]
            for row in rows
            if row.state.tokens[row.start + row.count - 1] == UNREAD
        ]
        count, device = len(places), self.tokens.device
        if numbers == list(range(len(self.tokens))) and places == list(range(count)):
            return lambda target: target[:count].copy_(self.tokens)
        where, which = to_device(torch.tensor([places, numbers]), device)
        taken = self.tokens.index_select(0, which)
        return lambda target: target.index_copy_(0, where, taken.to(target.dtype))


@dataclass(frozen=True, slots=True)
class BegunStep:
    """A step whose pass was asked for, and whose rows may have left since.

    Attributes:
        rows: The rows.
        logits: Of those that are to be sampled, ``[R, V]``; ``None`` where asking failed, for the
            step to be run as any other.
        sampled: Whose logits they are, in order.
    """

    rows: list[ScheduledRow]
    logits: Tensor | None
    sampled: list[RequestState]

    def without_ended(self) -> BegunStep:
        """The step without the rows that have ended."""
        here = [row.state.status < RequestStatus.FINISHED for row in self.rows]
        if all(here):
            return self
        rows = [row for row, stays in zip(self.rows, here, strict=True) if stays]
        logits, sampled = self.logits, self.sampled
        kept = [
            number for number, state in enumerate(sampled) if state.status < RequestStatus.FINISHED
        ]
        if logits is not None:
            logits = logits.index_select(0, to_device(torch.tensor(kept).long(), logits.device))
        return BegunStep(rows, logits, [sampled[number] for number in kept])
