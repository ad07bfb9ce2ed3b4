"""Write the events of one request: new ids with their text, and at its end usage and timing.

It knows neither the strategy that picked the tokens nor the reader of the events.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from asyncgen.types import FinishReason, Timing, TokenEvent, TokenLogprob, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from asyncgen.engine.metrics import EngineMetrics
    from asyncgen.engine.requests.request import Request
    from asyncgen.text.sequence_text import SequenceText
    from asyncgen.text.tokenizer import Tokenizer


def is_last(letter: TokenEvent | BaseException) -> bool:
    """Tell whether an event ends its stream, so that its reader is woken at once."""
    return isinstance(letter, BaseException) or letter.usage is not None


class EventWriter:
    """Writer of the events of one request to its sink.

    Attributes:
        live: Numbers of the sequences that have not ended.
    """

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer | None,
        clock: Callable[[], float],
        metrics: EngineMetrics | None = None,
    ) -> None:
        """Begin at the first step of a request, where its time in the queue ends.

        A sequence that had ended before the request came here gets its last event at once.

        Args:
            request: The request.
            tokenizer: Decodes ids; ``None`` where only ids are wanted.
            clock: Monotonic seconds, the clock of ``request.accepted_at``.
            metrics: Records the start, the tokens and the end.
        """
        self._request = request
        self._clock = clock
        self._metrics = metrics
        rows = range(request.params.num_samples)
        self._texts = [given.text for given in request.given] or [
            request.text_of(row, tokenizer) for row in rows
        ]
        self._prompt_logprobs = request.scores  # until the first event has them
        self.live = set(rows)
        self._num_given = 0  # tokens that were generated before the request came here
        request.progress.started_at = now = clock()
        if request.place is not None:
            request.place.started()
        if metrics is not None:
            metrics.queue_time.observe(now - request.accepted_at)
        for index, given in enumerate(request.given):
            self._num_given += len(given.token_ids)
            if given.text.parser is not None:
                given.text.parser.take()  # the reader of the first part has it
            if given.reason is not None:
                stop = given.stop if isinstance(given.stop, str) else None
                ending_id = given.stop if isinstance(given.stop, int) else None
                self._end(index, (), "", None, given.reason, stop, ending_id, now)
        self._num_started = len(self.live)

    def heal(self, prompt_ids: Sequence[Sequence[int]]) -> None:
        """Begin the texts anew, as the last token of the prompt was chosen again.

        Args:
            prompt_ids: The new prompt of each sequence.
        """
        for text, ids in zip(self._texts, prompt_ids, strict=True):
            text.heal(ids, self._request.shown)

    def write(
        self,
        index: int,
        token_ids: Sequence[int],
        reason: str | None,
        logprobs: tuple[TokenLogprob, ...] | None = None,
    ) -> bool:
        """Write the event of a live sequence; ids behind a stop string are left out.

        Args:
            index: Number of the sequence.
            token_ids: Its new ids; empty where a step only ends it.
            reason: Reason to end with them, ``None`` if it goes on.
            logprobs: One entry an id, if asked for.

        Returns:
            Whether the sequence goes on; a stop string in its text ends it too.
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
            progress = request.progress
            progress.num_tokens += len(token_ids)
            progress.last_token_at = now
            if progress.first_token_at is None:
                progress.first_token_at = now
        since = now - request.accepted_at
        if reason is None and stop is None:
            self._put(TokenEvent(index, tuple(token_ids), shown, logprobs, since))
            return True
        ending_id: int | None = None
        if stop is None:
            # A request that resumes behind these ids writes the rest of their text again, so the
            # rest is an event of its own.
            splits = bool(token_ids) and reason in ("cancelled", "time")
            if splits and text.parser is not None:
                self._put(TokenEvent(index, tuple(token_ids), shown, logprobs, since))
                token_ids, shown, logprobs = (), "", None if logprobs is None else ()
            rest, stop = text.finish()
            if splits and rest and token_ids and stop is None:
                self._put(TokenEvent(index, tuple(token_ids), shown, logprobs, since))
                token_ids, shown, logprobs = (), "", None if logprobs is None else ()
            shown += rest
            if (
                reason == "stop"
                and token_ids
                and token_ids[-1] in request.stop_checks.eos_token_ids
            ):
                ending_id = token_ids[-1]
        self._end(index, tuple(token_ids), shown, logprobs, reason, stop, ending_id, now)
        return False

    def end(self, reason: str) -> None:
        """End every live sequence; what was generated stays."""
        for index in sorted(self.live):
            shown, stop = self._texts[index].finish()
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
        """Write the last event of a sequence; that of the request has usage and timing."""
        request = self._request
        self.live.remove(index)
        ending = "stop" if stop is not None else cast("str", reason)
        if stop and request.grammar is not None:
            ending = "incomplete"  # the text ends before the stop string
        usage, timing = (None, None) if self.live else self._finish_request(ending, now)
        self._put(
            TokenEvent(
                index,
                token_ids,
                shown,
                logprobs,
                now - request.accepted_at,
                cast("FinishReason", ending),
                ending_id if stop is None else stop or None,
                usage,
                timing,
            )
        )

    def _finish_request(self, ending: str, now: float) -> tuple[Usage, Timing]:
        """Record the end, before the reader has it and looks at the metrics; return the counts."""
        request, progress = self._request, self._request.progress
        if request.place is not None:
            request.place.left()
        if self._metrics is not None:
            self._metrics.request_finished(request, ending, now)
        usage = Usage(
            len(request.prompt_ids),
            self._num_given + progress.num_tokens,
            progress.cached_tokens,
            request.fingerprint if progress.has_old_weights else None,
            request.is_exact,
            sum(text.num_reasoning for text in self._texts),
            request.truncated_tokens,
        )
        accepted, started, first = request.accepted_at, progress.started_at, progress.first_token_at
        assert started is not None
        if first is None:
            return usage, Timing(started - accepted, None, now - accepted, None)
        num_later = progress.num_tokens - self._num_started
        seconds = progress.last_token_at - first
        rate = num_later / seconds if seconds > 0 and num_later > 0 else None
        return usage, Timing(started - accepted, first - accepted, now - accepted, rate)

    def _put(self, event: TokenEvent) -> None:
        """Add to an event what else there is to tell, and hand it to the reader."""
        parser, scores = self._texts[event.index].parser, self._prompt_logprobs
        if parser is not None:
            reasoning, calls = parser.take()
            event = replace(event, reasoning=reasoning, tool_calls=tuple(calls))
        if scores is not None and scores.is_complete:
            # Not complete: a sequence that had ended before the prompt was computed.
            event = replace(event, prompt_logprobs=scores.take())
            self._prompt_logprobs = None
        self._request.sink.put_nowait(event)


def _add(text: SequenceText, token_ids: Sequence[int]) -> tuple[Sequence[int], str, str | None]:
    """Add ids one by one; return those up to a stop string, their text, and the stop string."""
    pieces = []
    for count, token_id in enumerate(token_ids, 1):
        piece, stop = text.add((token_id,))
        pieces.append(piece)
        if stop is not None:
            return token_ids[:count], "".join(pieces), stop
    return token_ids, "".join(pieces), None
