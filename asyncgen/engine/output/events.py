"""Writes the events of one request: exact text per sample, then counts and times at its end.

The joint between tokens and text. It knows neither the strategy that settled the tokens nor who
reads the events.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from asyncgen.engine.output.sample_text import SampleText
from asyncgen.types import FinishReason, Timing, TokenEvent, TokenLogprob, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from asyncgen.engine.metrics import EngineMetrics
    from asyncgen.engine.requests.request import Request
    from asyncgen.text.tokenizer import Tokenizer


class EventWriter:
    """From the settled ids of a request's samples to the events in its sink."""

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer | None,
        clock: Callable[[], float],
        metrics: EngineMetrics | None = None,
    ) -> None:
        """Begin behind what was generated before; the time in the queue ends here.

        Samples that have ended with it are told as ended at once, without text.

        Args:
            request: Whose events to write.
            tokenizer: Turns ids to text; ``None`` where only ids are wanted.
            clock: Monotonic seconds, the clock that stamped ``request.accepted_at``.
            metrics: Hears of the start, of tokens and of the end.
        """
        self._request = request
        self._clock = clock
        self._metrics = metrics
        rows = range(request.params.num_samples)
        self._texts = [each.text for each in request.given] or [
            SampleText(tokenizer, request, row) for row in rows
        ]
        self._scores = request.scores  # until they are told, with the first event
        self._num_live = len(self._texts)
        self._num_rows = sum(map(request.goes_on, rows))
        request.started_at = now = clock()
        if request.place is not None:
            request.place.started()
        if metrics is not None:
            metrics.request_started(request, now)
        for index, given in enumerate(request.given):
            if given.text.reader is not None:
                given.text.reader.take()  # the reader of the first part has it
            if given.reason is not None:
                stop = given.stop if isinstance(given.stop, str) else None
                ending_id = given.stop if isinstance(given.stop, int) else None
                self._end(index, (), "", None, given.reason, stop, ending_id, now)

    def heal(self, prompt_ids: Sequence[Sequence[int]]) -> None:
        """Take note of the prompts of all samples after their last tokens were chosen again."""
        for text, ids in zip(self._texts, prompt_ids, strict=True):
            text.heal(ids)

    def is_live(self, index: int) -> bool:
        """Whether this sample has not ended."""
        return self._texts[index].live

    @property
    def any_live(self) -> bool:
        """Whether any sample has not ended."""
        return self._num_live > 0

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
        request, text = self._request, self._texts[index]
        if len(token_ids) == 1:
            shown, stop = text.add(token_ids)
        else:
            token_ids, shown, stop = _add(text, token_ids)
        if logprobs is not None:
            logprobs = logprobs[: len(token_ids)]
        now = self._clock()
        if token_ids:
            if self._metrics is not None:
                self._metrics.tokens(request, len(token_ids), now)
            request.num_tokens += len(token_ids)
            request.last_token_at = now
            if request.first_token_at is None:
                request.first_token_at = now
        if reason is None and stop is None:
            self._tell(index, token_ids, shown, logprobs, now)
            return True
        ending_id: int | None = None
        if stop is None:
            # Whoever goes on behind these ids gets the rest again: it is told apart.
            splits = bool(token_ids) and reason in ("cancelled", "time")
            if splits and text.reader is not None:
                self._tell(index, token_ids, shown, logprobs, now)
                token_ids, shown, logprobs = (), "", None if logprobs is None else ()
            rest, stop = text.finish()
            if splits and rest and token_ids and stop is None:
                self._tell(index, token_ids, shown, logprobs, now)
                token_ids, shown, logprobs = (), "", None if logprobs is None else ()
            shown += rest
            if reason == "stop" and token_ids and token_ids[-1] in request.ends.eos_token_ids:
                ending_id = token_ids[-1]
        self._end(index, tuple(token_ids), shown, logprobs, reason, stop, ending_id, now)
        return False

    def _tell(
        self,
        index: int,
        token_ids: Sequence[int],
        shown: str,
        logprobs: tuple[TokenLogprob, ...] | None,
        now: float,
    ) -> None:
        """Hand the reader an event of a sample that goes on."""
        request, reader = self._request, self._texts[index].reader
        since = now - request.accepted_at
        event = TokenEvent(index, tuple(token_ids), shown, logprobs, since)
        if reader is not None:
            reasoning, calls = reader.take()
            event = replace(event, reasoning=reasoning, tool_calls=tuple(calls))
        request.sink.put_nowait(event if self._scores is None else self._with_scores(event))

    def _with_scores(self, event: TokenEvent) -> TokenEvent:
        """Tell what the prompt is worth, once, if it was read to its end."""
        scores = self._scores
        if scores is None or not scores.is_complete:
            return event  # as where a sample had ended before the prompt was read
        self._scores = None
        return replace(event, prompt_logprobs=tuple(scores.entries))

    def end(self, reason: str) -> None:
        """End every live sample here, keeping what was generated."""
        for index, text in enumerate(self._texts):
            if text.live:
                shown, stop = text.finish()
                self._end(index, (), shown, None, reason, stop, None, self._clock())

    def _end(
        self,
        index: int,
        token_ids: tuple[int, ...],
        shown: str,
        logprobs: tuple[TokenLogprob, ...] | None,
        reason: str | None,
        stop: str | None,
        ending_id: int | None,
        now: float,
    ) -> None:
        """Hand the reader the last event of a sample; that of the request has usage and timing."""
        request, reader = self._request, self._texts[index].reader
        self._texts[index].live = False
        self._num_live -= 1
        ending = "stop" if stop is not None else cast("str", reason)
        if stop and request.grammar is not None:
            ending = "incomplete"  # the text ends before the stop string
        usage = timing = None
        if not self._num_live:
            # Before the reader hears of it, who may look at the figures.
            if request.place is not None:
                request.place.left()
            if self._metrics is not None:
                self._metrics.request_finished(request, ending, now)
            generated = request.num_given + request.num_tokens
            usage = Usage(
                len(request.prompt_ids),
                generated,
                request.cached_tokens,
                request.fingerprint,
                request.is_exact,
                sum(text.num_reasoning for text in self._texts),
            )
            timing = self._timing(now)
        reasoning, calls = ("", ()) if reader is None else reader.take()
        event = TokenEvent(
            index,
            token_ids,
            shown,
            logprobs,
            now - request.accepted_at,
            cast("FinishReason", ending),
            ending_id if stop is None else stop or None,
            usage,
            timing,
            reasoning,
            tuple(calls),
        )
        request.sink.put_nowait(event if self._scores is None else self._with_scores(event))

    def _timing(self, now: float) -> Timing:
        request = self._request
        accepted, started, first = request.accepted_at, request.started_at, request.first_token_at
        assert started is not None
        if first is None:
            return Timing(started - accepted, None, now - accepted, None)
        after_first = request.num_tokens - self._num_rows
        seconds = request.last_token_at - first
        rate = after_first / seconds if seconds > 0 and after_first > 0 else None
        return Timing(started - accepted, first - accepted, now - accepted, rate)


def _add(text: SampleText, token_ids: Sequence[int]) -> tuple[Sequence[int], str, str | None]:
    """Add ids one by one; return those up to a stop string, their text, and the stop string."""
    pieces = []
    for count, token_id in enumerate(token_ids, 1):
        piece, stop = text.add((token_id,))
        pieces.append(piece)
        if stop is not None:
            return token_ids[:count], "".join(pieces), stop
    return token_ids, "".join(pieces), None
