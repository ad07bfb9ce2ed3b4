"""Begin the next forward pass before the last tokens were read from the device.

A step ends with tokens picked on the device. To read them the host waits for the device; and while
the host then writes events and plans the next step, the device would wait for the host. So the
next pass begins first: its input ids are on the device, and everything else is known if every row
goes on. Then the tokens are read. A row that has ended has one token too many in the pass, which
is dropped: its keys and values lie at the end of blocks that were its own, and the next owner of
these blocks overwrites them.

Only the pass runs ahead. A step is sampled after the tokens of all earlier steps were read, so the
host knows the whole sequence by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncgen.engine.kv_cache.cached_sequence import UNREAD
from asyncgen.engine.scheduling.state import RequestStatus
from asyncgen.runtime.transfer import host_ints, to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from asyncgen.engine.scheduling.state import RequestState, ScheduledRow


@dataclass(frozen=True, slots=True)
class UnreadTokens:
    """Tokens of a step that lie on the device; their sequences have ``UNREAD`` in their place.

    Attributes:
        tokens: Valid ids, int64 ``[R]``.
        numbers: For each sequence that goes on, the number of its token among these.
    """

    tokens: Tensor
    numbers: dict[RequestState, int]

    def expect(self) -> None:
        """Append ``UNREAD`` to the sequences."""
        for state in self.numbers:
            state.tokens.append(UNREAD)

    def forget(self) -> None:
        """Remove ``UNREAD`` again, as the tokens were read."""
        for state in self.numbers:
            last = state.tokens.pop()
            assert last == UNREAD

    def inserter(
        self, rows: Sequence[ScheduledRow], ids: Sequence[int]
    ) -> Callable[[Tensor], object] | None:
        """Return a function that writes these tokens into the input ids of a step.

        Args:
            rows: Rows of the step, in order.
            ids: Ids of all their tokens, with ``UNREAD`` in the place of these.

        Returns:
            A function of a tensor of all ids, ``[>= N]`` of any integer type, on the device;
            ``None`` if no ``UNREAD`` is among the ids.
        """
        offsets = [offset for offset, token in enumerate(ids) if token == UNREAD]
        if not offsets:
            return None
        numbers = [
            self.numbers[row.state]
            for row in rows
            if row.state.tokens[row.start + row.count - 1] == UNREAD
        ]
        count, device = len(offsets), self.tokens.device
        if numbers == list(range(len(self.tokens))) and offsets == list(range(count)):
            return lambda target: target[:count].copy_(self.tokens)
        where, which = to_device(host_ints([offsets, numbers]), device)
        taken = self.tokens.index_select(0, which)
        return lambda target: target.index_copy_(0, where, taken.to(target.dtype))


@dataclass(frozen=True, slots=True)
class BegunStep:
    """Step whose forward pass has begun; some of its rows may have ended since.

    Attributes:
        rows: The rows.
        logits: Logits of the rows that will be sampled, ``[R, V]``; ``None`` if the pass raised,
            and the step runs again in its turn.
        sampled: Sequences of the logits, in order.
    """

    rows: list[ScheduledRow]
    logits: Tensor | None
    sampled: list[RequestState]

    def without_ended(self) -> BegunStep:
        """Return the step without the rows that have ended."""
        here = [row.state.status < RequestStatus.FINISHED for row in self.rows]
        if all(here):
            return self
        rows = [row for row, stays in zip(self.rows, here, strict=True) if stays]
        logits, sampled = self.logits, self.sampled
        kept = [
            number for number, state in enumerate(sampled) if state.status < RequestStatus.FINISHED
        ]
        if logits is not None:
            logits = logits.index_select(0, to_device(host_ints(kept), logits.device))
        return BegunStep(rows, logits, [sampled[number] for number in kept])
