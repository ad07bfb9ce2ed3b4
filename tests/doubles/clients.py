"""Clients of different manners that always want more, and a count of what each gets."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from asyncgen.engine.kv_cache.cached_sequence import GONE
from asyncgen.engine.scheduling.scheduler import FIFOScheduler, PrefillFirstScheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from asyncgen.engine.kv_cache.block_pool import BlockPool
    from asyncgen.engine.scheduling.scheduler import Scheduler
    from asyncgen.engine.scheduling.state import RequestState
    from tests.doubles.paged import Loop

STEPS = 200
ORDERS: list[Callable[[BlockPool], Scheduler]] = [
    FIFOScheduler,
    lambda pool: FIFOScheduler(pool, safety_margin=0.0),
    PrefillFirstScheduler,
]


@dataclass(frozen=True)
class Manner:
    """Behaviour of a client that always wants more.

    Attributes:
        prompt: Shortest and longest prompt, in tokens.
        new: Fewest and most new tokens of a request.
        n: Requests that come together.
        queue: Requests that it keeps waiting.
        priority: What it claims.
        cancels: Share of its running requests that it cancels at each step.
        alike: Whether its prompts begin alike.
        is_whole: Whether each prompt runs in one step, as texts do that some models embed.
    """

    prompt: tuple[int, int] = (4, 12)
    new: tuple[int, int] = (8, 40)
    n: int = 1
    queue: int = 4
    priority: int = 0
    cancels: float = 0.0
    alike: bool = False
    is_whole: bool = False


class Clients:
    """Clients of different manners, and what each had."""

    def __init__(self, loop: Loop, manners: dict[str, Manner], seed: int) -> None:
        self.loop = loop
        self.manners = manners
        self.rng = random.Random(seed)
        self.seats: Counter[str] = Counter()
        self.pages: Counter[str] = Counter()
        self.prompt_tokens: Counter[str] = Counter()
        self.states: list[RequestState] = []
        loop.while_computing = self._count_pages

    def step(self) -> None:
        """Ask for more where too little waits, and run a step."""
        scheduler = self.loop.scheduler
        waiting = Counter(state.client for state in scheduler.waiting_requests.values())
        for client, manner in self.manners.items():
            while waiting[client] < manner.queue:
                prompt = self._prompt(manner)
                for _ in range(manner.n):
                    self.states.append(
                        self.loop.add(
                            prompt,
                            self.rng.randint(*manner.new),
                            client=client,
                            priority=manner.priority,
                        )
                    )
                    self.states[-1].is_whole = manner.is_whole
                waiting[client] += manner.n
        for state in scheduler.running():
            manner = self.manners.get(state.client, Manner())
            if self.rng.random() < manner.cancels:
                self.loop.cancel(state)
        rows = self.loop.step()
        for row in rows:
            if row.count > 1 or row.start + row.count <= len(row.state.initial_tokens):
                self.prompt_tokens[row.state.client] += row.count
        for state in {*scheduler.running(), *(row.state for row in rows)}:
            self.seats[state.client] += 1

    def _count_pages(self) -> None:
        """Pages of all groups, those of rows that end in this step included."""
        running = self.loop.scheduler.running()
        for client in self.manners:
            tables = chain.from_iterable(s.block_tables for s in running if s.client == client)
            self.pages[client] += len({GONE}.union(*tables)) - 1

    def _prompt(self, manner: Manner) -> list[int]:
        length = self.rng.randint(*manner.prompt)
        head = [1] * (length // 2) if manner.alike else []
        return head + [self.rng.randrange(7) for _ in range(length - len(head))]

    def require_even(self, had: Counter[str], clients: Iterator[str] | None = None) -> None:
        """Each has nine tenths of an even share of what all had together."""
        even = sum(had.values()) / len(self.manners)
        assert all(had[client] >= 0.9 * even for client in clients or self.manners), had
