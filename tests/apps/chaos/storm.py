"""Many clients at once, for as long as one likes, and what must not happen meanwhile."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from tests.apps.chaos.bad import BAD, leave_the_page
from tests.apps.chaos.good import doors_of, insist, on_the_page, over_websocket
from tests.apps.chaos.place import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.apps.chaos.place import Place


@dataclass
class Storm:
    """Load of many clients on a server, and what happens meanwhile.

    Attributes:
        place: The server.
        seed: Of the dice: each number of an action has its own.
        through: Address of a relay that cuts what goes to the streams.
        counts: How often what was done.
        failures: What went wrong; the first one ends it.
        slowest_health: Seconds that ``/health`` took at most.
        memory: When the server had how many bytes in memory.
    """

    place: Place
    seed: int
    through: str
    counts: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    slowest_health: float = 0.0
    memory: list[tuple[float, int]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _next: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def rage(self, goes_on: Callable[[int], bool], workers: int = 6) -> None:
        """Act until it is enough; then see that nothing went wrong.

        Args:
            goes_on: Whether there is to be an action of this number.
            workers: How many act at once.
        """
        self._over.clear()
        threads = [threading.Thread(target=self._work, args=(goes_on,)) for _ in range(workers)]
        watcher = threading.Thread(target=self._watch)
        for thread in (*threads, watcher):
            thread.start()
        for thread in threads:
            thread.join()
        self._over.set()
        watcher.join()
        assert not self.failures, "\n".join(self.failures[:5])

    def _work(self, goes_on: Callable[[int], bool]) -> None:
        while not self.failures:
            with self._lock:
                number, self._next = self._next, self._next + 1
            if not goes_on(number):
                return
            dice = Random(self.seed * 1_000_000 + number)
            name = "?"
            try:
                if number % 2:
                    name = self._be_bad(number // 2, dice)
                else:
                    name = self._be_good(dice)
            except Exception as error:
                self.failures.append(f"action {number}, {name}: {error!r}")
            with self._lock:
                self.counts[name] = self.counts.get(name, 0) + 1

    def _be_bad(self, number: int, dice: Random) -> str:
        """Do what a bad client does, each kind in its turn; return what was done."""
        kinds = (*BAD, leave_the_page) if self.place.has_chat else BAD
        kind = kinds[number % len(kinds)]
        kind(self.place, dice)
        return kind.__name__

    def _be_good(self, dice: Random) -> str:
        """Ask what is known, at any door; return what was done."""
        one = dice.choice(list(self.place.answers))
        names = ("piece", "events", "websocket", "websocket of HTTP")
        doors = dict(zip(names, doors_of(self.place), strict=True))
        doors["cut websocket"] = partial(over_websocket, self.through)
        if self.place.has_chat and one.is_chat:
            doors["page"] = partial(on_the_page, self.place)
        name = dice.choice(list(doors))
        text = doors[name](one)
        if text != self.place.answers[one]:
            self.failures.append(f"{name}, {one}: {text!r}, not {self.place.answers[one]!r}")
        return name

    def _watch(self) -> None:
        """Ask all the time how the server is."""
        while not self._over.wait(0.05):
            began = time.monotonic()
            try:
                status, said = self.place.ask("GET", "/health")
            except OSError as error:
                self.failures.append(f"health: {error!r}")
                return
            self.memory.append((began, self.place.memory))
            self.slowest_health = max(self.slowest_health, time.monotonic() - began)
            if (status, said) != (200, b"ok\n"):
                self.failures.append(f"health: {status} {said!r}")
                return


@dataclass
class Crowd:
    """Good clients that go on asking while servers come and go on the same ports.

    Attributes:
        place: A server on these ports that was asked everything.
        num_answered: How many answers came that were right.
    """

    place: Place
    num_answered: int = 0
    failures: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def asking(self, clients: int = 4) -> Iterator[None]:
        """Ask for as long as the block does; then see that nothing went wrong."""
        threads = [threading.Thread(target=self._ask, args=(at,)) for at in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
        assert not self.failures, self.failures[0]

    def wait_for_more(self, count: int) -> None:
        """Wait until so many more answers came."""
        enough = self.num_answered + count
        wait_for(lambda: self.num_answered >= enough or bool(self.failures))

    def _ask(self, number: int) -> None:
        place, dice = self.place, Random(number)
        door = doors_of(place)[number % 4]
        while not self._over.is_set() and not self.failures:
            one = dice.choice(list(place.answers))
            try:
                text = insist(partial(door, one))
            except Exception as error:
                self.failures.append(repr(error))
                return
            if text != place.answers[one]:
                self.failures.append(f"{one}: {text!r}, not {place.answers[one]!r}")
            self.num_answered += 1
