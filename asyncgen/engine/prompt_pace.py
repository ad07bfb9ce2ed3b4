"""How prompts share the steps with running streams.

Where many requests wait to begin, several chunks of prompts are read between two tokens of those
that decode: these wait for all of them once, and the others for less. Each chunk is a step, so that
whose prompt ends in the first of them does not wait for the last.

Where many come at once and nobody was there before, all their prompts are read first: those that
have their first token wait for the others, so that the last of them begins as soon as it can.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from asyncgen.engine.scheduling.state import RequestStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.engine.prompt_cost import PromptCost
    from asyncgen.engine.scheduling.state import ScheduledRow

NEWCOMERS = 16
"""For each further chunk so many wait to begin, however few decode."""
BURST_SECONDS = 3.0
"""So long those that came together wait for each other's prompts, and a step more."""

_DECODING = RequestStatus.DECODING


class PromptPace:
    """What prompts get of the steps.

    Attributes:
        chunk: Most prompt tokens of a step, those of all rows together.
    """

    def __init__(self, chunk: int, most_chunks: int = 1, cost: PromptCost | None = None) -> None:
        """Begin where nobody decodes.

        Args:
            chunk: See the attribute, at least 1.
            most_chunks: Most chunks between two steps of those that decode, at least 1; where it is
                1 those that came together do not wait for each other either.
            cost: Of the model: while others decode, chunks behind a long text are smaller, so that
                they take no longer. ``None``: they are all alike.
        """
        self.chunk = chunk
        self._most_chunks = most_chunks
        self._cost = cost
        self._depth = 0  # of the longest text whose prompt is being read
        self._chunks = 0  # since those that decode had a step, theirs included
        self._some_went_on = False  # of those that decode some have more than their first token
        self._burst_end: float | None = None

    def tokens(self, num_decoding: int) -> int:
        """Most prompt tokens of the next step.

        Args:
            num_decoding: Streams that wait for it.
        """
        if self._cost is None or not num_decoding or not self._depth:
            return self.chunk
        return self._cost.chunk(self.chunk, self._depth)

    def are_alone(self, num_newcomers: int, num_decoding: int) -> bool:
        """Whether those that decode wait for another chunk, of the prompts of newcomers.

        Args:
            num_newcomers: Requests that could begin if their prompts were read.
            num_decoding: Streams that would wait.
        """
        if not num_decoding or not self._chunks:
            return False
        if self._is_in_burst(num_newcomers):
            return True
        return self._chunks < min(chunks_between(num_newcomers, num_decoding), self._most_chunks)

    def _is_in_burst(self, num_newcomers: int) -> bool:
        """Whether all that decode came together with the newcomers, and have time."""
        if self._most_chunks == 1 or self._some_went_on:
            return False
        now = time.monotonic()
        if self._burst_end is None and num_newcomers >= NEWCOMERS:
            self._burst_end = now + BURST_SECONDS
        return self._burst_end is not None and num_newcomers > 0 and now < self._burst_end

    def note(self, rows: Sequence[ScheduledRow], *, alone: bool) -> None:
        """Take note of the rows of a step.

        Args:
            rows: As they were scheduled.
            alone: Whether those that decode wait for it.
        """
        reads = any(row.state.status is not _DECODING for row in rows)
        self._chunks = reads + (self._chunks if alone else 0)
        if not alone:
            self._some_went_on = any(row.state.status is _DECODING for row in rows)
            self._burst_end = None
        self._depth = max((row.start + row.count for row in rows if not row.is_last), default=0)


def chunks_between(num_newcomers: int, num_decoding: int) -> int:
    """How many chunks of prompts are read for each token of those that decode.

    Args:
        num_newcomers: Requests that could begin if their prompts were read.
        num_decoding: Streams that are held up.

    Returns:
        One, and one more as often as more wait.
    """
    return 1 + num_newcomers // max(num_decoding, NEWCOMERS)
