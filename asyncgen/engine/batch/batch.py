"""Run the shared batch: sequences of many requests advance together, one token each a step.

A step asks the scheduler for rows, runs them in one forward pass, picks their tokens and writes
their events. The batch knows no tensors but the logits it passes on, no thread and no event loop.
An error in a row fails its request alone.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, cast

import torch

from asyncgen.engine.batch.async_step import BegunStep, UnreadTokens
from asyncgen.engine.batch.sequence import Sequence
from asyncgen.engine.kv_cache.block_tables import unshare
from asyncgen.engine.output.events import EventWriter
from asyncgen.engine.requests.request import clock, fail
from asyncgen.engine.sampling.logprobs import decoder_of
from asyncgen.engine.scheduling.state import RequestStatus
from asyncgen.errors import InvalidRequestError, InvalidScoresError
from asyncgen.models.kernels.parameter import VERSION, all_writes
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


_STATE = attrgetter("state")

_FINISHED = RequestStatus.FINISHED
"""Status from which on a sequence has ended."""

_WEIGHTS = b"\xff"
"""Stands in a salt before the number of the weights; no text in UTF-8 has this byte."""

_NO_END = 1 << 40
"""More positions than any text has."""

_ROWS_A_FORCED_TOKEN = 32
"""Rows for which a step computes one forced token, if some of them have no grammar; at least one
token in all."""


class Batch:
    """Requests whose sequences share every step.

    Attributes:
        requests: Requests that have not ended, each with its sequences that have not.
        running: Requests that have had a step, with the writers of their events.
        scheduler: Picks the rows of a step and gives them blocks.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: BatchRunner,
        sampler: BatchSampler,
        *,
        tokenizer: Tokenizer | None,
        prefill_budget: PrefillBudget,
        prefix_caching: bool = True,
        manual_eviction: bool = False,
        runs_ahead: bool = False,
        metrics: EngineMetrics | None = None,
        progress: Callable[[str, int, int], object] | None = None,
    ) -> None:
        """Start without requests.

        Args:
            scheduler: Picks the rows of a step and gives them blocks.
            runner: Computes logits.
            sampler: Picks tokens.
            tokenizer: Decodes ids; ``None`` where only ids are wanted.
            prefill_budget: Prompt tokens that a step may compute.
            prefix_caching: Whether requests share the blocks of equal beginnings; the sequences
                of one request always do.
            manual_eviction: Whether a finished sequence keeps its blocks until :meth:`evict`, or
                until their memory is needed.
            runs_ahead: Whether the next forward pass begins before the tokens of a step are read:
                for a device that computes while the host works.
            metrics: Records prompts and failures.
            progress: Called after each chunk of a prompt of several chunks.
        """
        self.scheduler = scheduler
        self._runner = runner
        self._sampler = sampler
        self._tokenizer = tokenizer
        self._decode = decoder_of(tokenizer)
        self._prefill_budget = prefill_budget
        self._prefix_caching = prefix_caching
        self._manual_eviction = manual_eviction
        self._runs_ahead = runs_ahead
        self._begun: BegunStep | None = None
        self._metrics = metrics
        self._progress = progress
        self.requests: dict[Request, dict[Sequence, None]] = {}
        self.running: dict[Request, EventWriter] = {}
        self._readers: dict[RequestState, HiddenReader] = {}  # of sequences with such a reader
        self._num_decoding = 0
        self._num_weights, self._weights_salt = 0, b""  # how often weights may have changed
        self._weights = runner.weights()
        self._num_writes = all_writes(self._weights)
        self._num_forced_left: int | None = None  # forced tokens that this step may still add
        # Attention needs no budget: a row reads at most the whole pool. Where windows free blocks,
        # a text may be longer than the pool.
        pool = scheduler.cache
        is_whole = all(window is None for window in pool.windows)
        self._most_entries = pool.num_pages * pool.page_size if is_whole else _NO_END

    def warm(self) -> None:
        """Claim this thread for the model's kernels."""
        self._runner.warm()

    def record_steps(self) -> None:
        """Record decode steps in advance, where they are recorded at all."""
        self._runner.record_steps()

    def settle(self) -> None:
        """Wait until the device has computed what was begun."""
        self._runner.settle()

    def forget_weights(self) -> None:
        """Share nothing that was computed before: the weights may have changed.

        Sequences that run keep their keys and values. Those that wait are computed anew. No request
        has a fingerprint from now on: that is of the weights with which the engine opened.
        """
        self._num_weights += 1
        self._weights_salt = b"%s%d" % (_WEIGHTS, self._num_weights)
        # Before it follows them: the next step sees what is written meanwhile.
        self._weights = self._runner.weights()
        self._num_writes = all_writes(self._weights)
        self._runner.forget_weights()
        for request in self.requests:
            request.progress.has_old_weights = False
        for state in self.scheduler.waiting_requests.values():
            state.salt = state.salt.split(_WEIGHTS)[0] + self._weights_salt
            state.block_hashes = []
        self.scheduler.cache.forget_kept()

    @property
    def states(self) -> list[RequestState]:
        """All sequences, as the scheduler knows them."""
        return [sequence for sequences in self.requests.values() for sequence in sequences]

    def add(self, request: Request) -> None:
        """Queue a request."""
        count, salt = request.params.num_samples, request.params.cache_salt
        reader: HiddenReader | None = request.pool or request.scores or request.follows
        is_shared = self._prefix_caching and (reader is None or reader.shares_pages)
        if not is_shared:
            key = request.id.encode()
        else:  # with a prefix, so that no salt equals the id of another request
            key = b"cache_salt " + salt.encode() if salt else b""
        if self._num_weights:
            key += self._weights_salt
            request.progress.has_old_weights = False
        sequences = self.requests[request] = {}
        try:
            for index in range(count):
                if request.given and not request.goes_on(index):
                    continue
                sequence = Sequence(request, index, reader, salt=key)
                sequence.keeps_states = is_shared or count > 1
                self.scheduler.add_waiting_request(sequence)
                sequences[sequence] = None
                if reader is not None:
                    self._readers[sequence] = reader
            if not sequences:
                self._writer_of(request)  # writes the end of each sequence
                self._forget(request)
        except BaseException as error:
            self._fail(request, error)

    def evict(self, request_id: str) -> None:
        """Free the blocks that a finished sequence kept; an unknown or live one is fine."""
        scheduler = self.scheduler
        live = request_id in scheduler.active_requests or request_id in scheduler.waiting_requests
        if not live:
            scheduler.finish_request(request_id)

    def abort(self, request: Request, reason: str = "cancelled") -> bool:
        """End a request wherever it is; return whether it was here."""
        if request not in self.requests:
            return False
        try:
            self._writer_of(request).end(reason)
        except BaseException as error:
            # A tokenizer raised on the rest of the text.
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
        self.running.clear()
        self._readers.clear()
        self._begun = None
        for request in requests:
            fail(request, error, self._metrics)

    def step(self) -> list[ScheduledRow]:
        """Run one step of all rows that are scheduled.

        Returns:
            The scheduled rows; none if none could run.
        """
        try:
            num_writes = sum(map(VERSION, self._weights))
        except RuntimeError:  # some were replaced by tensors of inference mode
            num_writes = all_writes(self._weights)
        if num_writes != self._num_writes:
            self.forget_weights()
        begun, self._begun = self._begun, None
        if begun is not None:
            begun = begun.without_ended()
        if begun is not None and begun.rows:
            scheduled, logits = begun.rows, begun.logits
        else:
            scheduled, logits = self._schedule(), None
        if not scheduled:
            return scheduled
        rows = scheduled
        if logits is None:
            rows, logits = self._forward(scheduled)
        # Rows that came to their end get their next token, or have all that they asked for.
        if self._readers:
            sequences, read = self._ended(rows)
        else:
            sequences, read = [cast("Sequence", row.state) for row in rows if row.is_last], []
        if sequences:
            sampled = self._sample(rows, sequences, logits)
            if sampled.failures:
                rows = self._withdraw_poisoned(rows, sequences, logits, sampled)
        self.scheduler.computed(rows)
        if self._progress is not None:
            self._report_prefill(rows, self._progress)
        if sequences:
            self._append_tokens(rows, sequences, sampled)
        if read:
            self._end_read(read)
        return scheduled

    def _ended(self, rows: list[ScheduledRow]) -> tuple[list[Sequence], list[Sequence]]:
        """Return the sequences that were computed to their end.

        Returns:
            Those that want a next token, and those that only wanted to be read.
        """
        sampled: list[Sequence] = []
        read: list[Sequence] = []
        for row in rows:
            if row.is_last:
                reader = self._readers.get(row.state)
                goes_on = reader is None or reader.generates
                (sampled if goes_on else read).append(cast("Sequence", row.state))
        return sampled, read

    def _report_prefill(
        self, rows: list[ScheduledRow], progress: Callable[[str, int, int], object]
    ) -> None:
        """Report how far the long prompts of a step are."""
        for row in rows:
            total = len(cast("Sequence", row.state).request.prompt_ids)
            if self._prefill_budget.chunk < total and row.start < total:
                tell(progress, "prefill", min(row.start + row.count, total), total)

    def _sample(
        self, rows: list[ScheduledRow], sequences: list[Sequence], logits: Tensor
    ) -> Sampled:
        """Pick the tokens of a step; begin the next forward pass before they are read, if asked."""
        if not self._runs_ahead:
            return self._sampler.sample(logits, sequences)
        picking = self._sampler.start(logits, sequences)
        if not picking.is_final:
            return self._sampler.finish(picking)
        goes_on: dict[RequestState, int] = {
            sequence: number for number, sequence in enumerate(sequences) if sequence.may_go_on
        }
        unread = UnreadTokens(picking.tokens(), goes_on)
        self.scheduler.begun(rows)
        for sequence in sequences:
            self._num_decoding += not sequence.decodes
            sequence.decodes = True
        unread.expect()
        self._begun = self._begin_step(unread)
        picking.wait()
        unread.forget()
        return self._sampler.finish(picking)

    def _begin_step(self, unread: UnreadTokens) -> BegunStep | None:
        """Begin the next forward pass as if all rows went on."""
        rows = self._schedule(unread)
        if not rows:
            return None
        sampled: list[RequestState] = [*self._ended(rows)[0]]
        try:
            return BegunStep(rows, self._runner.logits(rows, unread, self._readers), sampled)
        except BaseException as error:
            request_failure(error)  # the step runs again in its turn, and finds the row that fails
            return BegunStep(rows, None, sampled)

    def _schedule(self, unread: UnreadTokens | None = None) -> list[ScheduledRow]:
        """Return the rows of a step, without those that were interrupted meanwhile.

        Args:
            unread: Tokens that are still to be read; their rows get these first.
        """
        scheduler = self.scheduler
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
            if sequence.status >= _FINISHED:  # just now, with another sequence of its request
                continue
            try:
                reason = sequence.request.stop_checks.interrupted()
            except BaseException as error:  # a user has changed a criterion
                self._fail(sequence.request, error)
                some_left = True
                continue
            if reason is not None and (unread is None or sequence not in unread.numbers):
                some_left = self.abort(sequence.request, reason)
            elif not sequence.has_begun and not self._begin(sequence):
                some_left = True
        return [row for row in rows if row.state.status < _FINISHED] if some_left else rows

    def _choose(self) -> list[ScheduledRow]:
        """Let the scheduler choose rows within the prefill budget."""
        scheduler, prefill = self.scheduler, self._prefill_budget
        prefill.see(scheduler.num_admissible, self._num_decoding)
        budget = self._num_decoding + prefill.tokens
        entries = self._most_entries * scheduler.max_running
        scheduler.passes_decoding = prefill.are_alone
        rows = scheduler.schedule_batch(budget, entries)
        if not rows and scheduler.passes_decoding:  # no prompt could begin
            scheduler.passes_decoding = False
            rows = scheduler.schedule_batch(budget, entries)
        if len(set(map(_STATE, rows))) < len(rows):
            raise RuntimeError("`schedule_batch` of the `scheduler` returned a row twice")
        prefill.note(rows, alone=scheduler.passes_decoding)
        return rows

    def _begin(self, sequence: Sequence) -> bool:
        """Begin a sequence at its first step; return False if its request failed."""
        request, metrics = sequence.request, self._metrics
        try:
            self._writer_of(request)
            sequence.begin_sampling()
        except BaseException as error:
            # A tokenizer raised on the prompt.
            self._fail(request, error)
            return False
        cached = min(sequence.num_cached, len(request.prompt_ids))
        # Later sequences may find the blocks of the first one.
        if not any(map(request.goes_on, range(sequence.index))):
            request.progress.cached_tokens = cached
            request.progress.sequence = sequence
        if metrics is not None:
            metrics.prefix_cache_queries += len(request.prompt_ids)
            metrics.prefix_cache_hits += cached
        return True

    def _forward(self, rows: list[ScheduledRow]) -> tuple[list[ScheduledRow], Tensor]:
        """Return the rows that could be computed, and the logits of those at their end."""
        try:
            return rows, self._runner.logits(rows, readers=self._readers)
        except BaseException as error:
            if len(rows) == 1:
                self._fail(cast("Sequence", rows[0].state).request, error)
                return [], torch.empty(0, 0, dtype=torch.float32, device="cpu")
            request_failure(error)
        # Retry row by row to find the request that fails.
        found = []
        for row in rows:
            if row.state.status >= _FINISHED:
                continue
            try:
                found.append((row, self._runner.logits([row], readers=self._readers)))
            except BaseException as error:
                self._fail(cast("Sequence", row.state).request, error)
        found = [(row, logits) for row, logits in found if row.state.status < _FINISHED]
        logits = [logits for _, logits in found] or [
            torch.empty(0, 0, dtype=torch.float32, device="cpu")
        ]
        return [row for row, _ in found], torch.cat(logits)

    def _withdraw_poisoned(
        self, rows: list[ScheduledRow], sequences: list[Sequence], logits: Tensor, sampled: Sampled
    ) -> list[ScheduledRow]:
        """Take the blocks of rows with NaN out of prefix sharing; return the other rows."""
        poisoned = {
            sequences[number]
            for number in sampled.failures
            if bool(torch.isnan(logits[number]).any())  # before any processor ran
        }
        for sequence in poisoned:
            unshare(self.scheduler.cache, sequence)
        return [row for row in rows if row.state not in poisoned]

    def _append_tokens(
        self, rows: list[ScheduledRow], sequences: list[Sequence], sampled: Sampled
    ) -> None:
        """Append the tokens, write the events, end the sequences that have ended."""
        failures = sampled.failures
        self._num_forced_left = None
        if not self._runs_ahead:
            free = [row for row in rows if cast("Sequence", row.state).matcher is None]
            # Forced tokens make the next step longer, which rows without a grammar wait for.
            if len(free) < len(rows) and free:
                self._num_forced_left = max(1, len(rows) // _ROWS_A_FORCED_TOKEN)
        with LoopBell.together():
            for number, sequence in enumerate(sequences):
                if sequence.status >= _FINISHED:  # another sequence of the request has failed
                    continue
                try:
                    if number in failures:
                        raise failures[number]
                    self._append_token(sequence, number, sampled)
                except BaseException as error:
                    # A processor, a criterion or a tokenizer raised, or a row holds NaN.
                    self._fail(sequence.request, error)

    def _append_token(self, sequence: Sequence, number: int, sampled: Sampled) -> None:
        """Append the token of a sequence and write its event."""
        token_id = sampled.token_ids[number]
        assert token_id is not None
        if self._readers and (reader := self._readers.pop(sequence, None)) is not None:
            reader.finish()  # the prompt is complete
        sequence.tokens.append(token_id)
        reason = sequence.reason_to_end(sampled.scores.get(number))
        token_ids: tuple[int, ...] = (token_id,)
        if sequence.matcher is not None and not self._runs_ahead:  # no next step has begun
            while reason is None and (forced := sequence.take_forced(self._num_forced_left)):
                token_ids += tuple(forced)
                if self._num_forced_left is not None:
                    self._num_forced_left -= len(forced)
                reason = sequence.reason_to_end(None)
        logprobs: tuple[TokenLogprob, ...] | None = None
        if number in sampled.logprobs:
            logprobs = (sampled.logprobs[number].named(self._decode),)
        self._num_decoding += not sequence.decodes
        sequence.decodes = True
        writer = self.running[sequence.request]
        if not writer.write(sequence.index, token_ids, reason, logprobs):
            # A cancel that came during the step ends it here, like any other criterion.
            self._end(sequence, evict=not self._manual_eviction or reason == "cancelled")
            if not writer.live:
                self._forget(sequence.request)

    def _end_read(self, sequences: list[Sequence]) -> None:
        """End sequences that ask for no token: their vector or log-probabilities are there."""
        with LoopBell.together():
            for sequence in sequences:
                if sequence.status >= _FINISHED:
                    continue
                request = sequence.request
                try:
                    self._readers[sequence].finish()
                    if request.pool is None:
                        self.running[request].end("length")
                    else:
                        if self._metrics is not None:
                            self._metrics.embedded(request, clock())
                        self.running[request].write(sequence.index, (), "stop")
                except BaseException as error:
                    if isinstance(error, InvalidScoresError):
                        unshare(self.scheduler.cache, sequence)
                    self._fail(request, error)
                else:
                    self._forget(request)

    def _writer_of(self, request: Request) -> EventWriter:
        """Return the writer of a request's events, made at its first step."""
        writer = self.running.get(request)
        if writer is None:
            writer = EventWriter(request, self._tokenizer, clock, self._metrics)
            self.running[request] = writer
        return writer

    def _fail(self, request: Request, error: BaseException) -> None:
        fail(request, request_failure(error), self._metrics)
        self._forget(request)

    def _forget(self, request: Request) -> None:
        """Free everything that a request holds."""
        for sequence in list(self.requests[request]):
            self._end(sequence)
        del self.requests[request]
        request.progress.sequence = None
        self.running.pop(request, None)
        if not self.requests:
            self._begun = self._sampler.plan = None

    def _end(self, sequence: Sequence, *, evict: bool = True) -> None:
        """Free what a sequence holds.

        Args:
            sequence: Sequence that has ended.
            evict: False to keep its blocks for :meth:`evict`.
        """
        self._num_decoding -= sequence.decodes
        self._readers.pop(sequence, None)
        reader, sequences = sequence.reader, self.requests[sequence.request]
        del sequences[sequence]
        if reader is not None and not reader.shares_pages:
            # No other request could find them; other sequences of this one use the prompt's.
            cache = self.scheduler.cache
            length = len(sequence.request.prompt_ids)
            unshare(cache, sequence, length // cache.page_size if sequences else 0)
        self.scheduler.finish_request(sequence.request_id, evict_from_cache=evict)
