"""Share seats, blocks and prompt tokens among clients, and choose who gives something up.

The scheduler asks here only while requests of several clients are present: with one client there
is nothing to share. It decides by numbers of rows, pages and tokens; it moves nothing itself.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING

from asyncgen.engine.kv_cache.block_tables import num_distinct, num_exclusive
from asyncgen.engine.scheduling.fair_share import PATIENCE, Credits, split
from asyncgen.engine.scheduling.state import RequestStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from asyncgen.engine.kv_cache.block_pool import BlockPool
    from asyncgen.engine.scheduling.state import RequestState, ScheduledRow
    from asyncgen.engine.scheduling.waiting_queue import WaitingQueue

_PROMPT_STEPS = 8
"""For so many steps at most others' prompts make way for a client that is owed prompt tokens."""


class ClientShares:
    """Seats, pages and prompt tokens of several clients.

    Attributes:
        short: How many pages would have to be available for the next request of a client, which
            waits for want of them.
        guest: Whose request in the side lane waits for pages; ``None`` for nobody's.
    """

    def __init__(self, present: Mapping[str, int], queue: WaitingQueue, pool: BlockPool) -> None:
        """Start without clients.

        Args:
            present: How many requests of each client wait or run; kept up to date.
            queue: Where their requests wait.
            pool: What their pages come from.
        """
        self.short: dict[str, int] = {}
        self.guest: str | None = None
        self._heads: dict[str, RequestState] = {}  # those who are short
        self._refused: set[str] = set()  # in the present step, like the next one
        self._gave: set[str] = set()
        self._present = present
        self._queue = queue
        self._pool = pool
        self._seats = Credits()
        self._pages = Credits()
        self._prompts = Credits()
        self._wanted: tuple[int, dict[str, int]] = (
            0,
            {},
        )  # what a step has for prompts, and who wants it

    def forget(self) -> None:
        """Start anew: one client is left."""
        self.short.clear()
        self._heads.clear()
        self._seats, self._pages, self._prompts = Credits(), Credits(), Credits(_PROMPT_STEPS)

    def is_short(self, state: RequestState, num_pages: int) -> bool:
        """Note that the next request of a client waits until so many pages are available.

        Returns:
            True: other clients may pass it.
        """
        self.short[state.client] = num_pages
        self._heads[state.client] = state
        self._refused.add(state.client)
        return True

    def to_give_up(self, running: Sequence[RequestState], step: int) -> list[RequestState]:
        """Choose the rows that make way for clients who have waited below their shares.

        To be asked once a step. Of each client that gives, the youngest rows go, but none that has
        come to next to nothing since it started: it would start again and again.

        Args:
            running: All running requests, most senior first.
            step: Number of the present step.

        Returns:
            Running requests, each once.
        """
        self._refused.clear()
        here, heads = {*self._queue.num_ready, self.guest}, self._heads
        self._heads = {client: heads[client] for client in heads if client in here}
        self.short = {client: need for client, need in self.short.items() if client in here}
        rows: dict[str, list[RequestState]] = {}
        for state in running:
            steps = step - state.admitted_in
            if (
                len(state.tokens) - state.num_admitted >= PATIENCE
                or steps >= PATIENCE << state.num_preemptions
            ):
                rows.setdefault(state.client, []).append(state)
        chosen = [*self._for_seats(running, rows), *self._for_pages(running, rows)]
        self._gave = {state.client for state in chosen}
        return chosen

    def turns(self, running: Mapping[str, RequestState]) -> Iterator[RequestState]:
        """The waiting requests one by one, those of the client that is owed most first.

        The caller admits each, sets it aside, or leaves it where it is; then others of its client
        wait as well.
        """
        queue, pages, seats = self._queue, self._pages, self._seats
        held = Counter(state.client for state in running.values())
        are_few = bool(pages.shares)
        num_pages = blocks_of_clients(self._pool, running.values() if are_few else ())

        def place(client: str) -> tuple[float, int, float, tuple[int, int]]:
            head = queue.head(client)
            assert head is not None
            above = num_pages[client] - pages.extra(client)
            return above, held[client], -seats.credit(client), head.rank

        # The place of one changes with what it gets itself: a heap, as clients may be thousands.
        left = [(place(each), each) for each in queue.num_ready if queue.head(each) is not None]
        heapq.heapify(left)
        while left:
            _, client = heapq.heappop(left)
            state = queue.head(client)
            if state is None:
                continue
            yield state
            if state.status is not RequestStatus.PENDING:
                held[client] += 1
                num_pages[client] += num_exclusive(self._pool, state) if are_few else 0
            if client in self._refused and pages.is_long_owed(client):
                return
            if queue.head(client) not in (state, None):
                heapq.heappush(left, (place(client), client))

    def ranked(self, running: Mapping[str, RequestState]) -> list[RequestState]:
        """All waiting requests in the order in which clients would have them start; a copy."""
        held = Counter(state.client for state in running.values())
        num_pages = blocks_of_clients(self._pool, running.values() if self._pages.shares else ())

        def place(state: RequestState) -> tuple[float, int, float]:
            client = state.client
            held[client] += 1
            above = num_pages[client] - self._pages.extra(client)
            return above, held[client], -self._seats.credit(client)

        # Each client's own by rank; sorting keeps that, since each is behind the one before.
        return sorted(self._queue.ranked(), key=place)

    def prompt_tokens(
        self, running: Mapping[str, RequestState], budget: int, *, has_seats: bool
    ) -> dict[str, int] | None:
        """Split the prompt tokens of a step.

        Args:
            running: The running requests.
            budget: What a step has for prompts, at least 0.
            has_seats: Whether a waiting request may start.

        Returns:
            What each client that wants some may have, so that something is left for every row that
            decodes; ``None`` if none wants any.
        """
        wanted: dict[str, int] = {}
        for state in running.values():
            if state.status is not RequestStatus.DECODING:
                left = len(state.tokens) - state.num_computed
                wanted[state.client] = min(wanted.get(state.client, 0) + left, budget)
        if has_seats:
            able = self._seekers().keys() - self._gave
            wanted.update((client, budget) for client in self._queue.num_ready if client in able)
        self._wanted = budget, {}
        if len(wanted) < 2:
            return dict.fromkeys(wanted, budget) or None
        self._wanted = budget, wanted
        return split(budget, wanted, self._prompts)

    def has_to_wait(self, state: RequestState, most: Mapping[str, int] | None) -> bool:
        """Return whether a waiting request has to leave this step to other clients.

        Args:
            state: The request.
            most: What `prompt_tokens` gave, less what was used of it.
        """
        client = state.client
        is_out = client in self._gave or client in self._refused
        return is_out or most is not None and most.get(client, 1) <= 0

    def end_step(
        self,
        rows: Sequence[ScheduledRow],
        running: Mapping[str, RequestState],
        seats: int,
        spare: int,
    ) -> None:
        """Charge the clients for a step.

        Args:
            rows: Those of the step.
            running: The running requests.
            seats: How many may run.
            spare: How many pages nobody gets to start with.
        """
        used = Counter(dict.fromkeys(self._refused, 1))  # their parts shall go to others next time
        for row in rows:
            if row.state.status is not RequestStatus.DECODING:
                used[row.state.client] += row.count
        budget, wanted = self._wanted
        used = Counter({client: used[client] for client in wanted})
        self._prompts.step(budget, used, {each: max(wanted[each], used[each]) for each in wanted})
        num_pages, states = self._pool.num_pages, running.values()
        held = Counter(state.client for state in states)
        self._seats.step(seats, held, held + self._seekers())
        waiting = (
            self._queue.num_ready if len(running) < seats else {}
        )  # not all of them were asked
        if self.short or (waiting and self._pages.shares):
            held, wanting = blocks_of_clients(self._pool, states), {*self.short, *waiting}
            everybody = dict.fromkeys((*held, *wanting))
            wanted = {each: num_pages if each in wanting else held[each] for each in everybody}
            self._pages.step(max(num_pages - spare, held.total()), held, wanted)
        elif self._pages.shares:
            self._pages = Credits()

    def may_reserve(self, client: str) -> bool:
        """Return whether the side lane may take available blocks for a client.

        Not while another one, that has had less, waits for more than there are; else a few large
        reservations in a row would leave that one nothing for ever.
        """
        credit = self._pages.credit
        waiting = [each for each, state in self._heads.items() if self._queue.head(each) is state]
        return all(credit(each) <= credit(client) for each in waiting)

    def left_to_others(self, client: str, wanted: int) -> int:
        """Return how many of the blocks that the side lane waits for a client must leave free."""
        if self.guest in (None, client):
            return wanted
        present = {*self._present, *self._pool.reserved_by, self.guest}
        share = self._pool.num_pages / len(present - {None})
        return 0 if self._pages.held.get(client, 0.0) < share else wanted

    def youngest(self, running: Sequence[RequestState]) -> RequestState:
        """Choose who gives its pages to a running request that needs one: the youngest of the
        client that holds most, what it is owed aside.

        Args:
            running: All running requests, most senior first; at least one.
        """
        held, extra = blocks_of_clients(self._pool, running), self._pages.extra
        last = {state.client: state for state in running}
        client = max(last, key=lambda each: (held[each] - extra(each), last[each].rank))
        return last[client]

    def _for_seats(
        self, running: Sequence[RequestState], rows: dict[str, list[RequestState]]
    ) -> list[RequestState]:
        up, credits, chosen = self._seekers(), self._seats, []
        credits.hold(Counter(state.client for state in running))
        for client in credits.most_owed(up):
            for _ in range(up[client]):
                giver = credits.giver(client)
                if giver is None or not rows.get(giver):
                    break
                chosen.append(rows[giver].pop())
                credits.move(giver, 1, client)
        return chosen

    def _seekers(self) -> Counter[str]:
        """Requests of each client that a seat would help: memory is not what they wait for."""
        available, up = self._pool.num_available, self._queue.num_ready
        lacking = {client for client, need in self.short.items() if need > available}
        return Counter({client: up[client] for client in up if client not in lacking})

    def _for_pages(
        self, running: Sequence[RequestState], rows: dict[str, list[RequestState]]
    ) -> list[RequestState]:
        credits, chosen = self._pages, []
        if self.short:
            credits.hold(blocks_of_clients(self._pool, running))
        for client in credits.most_owed(self.short):
            # Not for its next request alone: while rows end by the dozen that would never do.
            least = self.short[client] - self._pool.num_available
            share = credits.shares.get(client, 0.0) - credits.held.get(client, 0.0)
            if client == self.guest and self.short[client] > share:
                continue  # it would keep more than its share until it ends
            most, given = max(least, credits.missing(client)), 0
            rows_given: list[RequestState] = []
            while given < most:
                giver = credits.giver(client)
                if giver is None or not rows.get(giver):
                    break
                rows_given.append(rows[giver].pop())
                freed = num_exclusive(self._pool, rows_given[-1])
                given += freed
                credits.move(giver, freed)
            if given >= least:  # else it would be given up for nothing
                chosen += rows_given
        return chosen


def blocks_of_clients(pool: BlockPool, running: Iterable[RequestState]) -> Counter[str]:
    """Return the blocks that each client holds, in all groups and in the side lane.

    Blocks that several rows of a client hold count once; blocks that rows of several clients hold
    count once for each of these.

    Args:
        pool: Pool of the blocks.
        running: The running requests.
    """
    count = Counter(pool.reserved_by)
    rows: dict[str, list[RequestState]] = {}
    for state in running:
        rows.setdefault(state.client, []).append(state)
    for client, states in rows.items():
        count[client] += num_distinct(states, pool.page_size)
    return count
