"""Decide how many prompt tokens a step takes beside running streams.

Where many requests wait to begin, several chunks of prompts are read between two tokens of those
that decode: these wait for all of them once, and the others for less. Each chunk is a step, so that
whose prompt ends in the first of them does not wait for the last.

Where many come at once, and no stream that was there before goes on, they are a *burst*: those that
have their first token wait for the others, so that the last of them begins as soon as it can.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from asyncgen.engine.scheduling.state import RequestStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from asyncgen.engine.scheduling.prefill_cost import PrefillCost
    from asyncgen.engine.scheduling.state import ScheduledRow

NEWCOMERS = 16
"""For each further chunk so many wait to begin, however few decode; so many are a burst."""
BURST_SECONDS = 3.0
"""So long those of a burst wait for each other, from when so many were there."""
LONGEST_WAIT = 0.1
"""Seconds that those that decode wait at a time; the step behind them is theirs too."""

_DECODING = RequestStatus.DECODING


class PrefillBudget:
    """Budget of prompt tokens for each step.

    Ask it after `see`.

    Attributes:
        chunk: Most prompt tokens of a step, those of all rows together.
        are_alone: Whether those that decode wait for another chunk, of the prompts of newcomers.
    """

    def __init__(
        self,
        chunk: int,
        most_chunks: int = 1,
        cost: PrefillCost | None = None,
        *,
        beside: int | None = None,
        longest_wait: float = LONGEST_WAIT,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin where nobody decodes.

        Args:
            chunk: See the attribute, at least 1.
            most_chunks: Most chunks between two steps of those that decode, at least 1; where it is
                1 there are no bursts either.
            cost: Of the model: while others decode, chunks behind a long text are smaller, so that
                they take no longer. ``None``: they are all alike.
            beside: Most tokens of a chunk that one step of those that decode waits for, of 1 to
                ``chunk``; ``None``: as many as ``chunk``.
            longest_wait: Seconds that those that decode wait at a time, and for the step in which
                these are over.
            clock: Says the time in seconds.
        """
        self.chunk = chunk
        self.are_alone = False
        self._most_chunks = most_chunks
        self._cost = cost
        self._beside = chunk if beside is None else beside
        self._longest_wait = longest_wait
        self._clock = clock
        self._num_waiting = 0  # of those that decode, for the chunk that comes
        self._is_only_chunk = True  # for which they wait
        self._depth = 0  # of the longest text whose prompt is being read
        self._chunks = 0  # since those that decode had a step, theirs included
        self._waiting_since: float | None = None  # those that decode, with no step of theirs
        self._some_went_on = False  # of those that decode some have more than their first token
        self._is_burst = False
        self._burst_end: float | None = None  # of the burst that newcomers are of, or were

    def see(self, num_newcomers: int, num_decoding: int) -> None:
        """Take note of who is there before a step.

        Args:
            num_newcomers: Requests that could begin if their prompts were read.
            num_decoding: Streams that decode.
        """
        if not num_decoding:
            self._some_went_on = False
        if not num_newcomers:
            self._burst_end = None
        elif self._burst_end is None and num_newcomers >= NEWCOMERS and not self._some_went_on:
            self._burst_end = self._clock() + BURST_SECONDS
        most = self._most_chunks
        self._is_burst = is_burst = (
            most > 1
            and not self._some_went_on
            and self._burst_end is not None
            and self._clock() < self._burst_end
        )
        chunks = min(chunks_between(num_newcomers, num_decoding), most)
        self._is_only_chunk = chunks == 1
        self.are_alone = num_decoding > 0 and (is_burst or 0 < self._chunks < chunks)
        if self.are_alone:
            now = self._clock()
            if self._waiting_since is None:
                self._waiting_since = now
            self.are_alone = now < self._waiting_since + self._longest_wait
        self._num_waiting = 0 if is_burst else num_decoding

    @property
    def tokens(self) -> int:
        """Most prompt tokens of the next step."""
        if not self._num_waiting:
            return self.chunk
        most = self._beside if self._is_only_chunk else self.chunk
        if self._cost is None or not self._depth:
            return most
        return self._cost.chunk(most, self._depth)

    def note(self, rows: Sequence[ScheduledRow], *, alone: bool) -> None:
        """Take note of the rows of a step.

        Args:
            rows: As they were scheduled.
            alone: Whether those that decode wait for it.
        """
        decodes = [row.state.status is _DECODING for row in rows]
        self._chunks = (not all(decodes)) + (self._chunks if alone else 0)
        if not alone:
            self._waiting_since = None
        # A step behind a long wait is still of the burst; one as no prompt can begin ends it.
        is_pause = self._is_burst and not self.are_alone
        self._some_went_on = self._some_went_on or (any(decodes) and not is_pause)
        self._depth = max((row.start + row.count for row in rows if not row.is_last), default=0)


def chunks_between(num_newcomers: int, num_decoding: int) -> int:
    """Return the prompt chunks between two tokens of a running stream.

    Args:
        num_newcomers: Requests that could begin if their prompts were read.
        num_decoding: Streams that are held up.

    Returns:
        One, and one more as often as more wait.
    """
    return 1 + num_newcomers // max(num_decoding, NEWCOMERS)
