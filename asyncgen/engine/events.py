"""Writes the events of one request: exact text per sample, then counts and times at its end.

The joint between tokens and text. It knows neither the strategy that settled the tokens nor who
reads the events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from asyncgen.engine.text import NoText, SampleText
from asyncgen.types import FinishReason, Timing, TokenEvent, TokenLogprob, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from asyncgen.engine.metrics import EngineMetrics
    from asyncgen.engine.requests.request import Request
    from asyncgen.tokenizer import Tokenizer

__all__ = ["EventWriter"]


@dataclass(slots=True)
class _Row:
    """One sample in progress."""

    text: SampleText | NoText
    live: bool = True


class EventWriter:
    """From the settled ids of a request's samples to the events in its sink.

    Attributes:
        cached_tokens: Tokens of the prompt whose keys and values were there already.
    """

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer | None,
        clock: Callable[[], float],
        metrics: EngineMetrics | None = None,
    ) -> None:
        """Begin with nothing generated; the time in the queue ends here.

        Args:
            request: Whose events to write.
            tokenizer: Turns ids to text; ``None`` where only ids are wanted.
            clock: Monotonic seconds, the clock that stamped ``request.accepted_at``.
            metrics: Hears of the start, of tokens and of the end.
        """
        self.cached_tokens = 0
        self._request = request
        self._clock = clock
        self._metrics = metrics
        self._rows = [
            _Row(NoText() if tokenizer is None else SampleText(tokenizer, request))
            for _ in range(request.params.num_samples)
        ]
        self._live = len(self._rows)
        self._num_tokens = 0
        now = clock()
        self._queue_time = now - request.accepted_at
        self._first_token: float | None = None
        self._last_token: float | None = None
        if request.place is not None:
            request.place.started()
        if metrics is not None:
            metrics.request_started(request, now)

    def heal(self, prompt_ids: Sequence[Sequence[int]]) -> None:
        """Take note of the prompts of all samples after their last tokens were chosen again."""
        for row, ids in zip(self._rows, prompt_ids, strict=True):
            row.text.heal(ids[-1], ids[:-1], self._request.shown)

    def is_live(self, row: int) -> bool:
        """Whether this sample has not ended."""
        return self._rows[row].live

    @property
    def any_live(self) -> bool:
        """Whether any sample has not ended."""
        return self._live > 0

    def settle(
        self,
        index: int,
        token_ids: Sequence[int],
        reason: str | None,
        logprobs: tuple[TokenLogprob, ...] | None = None,
    ) -> bool:
        """Write what a step settled for a live sample; ids behind a stop string are left out.

        Args:
            index: The sample.
            token_ids: Its new ids; none where a step only ends it.
            reason: Why it ends with them, ``None`` if it goes on.
            logprobs: One entry an id, if asked for.

        Returns:
            Whether the sample goes on; a stop string in its text ends it too.
        """
        row = self._rows[index]
        if len(token_ids) == 1:
            text, stop = row.text.add(token_ids)
        else:
            token_ids, text, stop = _add(row.text, token_ids)
        if logprobs is not None:
            logprobs = logprobs[: len(token_ids)]
        stop_reason: int | str | None = stop
        if stop is not None:
            reason = "stop"
        elif reason is not None:
            rest, stop = row.text.finish()
            text += rest
            stop_reason = stop if stop is not None else self._ending_id(token_ids, reason)
            reason = "stop" if stop is not None else reason
        if reason is not None:
            self._close(row)
        now = self._clock()
        if token_ids:
            self._count(len(token_ids), now)
        self._put(index, tuple(token_ids), text, logprobs, reason, stop_reason, now)
        return row.live

    def end(self, reason: str) -> None:
        """End every live sample here, keeping what was generated."""
        for index, row in enumerate(self._rows):
            if row.live:
                text, stop = row.text.finish()
                self._close(row)
                ending = "stop" if stop else reason
                self._put(index, (), text, None, ending, stop, self._clock())

    def _close(self, row: _Row) -> None:
        row.live = False
        self._live -= 1

    def _count(self, num_tokens: int, now: float) -> None:
        """Take note of new tokens and their time."""
        self._num_tokens += num_tokens
        self._last_token = since = now - self._request.accepted_at
        if self._first_token is None:
            self._first_token = since
        if self._metrics is not None:
            self._metrics.tokens(self._request, num_tokens, now)

    def _ending_id(self, token_ids: Sequence[int], reason: str) -> int | None:
        """The end-of-sequence id that ended a sample, if that is what did."""
        ends = self._request.ends.eos_token_ids
        ending = reason == "stop" and bool(token_ids) and token_ids[-1] in ends
        return token_ids[-1] if ending else None

    def _put(
        self,
        index: int,
        token_ids: tuple[int, ...],
        text: str,
        logprobs: tuple[TokenLogprob, ...] | None,
        reason: str | None,
        stop_reason: int | str | None,
        now: float,
    ) -> None:
        """Hand an event to the reader; the last one carries usage and timing."""
        request, since = self._request, now - self._request.accepted_at
        if reason is None:
            request.sink.put_nowait(TokenEvent(index, token_ids, text, logprobs, since))
            return
        usage = timing = None
        if not self._live:
            # Before the reader hears of it, who may look at the figures.
            if request.place is not None:
                request.place.left()
            if self._metrics is not None:
                self._metrics.request_finished(request, reason, now)
            usage, timing = self._usage(), self._timing(now)
        finish = cast("FinishReason", reason)
        request.sink.put_nowait(
            TokenEvent(index, token_ids, text, logprobs, since, finish, stop_reason, usage, timing)
        )

    def _usage(self) -> Usage:
        return Usage(len(self._request.prompt_ids), self._num_tokens, self.cached_tokens)

    def _timing(self, now: float) -> Timing:
        first, last = self._first_token, self._last_token
        after_first = self._num_tokens - len(self._rows)
        rate = None
        if first is not None and last is not None and last > first and after_first > 0:
            rate = after_first / (last - first)
        return Timing(self._queue_time, first, now - self._request.accepted_at, rate)


def _add(
    text: SampleText | NoText, token_ids: Sequence[int]
) -> tuple[Sequence[int], str, str | None]:
    """Add ids one by one; return those up to a stop string, their text, and the stop string."""
    pieces = []
    for count, token_id in enumerate(token_ids, 1):
        piece, stop = text.add((token_id,))
        pieces.append(piece)
        if stop is not None:
            return token_ids[:count], "".join(pieces), stop
    return token_ids, "".join(pieces), None
