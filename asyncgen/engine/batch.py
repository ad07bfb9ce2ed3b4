"""The shared batch: rows of many requests that advance together, one token a row and step.

A step asks the scheduler for rows, runs them in one forward pass, picks their tokens and tells
their readers. It knows no tensors but the logits it passes on, no thread and no loop. What fails
in a row fails its request alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from asyncgen.engine.ahead import BegunStep, UnreadTokens
from asyncgen.engine.requests.request import fail, sample_name
from asyncgen.engine.sampling.logprobs import named_logprob
from asyncgen.engine.sampling.row import SamplerRow
from asyncgen.engine.scheduling.scheduler import ScheduledRow
from asyncgen.engine.scheduling.state import RequestState
from asyncgen.errors import InvalidRequestError
from streamers import LoopBell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from asyncgen.engine.batch_runner import BatchRunner
    from asyncgen.engine.events import EventWriter
    from asyncgen.engine.metrics import EngineMetrics
    from asyncgen.engine.requests.request import Request
    from asyncgen.engine.sampling.sampler import BatchSampler, Sampled
    from asyncgen.engine.scheduling.scheduler import Scheduler
    from asyncgen.tokenizer import Tokenizer
    from asyncgen.types import TokenLogprob

__all__ = ["Batch"]


@dataclass(slots=True, eq=False)
class _Row:
    """One sample of a request."""

    answer: _Answer
    index: int
    state: RequestState
    sampling: SamplerRow | None = None
    decodes: bool = False


@dataclass(slots=True, eq=False)
class _Answer:
    """A request in the batch.

    Attributes:
        rows: Samples that the scheduler has and that have not ended.
        events: ``None`` before its first step.
        chunk: Most prompt tokens of one step, where the request says so.
    """

    request: Request
    rows: dict[int, _Row] = field(default_factory=dict)
    events: EventWriter | None = None
    chunk: int | None = None


class Batch:
    """Requests whose rows share every step."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: BatchRunner,
        sampler: BatchSampler,
        *,
        start_events: Callable[[Request], EventWriter],
        tokenizer: Tokenizer | None,
        prefill_chunk: int,
        prefix_caching: bool = True,
        manual_eviction: bool = False,
        runs_ahead: bool = False,
        metrics: EngineMetrics | None = None,
    ) -> None:
        """Start without requests.

        Args:
            scheduler: Picks the rows of a step and gives them pages.
            runner: Computes.
            sampler: Picks tokens.
            start_events: Begins to write the events of a request.
            tokenizer: Gives the text of tokens whose log-probabilities are asked for; ``None``
                where only ids are wanted.
            prefill_chunk: Most prompt tokens of one step, those of all rows together.
            prefix_caching: Whether requests share the pages of equal beginnings; the samples of
                one request always do.
            manual_eviction: Whether a sample that ended as it should is left its pages, until
                :meth:`evict`, or until their space is needed.
            runs_ahead: Whether the next forward pass is begun before the tokens of a step are
                read: for a device that computes while the host does something else.
            metrics: Hears of prompts, preemptions and failures.
        """
        self._scheduler = scheduler
        self._runner = runner
        self._sampler = sampler
        self._start_events = start_events
        self._tokenizer = tokenizer
        self._prefill_chunk = prefill_chunk
        self._prefix_caching = prefix_caching
        self._manual_eviction = manual_eviction
        self._runs_ahead = runs_ahead
        self._begun: BegunStep | None = None
        self._metrics = metrics
        self._answers: dict[Request, _Answer] = {}
        self._rows: dict[str, _Row] = {}
        self._num_decoding = 0
        self._num_started = 0

    @property
    def has_work(self) -> bool:
        """Whether there is any request."""
        return bool(self._answers)

    def warm(self) -> None:
        """Do what would make the first steps slow; on the thread that computes."""
        self._runner.warm()

    @property
    def num_started(self) -> int:
        """Requests that have had a step."""
        return self._num_started

    @property
    def num_waiting(self) -> int:
        """Requests that have had none."""
        return len(self._answers) - self._num_started

    @property
    def states(self) -> list[RequestState]:
        """What the scheduler has of all rows."""
        return [row.state for row in self._rows.values()]

    def add(self, request: Request) -> None:
        """Queue a request."""
        params = request.params
        answer = _Answer(request, chunk=params.config.prefill_chunk_size)
        self._answers[request] = answer
        try:
            for index in range(params.num_samples):
                self._add_row(answer, index)
        except Exception as error:
            self._fail(answer, error)

    def hold_back(self, num_pages: int) -> None:
        """Leave so many pages to somebody else who waits for them: newcomers wait meanwhile."""
        self._scheduler.held_back = num_pages
        if num_pages:
            self._scheduler.evict_retained(num_pages)

    def evict(self, request_id: str) -> None:
        """Give back the pages that a finished sample was left; an unknown or live one is fine."""
        if request_id not in self._rows:
            self._scheduler.finish_request(request_id)

    def abort(self, request: Request, reason: str = "cancelled") -> bool:
        """End a request wherever it is; return whether it was here."""
        answer = self._answers.get(request)
        if answer is None:
            return False
        try:
            self._events_of(answer).end(reason)
        except Exception as error:
            # A tokenizer that raised on the rest of the text.
            fail(request, error, self._metrics)
        self._forget(answer)
        return True

    def abort_all(self, reason: str) -> None:
        """End every request."""
        for request in list(self._answers):
            self.abort(request, reason)

    def fail_all(self, error: BaseException) -> None:
        """Tell every request that the engine is dead."""
        answers, self._answers = self._answers, {}
        self._begun = None
        self._rows.clear()
        self._num_started = 0
        for request in answers:
            fail(request, error, self._metrics)

    def step(self) -> list[ScheduledRow]:
        """Run one step of all rows that are scheduled.

        Returns:
            Which they were; none if nobody could run.
        """
        begun, self._begun = self._begun, None
        if begun is not None:
            begun = begun.without(self._is_here)
        scheduled = begun.rows if begun is not None and begun.rows else self._schedule()
        if not scheduled:
            return scheduled
        if begun is not None and begun.rows and begun.logits is not None:
            rows, logits = begun.rows, begun.logits
        else:
            rows, logits = self._forward(scheduled)
        ended = [row for row in rows if row.is_last]
        if not ended:
            self._scheduler.computed(rows)
            return scheduled
        owners = [self._rows[row.state.request_id] for row in ended]
        sampled = self._sample(rows, owners, logits)
        poisoned = self._withdraw_poisoned(logits, owners, sampled)
        if poisoned:
            rows = [row for row in rows if row.state not in poisoned]
        self._scheduler.computed(rows)
        self._settle(owners, sampled)
        return scheduled

    def _sample(self, rows: list[ScheduledRow], owners: list[_Row], logits: Tensor) -> Sampled:
        """Pick the tokens of a step; where that is allowed, with the next step under way."""
        sampling = [_sampling(owner) for owner in owners]
        if not self._runs_ahead:
            return self._sampler.sample(logits, sampling)
        picking = self._sampler.start(logits, sampling)
        if not picking.is_settled:
            return self._sampler.finish(picking)
        goes_on = {
            owner.state: number for number, owner in enumerate(owners) if _sampling(owner).may_go_on
        }
        unread = UnreadTokens(picking.tokens(), goes_on)
        self._scheduler.begun(rows)
        for owner in owners:
            if not owner.decodes:
                self._count_decoding(owner)
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
        try:
            return BegunStep(rows, self._runner.logits(rows, unread))
        except Exception:
            # Whose fault it is shows when it is run again, in its turn.
            return BegunStep(rows, None)

    def _is_here(self, state: RequestState) -> bool:
        """Whether a row has not ended; another one may have its name by now."""
        row = self._rows.get(state.request_id)
        return row is not None and row.state is state

    def _add_row(self, answer: _Answer, index: int) -> None:
        """Give a sample to the scheduler."""
        request, config = answer.request, answer.request.params.config
        name = sample_name(request.id, index)
        assert config.max_length is not None
        state = RequestState(
            request_id=name,
            initial_tokens=list(request.prompt_ids),
            max_new_tokens=config.max_length - len(request.prompt_ids),
            priority=request.params.priority,
            salt=b"" if self._prefix_caching else request.id.encode(),
        )
        self._scheduler.add_waiting_request(state)
        self._rows[name] = answer.rows[index] = _Row(answer, index, state)

    def _schedule(self, unread: UnreadTokens | None = None) -> list[ScheduledRow]:
        """The rows of a step, without those that were interrupted meanwhile.

        Args:
            unread: Tokens that are still to be read; their rows get these first.
        """
        scheduler, pool = self._scheduler, self._scheduler.cache
        # Each row reads no more than the pool holds; attention has no budget of its own.
        entries = pool.num_pages * pool.page_size * scheduler.max_running
        scheduled = scheduler.schedule_batch(self._num_decoding + self._prefill_chunk, entries)
        for state in scheduler.take_failed():
            self._outgrown(state)
        rows, owners = [], self._rows
        num_owners = len(owners)
        for entry in scheduled:
            row = owners.get(entry.state.request_id)
            if row is None:  # a neighbour of the same request was interrupted just now
                continue
            reason = row.answer.request.ends.interrupted()
            if reason is not None and (unread is None or row.state not in unread.numbers):
                self.abort(row.answer.request, reason)
                continue
            if row.sampling is None and not self._begin(row):
                continue
            chunk = row.answer.chunk
            if chunk is not None and entry.count > chunk:
                entry = ScheduledRow(entry.state, entry.start, chunk, entry.pages, False)
            rows.append(entry)
        if len(owners) == num_owners:
            return rows
        # One of several samples may have been scheduled before the other was found interrupted.
        return [entry for entry in rows if entry.state.request_id in owners]

    def _outgrown(self, state: RequestState) -> None:
        """End the request of a row that the whole pool cannot hold."""
        row = self._rows.get(state.request_id)
        if row is not None:
            length = len(state.tokens)
            self._fail(row.answer, InvalidRequestError("max_length", length, str(state.error)))

    def _begin(self, row: _Row) -> bool:
        """Take up a row at its first step; ``False`` if its request failed over it."""
        answer, state = row.answer, row.state
        try:
            events = self._events_of(answer)
            row.sampling = SamplerRow(answer.request, row.index)
        except Exception as error:
            # A tokenizer that raised on the prompt.
            self._fail(answer, error)
            return False
        row.sampling.token_ids = state.tokens
        if row.index == 0:
            events.cached_tokens = state.num_cached
        if self._metrics is not None:
            self._metrics.prefix(len(answer.request.prompt_ids), state.num_cached)
        return True

    def _forward(self, rows: list[ScheduledRow]) -> tuple[list[ScheduledRow], Tensor]:
        """Rows that could be computed, and the logits of those that came to their end."""
        try:
            return rows, self._runner.logits(rows)
        except Exception as error:
            if len(rows) == 1:
                self._fail(self._rows[rows[0].state.request_id].answer, error)
                return [], torch.empty(0, 0)
        # Somebody's fault, or too much at once; alone, each answers for itself.
        kept, found = [], []
        for row in rows:
            owner = self._rows.get(row.state.request_id)
            if owner is None:
                continue
            try:
                found.append(self._runner.logits([row]))
            except Exception as error:
                self._fail(owner.answer, error)
            else:
                kept.append(row)
        together = [
            (row, logits)
            for row, logits in zip(kept, found, strict=True)
            if row.state.request_id in self._rows
        ]
        rows = [row for row, _ in together]
        return rows, torch.cat([logits for _, logits in together] or [torch.empty(0, 0)])

    def _settle(self, owners: Sequence[_Row], sampled: Sampled) -> None:
        """Append the tokens, tell the readers, end what has ended."""
        with LoopBell.together():
            self._settle_rows(owners, sampled)

    def _settle_rows(self, owners: Sequence[_Row], sampled: Sampled) -> None:
        for number, row in enumerate(owners):
            if row.state.request_id not in self._rows:  # a sample of the same request has failed
                continue
            try:
                failure = sampled.failures.get(number)
                if failure is not None:
                    raise failure
                self._settle_row(row, number, sampled)
            except Exception as error:
                # A processor, a criterion or a tokenizer that raised; a row of NaN.
                self._fail(row.answer, error)

    def _settle_row(self, row: _Row, number: int, sampled: Sampled) -> None:
        """Append a row's token and write its event."""
        answer, token_id, sampling = row.answer, sampled.token_ids[number], row.sampling
        assert token_id is not None and sampling is not None and answer.events is not None
        row.state.tokens.append(token_id)
        reason = sampling.reason_to_end(sampled.scores.get(number))
        logprobs: tuple[TokenLogprob, ...] | None = None
        if sampled.logprobs and number in sampled.logprobs:
            logprobs = (named_logprob(token_id, sampled.logprobs[number], self._tokenizer),)
        if not row.decodes:
            self._count_decoding(row)
        if not answer.events.settle(row.index, (token_id,), reason, logprobs):
            # A cancel that came during the step ends it here, like any other criterion.
            self._end_row(row, evict=not self._manual_eviction or reason == "cancelled")
            if not answer.rows:
                self._forget(answer)

    def _count_decoding(self, row: _Row) -> None:
        """Take note that a row has its first token, or will have it before the next step."""
        row.decodes = True
        self._num_decoding += 1

    def _withdraw_poisoned(
        self, logits: Tensor, owners: Sequence[_Row], sampled: Sampled
    ) -> set[RequestState]:
        """See that nobody finds the pages of a row of NaN; tell whose they are."""
        poisoned = {
            owners[number].state
            for number in sampled.failures
            if bool(torch.isnan(logits[number]).any())  # before any processor saw it
        }
        for state in poisoned:
            self._scheduler.cache.withdraw(state.pages)
        return poisoned

    def _events_of(self, answer: _Answer) -> EventWriter:
        if answer.events is None:
            answer.events = self._start_events(answer.request)
            self._num_started += 1
        return answer.events

    def _fail(self, answer: _Answer, error: BaseException) -> None:
        fail(answer.request, error, self._metrics)
        self._forget(answer)

    def _forget(self, answer: _Answer) -> None:
        """Give back everything a request holds."""
        for row in list(answer.rows.values()):
            self._end_row(row)
        if self._answers.pop(answer.request, None) is not None and answer.events is not None:
            self._num_started -= 1
        if not self._answers:
            self._begun = None

    def _end_row(self, row: _Row, *, evict: bool = True) -> None:
        self._num_decoding -= row.decodes
        del row.answer.rows[row.index]
        del self._rows[row.state.request_id]
        self._scheduler.finish_request(row.state.request_id, evict_from_cache=evict)


def _sampling(row: _Row) -> SamplerRow:
    assert row.sampling is not None
    return row.sampling
