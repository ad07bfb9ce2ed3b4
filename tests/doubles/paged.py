"""A model of pages without tensors, and the loop that drives a scheduler with it.

What it writes for a token depends on what the token sees, like keys and values do, and it reads all
of that through the page tables, one a group of layers. So a wrong page, a stale one or one that was
overwritten changes the tokens. Of all that it writes it also notes behind which tokens that was,
and of all that it reads it proves that these are the text's which reads it. If the pool has slots,
it also has a state of each text, which is in the slots that rows name.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from asyncgen.engine.scheduling.state import RequestState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from asyncgen.engine.kv_cache.partial_blocks import PartialBlocks
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


def _seen(position: int, window: int | None) -> range:
    """Positions that a token sees, itself included."""
    return range(0 if window is None else max(position + 1 - window, 0), position + 1)


def _value(read: Callable[[int], int], position: int, window: int | None, token: int) -> int:
    """Return the value to write for a token: a function of the first and last token before it."""
    before = _seen(position, window)[:-1]
    if not before:
        return _mix(0, token)
    last = read(before[-1])
    return _mix(last if window is None else _mix(last, read(before[0])), token)


def _behind(tokens: Sequence[int]) -> list[int]:
    """Identify the text up to each of its tokens."""
    return list(accumulate(tokens, lambda before, token: _mix(before + 1, token)))


def _state_behind(tokens: Sequence[int], before: int = 0) -> int:
    """The state behind some tokens that follow another one."""
    for token in tokens:
        before = _mix(before + 1, token)
    return before


def alone(
    prompt: Sequence[int],
    count: int,
    windows: Sequence[int | None] = (None,),
    has_states: bool = False,
) -> list[int]:
    """Generate for a prompt without company."""
    tokens, written = list(prompt), [list[int]() for _ in windows]
    while True:
        for own, window in zip(written, windows, strict=True):
            for position in range(len(own), len(tokens)):
                own.append(_value(own.__getitem__, position, window, tokens[position]))
        if len(tokens) >= len(prompt) + count:
            return tokens[len(prompt) :]
        end = len(tokens) - 1
        read = (
            own[at]
            for own, window in zip(written, windows, strict=True)
            for at in _seen(end, window)
        )
        state = [_state_behind(tokens)] if has_states else []
        tokens.append(_read_out([*read, *state]))


class PagedModel:
    """Writes and reads pages, and slots where there are any."""

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        windows: Sequence[int | None] = (None,),
        num_slots: int = 0,
    ) -> None:
        self.page_size = page_size
        self.windows = windows
        self.slots = [[-1] * page_size for _ in range(num_pages)]
        self.texts = [[-1] * page_size for _ in range(num_pages)]  # behind which each was written
        self.states = [(-1, -1)] * num_slots  # tokens that each is behind, and what it is
        self.num_computed = 0

    def run(self, rows: Sequence[ScheduledRow]) -> list[int]:
        """Compute all rows, all writes before all reads; one next token for each row."""
        for row in rows:
            text = _behind(row.state.tokens)
            for table, window in zip((row.pages, *row.more), self.windows, strict=True):
                read = partial(self._slot, table, text)
                for position in range(row.start, row.start + row.count):
                    value = _value(read, position, window, row.state.tokens[position])
                    page, slot = divmod(position, self.page_size)
                    assert table[page] >= 0
                    self.slots[table[page]][slot] = value
                    self.texts[table[page]][slot] = text[position]
            self.num_computed += row.count
        states = self._advance(rows) if self.states else [[]] * len(rows)
        return [
            _read_out([*self._read(row), *state]) for row, state in zip(rows, states, strict=True)
        ]

    def _advance(self, rows: Sequence[ScheduledRow]) -> list[list[int]]:
        """The states of all rows, each written once all were read."""
        found = []
        for row in rows:
            end, before = row.start + row.count, 0
            if row.start:
                behind, before = self.states[row.source]
                assert behind == row.start, "a slot has no state of as many tokens"
            found.append([_state_behind(row.state.tokens[row.start : end], before)])
        for row, (state,) in zip(rows, found, strict=True):
            assert row.target not in {other.source for other in rows}, "what is read is written"
            self.states[row.target] = row.start + row.count, state
        assert len({row.target for row in rows}) == len(rows), "two rows write to one slot"
        return found

    def _read(self, row: ScheduledRow) -> list[int]:
        """All that the last token of a row sees."""
        end, text = row.start + row.count - 1, _behind(row.state.tokens)
        return [
            self._slot(table, text, at)
            for table, window in zip((row.pages, *row.more), self.windows, strict=True)
            for at in _seen(end, window)
        ]

    def _slot(self, pages: list[int], text: list[int], position: int) -> int:
        page, slot = divmod(position, self.page_size)
        assert pages[page] >= 0, "a page that is seen is gone"
        assert self.texts[pages[page]][slot] == text[position], "what is read is another text's"
        return self.slots[pages[page]][slot]

    def require_tails(self, tails: PartialBlocks) -> None:
        """Prove that what is kept of the ends of texts is what was written for these tokens."""
        for page, (_, tokens) in tails.by_block.items():
            written = self.texts[page][: len(tokens)]
            for token, (before, behind) in zip(tokens[1:], pairwise(written), strict=True):
                assert behind == _mix(before + 1, token), "a tail is another text's"


class Loop:
    """Steps of a scheduler and the model, with everything checked that must hold after each.

    Attributes:
        while_computing: Called in the midst of each step, when its rows hold what they compute in.
    """

    def __init__(
        self, scheduler: Scheduler, *, token_budget: int = 16, cache_budget: int = 1 << 40
    ) -> None:
        pool = scheduler.cache
        self.scheduler = scheduler
        num_slots = 0 if pool.slots is None else pool.slots.num_slots
        self.model = PagedModel(pool.num_pages, pool.page_size, pool.windows, num_slots)
        self.token_budget = token_budget
        self.cache_budget = cache_budget
        self.steps = 0
        self.added = 0
        self.ended: dict[str, RequestState] = {}
        self.while_computing: Callable[[], None] = lambda: None

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
        self.while_computing()
        next_tokens = self.model.run(rows)
        scheduler.computed(rows)
        scheduler.check_integrity()
        self.model.require_tails(scheduler.cache.partial_blocks)
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
            assert all(len(table) * page_size >= end for table in (row.pages, *row.more))
            assert row.is_last == (end == len(row.state.tokens))
            assert self.scheduler.active_requests[row.state.request_id] is row.state
