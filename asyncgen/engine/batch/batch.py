"""The shared batch: rows of many requests that advance together, one token a row and step.

A step asks the scheduler for rows, runs them in one forward pass, picks their tokens and tells
their readers. It knows no tensors but the logits it passes on, no thread and no loop. What fails
in a row fails its request alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from asyncgen.engine.batch.async_step import BegunStep, UnreadTokens
from asyncgen.engine.batch.sequence import Sequence, forced_room
from asyncgen.engine.kv_cache.cache_groups import withdraw
from asyncgen.engine.output.events import EventWriter
from asyncgen.engine.requests.request import clock, fail
from asyncgen.engine.sampling.logprobs import named_logprob
from asyncgen.engine.scheduling.state import RequestStatus
from asyncgen.errors import InvalidRequestError, InvalidScoresError
from asyncgen.runtime.progress import tell
from asyncgen.runtime.request_failure import request_failure
from streamers import LoopBell

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from asyncgen.engine.batch.runner import BatchRunner
    from asyncgen.engine.metrics import EngineMetrics
    from asyncgen.engine.requests.pooling import HiddenReader
    from asyncgen.engine.requests.request import Request
    from asyncgen.engine.sampling.sampler import BatchSampler, Sampled
    from asyncgen.engine.scheduling.prefill_budget import PrefillBudget
    from asyncgen.engine.scheduling.scheduler import Scheduler
    from asyncgen.engine.scheduling.state import RequestState, ScheduledRow
    from asyncgen.text.tokenizer import Tokenizer
    from asyncgen.types import TokenLogprob


_FINISHED = RequestStatus.FINISHED
"""From here on, a sequence has ended."""

_NO_END = 1 << 40
"""Positions that no text has."""


class Batch:
    """Requests whose rows share every step.

    Attributes:
        requests: Those that have not ended, each with its sequences that have not.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: BatchRunner,
        sampler: BatchSampler,
        *,
        tokenizer: Tokenizer | None,
        pace: PrefillBudget,
        prefix_caching: bool = True,
        manual_eviction: bool = False,
        runs_ahead: bool = False,
        metrics: EngineMetrics | None = None,
        progress: Callable[[str, int, int], object] | None = None,
    ) -> None:
        """Start without requests.

        Args:
            scheduler: Picks the rows of a step and gives them pages.
            runner: Computes.
            sampler: Picks tokens.
            tokenizer: Turns ids to text; ``None`` where only ids are wanted.
            pace: What prompts get of the steps.
            prefix_caching: Whether requests share the pages of equal beginnings; the sequences of
                one request always do.
            manual_eviction: Whether a sequence that ended as it should is left its pages, until
                :meth:`evict`, or until their space is needed.
            runs_ahead: Whether the next forward pass is begun before the tokens of a step are
                read: for a device that computes while the host does something else.
            metrics: Hears of prompts and failures.
            progress: Is told of each chunk of a prompt of more than one.
        """
        self._scheduler = scheduler
        self._runner = runner
        self._sampler = sampler
        self._tokenizer = tokenizer
        self._pace = pace
        self._prefix_caching = prefix_caching
        self._manual_eviction = manual_eviction
        self._runs_ahead = runs_ahead
        self._begun: BegunStep | None = None
        self._metrics = metrics
        self._progress = progress
        self.requests: dict[Request, dict[Sequence, None]] = {}
        self._events: dict[Request, EventWriter] = {}  # of those that have had a step
        self._readers: dict[RequestState, HiddenReader] = {}  # of sequences that it is told of
        self._num_decoding = 0
        self._forced_room: int | None = None  # what is left of it in this step
        # Attention has no budget of its own: each row reads no more than the pool holds, or,
        # where windows give pages back, no more than there is.
        pool = scheduler.cache
        is_whole = all(window is None for window in pool.windows)
        self._most_entries = pool.num_pages * pool.page_size if is_whole else _NO_END

    def warm(self) -> None:
        """Do what would make the first steps slow; on the thread that computes."""
        self._runner.warm()

    @property
    def num_running(self) -> int:
        """Requests that have had a step."""
        return len(self._events)

    @property
    def num_preemptions(self) -> int:
        """How often a sequence had to give its pages up so far."""
        return self._scheduler.num_preemptions

    @property
    def states(self) -> list[RequestState]:
        """What the scheduler has of all sequences."""
        return [sequence for sequences in self.requests.values() for sequence in sequences]

    def add(self, request: Request) -> None:
        """Queue a request."""
        reader = request.reader
        is_shared = self._prefix_caching and (reader is None or reader.shares_pages)
        salt = _salt(request) if is_shared else request.id.encode()
        sequences = self.requests[request] = {}
        try:
            for index in filter(request.goes_on, range(request.params.num_samples)):
                sequence = Sequence(request, index, salt=salt)
                sequence.keeps_states = is_shared or request.params.num_samples > 1
                self._scheduler.add_waiting_request(sequence)
                sequences[sequence] = None
                if reader is not None:
                    self._readers[sequence] = reader
            if not sequences:
                self._events_of(request)  # tells how each has ended
                self._forget(request)
        except BaseException as error:
            self._fail(request, error)

    def hold_back(self, num_pages: int, client: str) -> None:
        """Keep so many pages free for a client's request of the side lane: newcomers wait."""
        self._scheduler.hold_back(num_pages, client)

    def may_reserve(self, client: str) -> bool:
        """Whether the side lane may take pages for a client: nobody waits who is owed more."""
        return self._scheduler.may_reserve(client)

    def evict(self, request_id: str) -> None:
        """Give back the pages that a finished sequence was left; an unknown or live one is fine."""
        scheduler = self._scheduler
        live = request_id in scheduler.active_requests or request_id in scheduler.waiting_requests
        if not live:
            scheduler.finish_request(request_id)

    def abort(self, request: Request, reason: str = "cancelled") -> bool:
        """End a request wherever it is; return whether it was here."""
        if request not in self.requests:
            return False
        try:
            self._events_of(request).end(reason)
        except BaseException as error:
            # A tokenizer that raised on the rest of the text.
            fail(request, request_failure(error), self._metrics)
        self._forget(request)
        return True

    def abort_all(self, reason: str) -> None:
        """End every request."""
        for request in list(self.requests):
            self.abort(request, reason)

    def fail_all(self, error: BaseException) -> None:
        """Tell every request that the engine is dead."""
        requests, self.requests = self.requests, {}
        self._events.clear()
        self._readers.clear()
        self._begun = None
        for request in requests:
            fail(request, error, self._metrics)

    def step(self) -> list[ScheduledRow]:
        """Run one step of all rows that are scheduled.

        Returns:
            Which they were; none if none could run.
        """
        begun, self._begun = self._begun, None
        if begun is not None:
            begun = begun.without_ended()
        scheduled = begun.rows if begun is not None and begun.rows else self._schedule()
        if not scheduled:
            return scheduled
        if begun is not None and begun.rows and begun.logits is not None:
            rows, logits = begun.rows, begun.logits
        else:
            rows, logits = self._forward(scheduled)
        # Of the rows that came to the end of what they have, the next token is sampled, or what
        # was read on the way is all that was asked for.
        sequences = self._ended(rows, generate=True)
        read = self._ended(rows, generate=False) if self._readers else ()
        if sequences:
            sampled = self._sample(rows, sequences, logits)
            if sampled.failures:
                rows = self._withdraw_poisoned(rows, sequences, logits, sampled)
        self._scheduler.computed(rows)
        if self._progress is not None:
            self._tell_prefill(rows, self._progress)
        if sequences:
            self._forced_room = forced_room([cast("Sequence", row.state) for row in rows])
            self._settle(sequences, sampled)
        if read:
            self._settle_read(read)
        return scheduled

    def _ended(self, rows: list[ScheduledRow], *, generate: bool) -> list[Sequence]:
        """Rows that came to the end of what they have: those that go on, or the others."""
        readers = self._readers
        return [
            cast("Sequence", row.state)
            for row in rows
            if row.is_last
            and ((reader := readers.get(row.state)) is None or reader.generates) is generate
        ]

    def _tell_prefill(
        self, rows: list[ScheduledRow], progress: Callable[[str, int, int], object]
    ) -> None:
        """Say how far the long prompts of a step are."""
        for row in rows:
            total = len(cast("Sequence", row.state).request.prompt_ids)
            if self._pace.chunk < total and row.start < total:
                tell(progress, "prefill", min(row.start + row.count, total), total)

    def _sample(
        self, rows: list[ScheduledRow], sequences: list[Sequence], logits: Tensor
    ) -> Sampled:
        """Pick the tokens of a step; where that is allowed, with the next step under way."""
        if not self._runs_ahead:
            return self._sampler.sample(logits, sequences)
        picking = self._sampler.start(logits, sequences)
        if not picking.is_settled:
            return self._sampler.finish(picking)
        goes_on: dict[RequestState, int] = {
            sequence: number for number, sequence in enumerate(sequences) if sequence.may_go_on
        }
        unread = UnreadTokens(picking.tokens(), goes_on)
        self._scheduler.begun(rows)
        for sequence in sequences:
            self._count_decoding(sequence)
        unread.expect()
        self._begun = self._begin_step(unread)
        picking.wait()
        unread.forget()
        return self._sampler.finish(picking)

    def _begin_step(self, unread: UnreadTokens) -> BegunStep | None:
        """Ask for the next forward pass as if all rows went on."""
        rows = self._schedule(unread)
        if not rows:
            return None
        sampled: list[RequestState] = [*self._ended(rows, generate=True)]
        try:
            return BegunStep(rows, self._runner.logits(rows, unread, self._readers), sampled)
        except BaseException as error:
            request_failure(error)  # whose it is shows when it is run again, in its turn
            return BegunStep(rows, None, sampled)

    def _schedule(self, unread: UnreadTokens | None = None) -> list[ScheduledRow]:
        """The rows of a step, without those that were interrupted meanwhile.

        Args:
            unread: Tokens that are still to be read; their rows get these first.
        """
        scheduler = self._scheduler
        rows = self._choose()
        some_left = bool(scheduler.failed)
        if some_left:
            for state in scheduler.take_failed():
                request = cast("Sequence", state).request
                if request in self.requests:  # else another sequence of it has failed
                    error = InvalidRequestError("max_length", len(state.tokens), str(state.error))
                    self._fail(request, error)
        for row in rows:
            sequence = cast("Sequence", row.state)
            if sequence.status >= _FINISHED:  # with another sequence of its request, just now
                continue
            reason = sequence.request.ends.interrupted()
            if reason is not None and (unread is None or sequence not in unread.numbers):
                some_left = self.abort(sequence.request, reason)
            elif not sequence.has_begun and not self._begin(sequence):
                some_left = True
        return [row for row in rows if row.state.status < _FINISHED] if some_left else rows

    def _choose(self) -> list[ScheduledRow]:
        """The rows that the scheduler picks."""
        scheduler, pace, num_decoding = self._scheduler, self._pace, self._num_decoding
        pace.see(scheduler.num_newcomers, num_decoding)
        budget = num_decoding + pace.tokens
        entries = self._most_entries * scheduler.max_running
        scheduler.passes_decoding = pace.are_alone
        rows = scheduler.schedule_batch(budget, entries)
        if not rows and scheduler.passes_decoding:  # nobody could begin
            scheduler.passes_decoding = False
            rows = scheduler.schedule_batch(budget, entries)
        pace.note(rows, alone=scheduler.passes_decoding)
        return rows

    def _begin(self, sequence: Sequence) -> bool:
        """Take up a sequence at its first step; ``False`` if its request failed over it."""
        request = sequence.request
        try:
            self._events_of(request)
            sequence.begin_sampling()
        except BaseException as error:
            # A tokenizer that raised on the prompt.
            self._fail(request, error)
            return False
        cached = min(sequence.num_cached, len(request.prompt_ids))
        if not any(map(request.goes_on, range(sequence.index))):  # the first; others may hit its
            request.cached_tokens = cached
        if self._metrics is not None:
            self._metrics.prefix(len(request.prompt_ids), cached)
        return True

    def _forward(self, rows: list[ScheduledRow]) -> tuple[list[ScheduledRow], Tensor]:
        """Rows that could be computed, and the logits of those that came to their end."""
        try:
            return rows, self._runner.logits(rows, readers=self._readers)
        except BaseException as error:
            if len(rows) == 1:
                self._fail(cast("Sequence", rows[0].state).request, error)
                return [], torch.empty(0, 0)
            request_failure(error)
        # The fault of one, or too much at once; alone, each answers for itself.
        found = []
        for row in rows:
            if row.state.status >= _FINISHED:
                continue
            try:
                found.append((row, self._runner.logits([row], readers=self._readers)))
            except BaseException as error:
                self._fail(cast("Sequence", row.state).request, error)
        found = [(row, logits) for row, logits in found if row.state.status < _FINISHED]
        logits = [logits for _, logits in found] or [torch.empty(0, 0)]
        return [row for row, _ in found], torch.cat(logits)

    def _withdraw_poisoned(
        self, rows: list[ScheduledRow], sequences: list[Sequence], logits: Tensor, sampled: Sampled
    ) -> list[ScheduledRow]:
        """Take the pages of rows of NaN out of prefix sharing; return the other rows."""
        poisoned = {
            sequences[number]
            for number in sampled.failures
            if bool(torch.isnan(logits[number]).any())  # before any processor saw it
        }
        for sequence in poisoned:
            withdraw(self._scheduler.cache, sequence)
        return [row for row in rows if row.state not in poisoned]

    def _settle(self, sequences: list[Sequence], sampled: Sampled) -> None:
        """Append the tokens, tell the readers, end what has ended."""
        failures = sampled.failures
        with LoopBell.together():
            for number, sequence in enumerate(sequences):
                if sequence.status >= _FINISHED:  # another sequence of the same request has failed
                    continue
                try:
                    if number in failures:
                        raise failures[number]
                    self._settle_one(sequence, number, sampled)
                except BaseException as error:
                    # A processor, a criterion or a tokenizer that raised; a row of NaN.
                    self._fail(sequence.request, error)

    def _settle_one(self, sequence: Sequence, number: int, sampled: Sampled) -> None:
        """Append a sequence's token and write its event."""
        token_id = sampled.token_ids[number]
        assert token_id is not None
        if self._readers and (reader := self._readers.pop(sequence, None)) is not None:
            reader.finish()  # its prompt is behind it
        sequence.tokens.append(token_id)
        reason = sequence.reason_to_end(sampled.scores.get(number))
        token_ids: tuple[int, ...] = (token_id,)
        if sequence.matcher is not None and not self._runs_ahead:  # no next step is under way
            while reason is None and (forced := sequence.take_forced(self._forced_room)):
                token_ids += tuple(forced)
                if self._forced_room is not None:
                    self._forced_room -= len(forced)
                reason = sequence.reason_to_end(None)
        logprobs: tuple[TokenLogprob, ...] | None = None
        if number in sampled.logprobs:
            logprobs = (named_logprob(token_id, sampled.logprobs[number], self._tokenizer),)
        if not sequence.decodes:
            self._count_decoding(sequence)
        events = self._events[sequence.request]
        if not events.settle(sequence.index, token_ids, reason, logprobs):
            # A cancel that came during the step ends it here, like any other criterion.
            self._end(sequence, evict=not self._manual_eviction or reason == "cancelled")
            if not events.live:
                self._forget(sequence.request)

    def _settle_read(self, sequences: list[Sequence]) -> None:
        """End those that asked for no token: their vectors, or all of their scores, are there."""
        with LoopBell.together():
            for sequence in sequences:
                if sequence.status >= _FINISHED:
                    continue
                request = sequence.request
                try:
                    self._readers[sequence].finish()
                    if request.pool is None:
                        self._events[request].end("length")
                    else:
                        if self._metrics is not None:
                            self._metrics.embedded(request, clock())
                        self._events[request].settle(sequence.index, (), "stop")
                except BaseException as error:
                    if isinstance(error, InvalidScoresError):
                        withdraw(self._scheduler.cache, sequence)
                    self._fail(request, error)
                else:
                    self._forget(request)

    def _count_decoding(self, sequence: Sequence) -> None:
        """Take note that a sequence has its first token, or will have it before the next step."""
        self._num_decoding += not sequence.decodes
        sequence.decodes = True

    def _events_of(self, request: Request) -> EventWriter:
        """The writer of a request's events, made at its first step."""
        events = self._events.get(request)
        if events is None:
            events = self._events[request] = EventWriter(
                request, self._tokenizer, clock, self._metrics
            )
        return events

    def _fail(self, request: Request, error: BaseException) -> None:
        fail(request, request_failure(error), self._metrics)
        self._forget(request)

    def _forget(self, request: Request) -> None:
        """Give back everything a request holds."""
        for sequence in list(self.requests[request]):
            self._end(sequence)
        del self.requests[request]
        self._events.pop(request, None)
        if not self.requests:
            self._begun = None
            self._sampler.forget()

    def _end(self, sequence: Sequence, *, evict: bool = True) -> None:
        self._num_decoding -= sequence.decodes
        self._readers.pop(sequence, None)
        reader, sequences = sequence.request.reader, self.requests[sequence.request]
        del sequences[sequence]
        if reader is not None and not reader.shares_pages:
            # Nobody else could find them; the other sequences have use for those of the prompt.
            cache = self._scheduler.cache
            length = len(sequence.request.prompt_ids)
            withdraw(cache, sequence, length // cache.page_size if sequences else 0)
        self._scheduler.finish_request(sequence.request_id, evict_from_cache=evict)


def _salt(request: Request) -> bytes:
    """What the keys of a request's pages depend on beside its tokens."""
    given = request.params.cache_salt
    # Under its own name, so that none equals the id that stands for "with nobody".
    return b"cache_salt " + given.encode() if given else b""
