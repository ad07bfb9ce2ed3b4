"""Writes the events of one request: exact text per sample, then counts and times at its end.

The joint between tokens and text. It knows neither the strategy that settled the tokens nor who
reads the events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from asyncgen.engine.text import SampleText
from asyncgen.types import FinishReason, Timing, TokenEvent, TokenLogprob, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from asyncgen.engine.request import Request
    from asyncgen.tokenizer import Tokenizer

__all__ = ["EventWriter"]


@dataclass(slots=True)
class _Row:
    """One sample in progress."""

    text: SampleText
    num_tokens: int = 0
    live: bool = True


class EventWriter:
    """From the settled ids of a request's samples to the events in its sink."""

    def __init__(self, request: Request, tokenizer: Tokenizer, clock: Callable[[], float]) -> None:
        """Begin with nothing generated; the time in the queue ends here.

        Args:
            request: Whose events to write.
            tokenizer: Turns ids to text.
            clock: Monotonic seconds, the clock that stamped ``request.accepted_at``.
        """
        self._request = request
        self._clock = clock
        self._rows = [
            _Row(SampleText(tokenizer, request)) for _ in range(request.params.num_samples)
        ]
        self._queue_time = clock() - request.accepted_at
        self._first_token: float | None = None
        self._last_token: float | None = None

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
        return any(row.live for row in self._rows)

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
        token_ids, text, stop = _add(row.text, token_ids)
        row.num_tokens += len(token_ids)
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
        row.live = reason is None
        if token_ids:
            self._note_time()
        self._put(index, tuple(token_ids), text, logprobs, reason, stop_reason)
        return row.live

    def end(self, reason: str) -> None:
        """End every live sample here, keeping what was generated."""
        for index, row in enumerate(self._rows):
            if row.live:
                text, stop = row.text.finish()
                row.live = False
                self._put(index, (), text, None, "stop" if stop else reason, stop)

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
    ) -> None:
        """Hand an event to the reader; the last one carries usage and timing."""
        last = reason is not None and not self.any_live
        self._request.sink.put_nowait(
            TokenEvent(
                index=index,
                token_ids=token_ids,
                text=text,
                logprobs=logprobs,
                time=self._clock() - self._request.accepted_at,
                finish_reason=cast("FinishReason | None", reason),
                stop_reason=stop_reason,
                usage=self._usage() if last else None,
                timing=self._timing() if last else None,
            )
        )

    def _note_time(self) -> None:
        self._last_token = self._clock() - self._request.accepted_at
        if self._first_token is None:
            self._first_token = self._last_token

    def _usage(self) -> Usage:
        return Usage(len(self._request.prompt_ids), sum(row.num_tokens for row in self._rows))

    def _timing(self) -> Timing:
        first, last = self._first_token, self._last_token
        after_first = sum(row.num_tokens for row in self._rows) - len(self._rows)
        rate = None
        if first is not None and last is not None and last > first and after_first > 0:
            rate = after_first / (last - first)
        total = self._clock() - self._request.accepted_at
        return Timing(self._queue_time, first, total, rate)


def _add(text: SampleText, token_ids: Sequence[int]) -> tuple[Sequence[int], str, str | None]:
    """Add ids one by one; return those up to a stop string, their text, and the stop string."""
    if len(token_ids) == 1:
        return token_ids, *text.add(token_ids)
    pieces = []
    for count, token_id in enumerate(token_ids, 1):
        piece, stop = text.add((token_id,))
        pieces.append(piece)
        if stop is not None:
            return token_ids[:count], "".join(pieces), stop
    return token_ids, "".join(pieces), None
