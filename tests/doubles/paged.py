"""A model of pages without tensors, and the loop that drives a scheduler with it.

What it writes for a token depends on everything before, like keys and values do, and it reads all
that it wrote through the page table. So a wrong page, a stale one or one that was overwritten
changes the tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.engine.scheduling.state import RequestState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.engine.scheduling.scheduler import Scheduler
    from asyncgen.engine.scheduling.state import ScheduledRow

VOCAB = 7
_MASK = (1 << 61) - 1


def _mix(first: int, second: int) -> int:
    return ((first * 1_000_003) ^ (second * 0x9E3779B97F4A7C15 + 12345)) & _MASK


def _read_out(written: Sequence[int]) -> int:
    """The next token, of everything that was written."""
    total = 0
    for number, value in enumerate(written):
        total = _mix(total, value + number)
    return (total >> 7) % VOCAB


def alone(prompt: Sequence[int], count: int) -> list[int]:
    """What the model generates for a prompt with nobody else there."""
    written: list[int] = []
    for token in prompt:
        written.append(_mix(written[-1] if written else 0, token))
    generated: list[int] = []
    while len(generated) < count:
        generated.append(_read_out(written))
        written.append(_mix(written[-1], generated[-1]))
    return generated


class PagedModel:
    """Writes and reads pages."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.slots = [[-1] * page_size for _ in range(num_pages)]
        self.num_computed = 0

    def run(self, rows: Sequence[ScheduledRow]) -> list[int]:
        """Compute all rows, all writes before all reads; one next token for each row."""
        for row in rows:
            for position in range(row.start, row.start + row.count):
                before = self._slots(row.pages, position - 1)
                page, slot = divmod(position, self.page_size)
                self.slots[row.pages[page]][slot] = _mix(before, row.state.tokens[position])
            self.num_computed += row.count
        return [
            _read_out([self._slots(row.pages, number) for number in range(row.start + row.count)])
            for row in rows
        ]

    def _slots(self, pages: list[int], position: int) -> int:
        if position < 0:
            return 0
        page, slot = divmod(position, self.page_size)
        return self.slots[pages[page]][slot]


class Loop:
    """Steps of a scheduler and the model, with everything checked that must hold after each."""

    def __init__(
        self, scheduler: Scheduler, *, token_budget: int = 16, cache_budget: int = 1 << 40
    ) -> None:
        pool = scheduler.cache
        self.scheduler = scheduler
        self.model = PagedModel(pool.num_pages, pool.page_size)
        self.token_budget = token_budget
        self.cache_budget = cache_budget
        self.steps = 0
        self.added = 0
        self.ended: dict[str, RequestState] = {}

    def add(
        self,
        prompt: Sequence[int],
        max_new_tokens: int | None = 4,
        *,
        priority: int = 0,
        name: str | None = None,
        client: str = "",
    ) -> RequestState:
        """Queue a request."""
        state = RequestState(
            name or f"r{self.added}",
            list(prompt),
            max_new_tokens=max_new_tokens,
            priority=priority,
            client=client,
        )
        self.scheduler.add_waiting_request(state)
        self.added += 1
        return state

    def cancel(self, state: RequestState) -> None:
        """Mark a request; it leaves in the next step."""
        self.scheduler.set_request_cancellation(state.request_id)

    def step(self) -> list[ScheduledRow]:
        """One step of everything."""
        scheduler = self.scheduler
        for state in scheduler.clear_cancelled_requests():
            assert state.cancelled
            self.ended[state.request_id] = state
        rows = scheduler.schedule_batch(self.token_budget, self.cache_budget)
        scheduler.check_integrity()
        self._check(rows)
        next_tokens = self.model.run(rows)
        scheduler.computed(rows)
        scheduler.check_integrity()
        for row, token in zip(rows, next_tokens, strict=True):
            if row.is_last and row.state.update_and_check_completion(token):
                scheduler.finish_request(row.state.request_id)
                self.ended[row.state.request_id] = row.state
        for state in scheduler.take_failed():
            self.ended[state.request_id] = state
        scheduler.check_integrity()
        self.steps += 1
        return rows

    def drain(self, limit: int = 2000) -> None:
        """Step until everybody has ended."""
        for _ in range(limit):
            if not self.scheduler.has_pending_requests():
                return
            self.step()
        raise AssertionError(f"not done after {limit} steps")

    def _check(self, rows: Sequence[ScheduledRow]) -> None:
        page_size = self.scheduler.cache.page_size
        assert sum(row.count for row in rows) <= self.token_budget
        if len(rows) > 1:
            assert sum(row.start + row.count for row in rows[1:]) <= self.cache_budget
        assert len({row.state for row in rows}) == len(rows)
        assert len(self.scheduler.active_requests) <= self.scheduler.max_running
        for row in rows:
            end = row.start + row.count
            assert row.count >= 1
            assert row.start == row.state.num_computed
            assert len(row.pages) * page_size >= end
            assert row.is_last == (end == len(row.state.tokens))
            assert self.scheduler.active_requests[row.state.request_id] is row.state
