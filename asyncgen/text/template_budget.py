"""Count the steps, the work, the characters and the time of one rendering of a chat template.

Knows nothing of jinja's environment, and of what is called.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext

from asyncgen.runtime.wanted import is_wanted
from asyncgen.text.template_turns import Turn, taking_turns

TEXT = 64
"""Bytes of a short text beside its characters."""

MOST_STEPS = 1_000_000
"""Steps of one rendering. A conversation of a thousand messages takes some ten thousand."""

MOST_CHARACTERS = 32 * 2**20
"""Characters made in one rendering, including parts that are joined later.

Each counts four times in a text that is not ASCII, which takes so many bytes.
"""

MOST_WORK = 64 * 2**20
"""Characters and items read in one rendering, each about ten nanoseconds."""

MOST_CALL = 16 * 2**20
"""Work of one call, which cannot be divided by rests: a sixth of a second at most."""

TIMES = 8
"""Further characters for each one that is rendered: templates cut and join their input."""

READ = 32
"""Further work for each character that is rendered."""

READ_AT_ONCE = 8
"""Further work of one call for each of them."""

MOST_SECONDS = 10.0
"""Seconds of one rendering, checked at its steps."""

MOST_PROCESSOR_SECONDS = 0.6
"""Seconds of the processor, likewise."""

SECONDS_EACH = 1e-4
"""Further seconds of the processor for each value that is rendered, such as a message's role."""

_OFTEN = 2**15  # work after which the time is looked at
_AT_ONCE = 2**11  # items that are weighed before the time is looked at
_UNTIMED = 2**16  # characters of a value that is made outside of a rendering
_SQUARED = 2**13  # bits of a number, squared, that are written in the time of a character
_CONTAINER = 128  # weight of a container beside its items: it is kept until the rendering ends
_CONTAINERS = (list, tuple, dict)
_SIMPLE = (bool, float, type(None))


class Budget:
    """Remaining steps, work, characters and time of a rendering."""

    __slots__ = (
        "_characters",
        "_deadline",
        "_most",
        "_most_call",
        "_most_work",
        "_processor",
        "_seconds",
        "_steps",
        "_turn",
        "_looks_at",
        "_weights",
        "_work",
    )

    def __init__(
        self, characters: int, begun: float | None = None, turn: Turn | None = None
    ) -> None:
        """Begin with so many characters, and all steps, work and seconds of a rendering.

        Args:
            characters: The characters.
            begun: Time of the processor when it began; ``None`` for now.
            turn: Divided by rests; ``None`` for none.
        """
        self._turn = turn
        self._steps = MOST_STEPS
        self._characters = self._most = characters
        self._most_call = MOST_CALL
        self._work = self._most_work = self._looks_at = MOST_WORK
        self._deadline = time.monotonic() + MOST_SECONDS
        self._seconds = MOST_PROCESSOR_SECONDS
        self._processor = time.thread_time() if begun is None else begun
        # By identity; the entry keeps the object alive, so its identity stays unique.
        self._weights: dict[int, tuple[object, int, int, int]] = {}

    def step(self, characters: int = 0, work: int = 0) -> None:
        """Count a step, the characters of the template that it writes, and its work.

        Raises:
            SecurityError: No step is left.
        """
        self._steps = steps = self._steps - 1
        if steps < 0:
            raise SecurityError(f"it took more than {MOST_STEPS} steps")
        if steps % 32 == 0 or self._work < self._looks_at:
            self._check_time()
        if characters:
            self.make(characters)
        if work:
            self.work(work)

    def _check_time(self) -> None:
        turn = self._turn
        if turn is not None and time.perf_counter() > turn.ends:
            turn.rest()
            if not is_wanted():
                raise SecurityError("nobody waits for it any more")
        self._looks_at = self._work - _OFTEN
        if time.monotonic() > self._deadline:
            raise SecurityError(f"it took more than {MOST_SECONDS:g} s")
        if time.thread_time() - self._processor > self._seconds:
            raise SecurityError(f"it took the processor for more than {self._seconds:g} s")

    def work(self, units: int) -> None:
        """Count so many characters or items that one call reads.

        Raises:
            SecurityError: They are too many.
        """
        if units > self._most_call:
            raise SecurityError(f"it read more than {self._most_call} characters in one call")
        self._work -= units
        if self._work < 0:
            raise SecurityError(f"it read more than {self._most_work} characters")

    def make(self, characters: int) -> None:
        """Count so many characters, or other items.

        Raises:
            SecurityError: They are too many.
        """
        self._characters -= characters
        if self._characters < 0:
            self.fit(1)

    def fit(self, characters: int) -> None:
        """Refuse a value of so many characters.

        Raises:
            SecurityError: It is too large.
        """
        if characters > self._characters:
            raise SecurityError(f"it made more than {self._most} characters")

    def grant(self, given: object) -> None:
        """Enlarge the budget in proportion to the input."""
        weight = self.weigh(given)
        self._characters += TIMES * weight
        self._most += TIMES * weight
        self._work += READ * weight
        self._looks_at += READ * weight
        self._most_work += READ * weight
        self._most_call += READ_AT_ONCE * weight
        self._seconds += SECONDS_EACH * self.count_items(given)

    def count(self, value: Any) -> Any:
        """Count a value that was made, and return it; of an iterator, each item when it comes."""
        kind = type(value)
        if kind is str:
            self.make(TEXT + (len(value) if value.isascii() else 4 * len(value)))
        elif kind in _SIMPLE:
            pass
        elif kind is int:
            if value.bit_length() > TEXT:
                self.make(TEXT + value.bit_length() // 8)
        elif kind in _CONTAINERS:
            self.make(_CONTAINER + 8 * len(value))  # it is weighed where it is read
        elif isinstance(value, str | bytes):
            self.make(TEXT + self.weigh(value))
        elif isinstance(value, Iterator) and not isinstance(value, LoopContext):
            self.make(4 * TEXT)
            return self._counted(value)
        return value

    def _counted(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.step()
            yield item

    def timed(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield items, and look at the time now and then: a filter may take none of many."""
        for number, item in enumerate(items):
            if number % 64 == 0:
                self._check_time()
            yield item

    def weigh(self, value: object) -> int:
        """Count the items and characters of a value, repeated ones each time.

        Nothing in the sandbox changes a container, so each is measured once.
        """
        kind = type(value)
        if kind is str:
            return len(value) if value.isascii() else 4 * len(value)  # type: ignore[attr-defined, arg-type]
        if kind in _CONTAINERS:
            return self._weigh(value)[1]
        if isinstance(value, str):
            return len(value) if value.isascii() else 4 * len(value)
        if isinstance(value, bytes):
            return len(value)
        if isinstance(value, range):
            return 8 * len(value)
        if isinstance(value, int):
            bits = value.bit_length()
            return 8 + bits // 8 + bits * bits // _SQUARED  # writing one takes the square
        if not isinstance(value, _CONTAINERS):
            return 8 * len(value) if isinstance(value, Mapping) else 8
        return self._weigh(value)[1]

    def count_items(self, value: object) -> int:
        """Count the values within a value, repeated ones each time."""
        return self._weigh(value)[2] if isinstance(value, _CONTAINERS) else 1

    def depth(self, value: object) -> int:
        """Count the containers that are within one another."""
        return self._weigh(value)[3] if isinstance(value, _CONTAINERS) else 0

    def _weigh(self, value: Any) -> tuple[object, int, int, int]:
        known = self._weights.get(id(value))
        if known is not None:
            return known
        weight, items, depth = 2, 1 + len(value), 0
        parts = (*value, *value.values()) if isinstance(value, dict) else value
        for number, part in enumerate(parts, 1):
            kind = type(part)
            if kind is str:
                weight += len(part) if part.isascii() else 4 * len(part)
            elif kind in _CONTAINERS:
                _, more, within, below = self._weigh(part)
                weight, items, depth = weight + more, items + within, max(depth, below)
            else:
                weight += self.weigh(part)
            if number % _AT_ONCE == 0:
                self._check_time()
        self._weights[id(value)] = known = (value, weight, items, 1 + depth)
        return known


_budget: ContextVar[Budget] = ContextVar("budget", default=Budget(_UNTIMED))  # noqa: B039
current_budget = _budget.get
"""Return the budget of the rendering that runs."""


@contextmanager
def rendering(given: object = None, begun: float | None = None) -> Iterator[None]:
    """Run the block with a new budget.

    Args:
        given: Input of the template; a larger one gets a larger budget.
        begun: Time of the processor when the first of several renderings began.
    """
    with taking_turns() as turn:
        budget = Budget(MOST_CHARACTERS, begun, turn)
        budget.grant(given)
        token = _budget.set(budget)
        try:
            yield
        finally:
            _budget.reset(token)
