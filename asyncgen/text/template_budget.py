"""Count the steps, the work, the characters and the time of one rendering of a chat template.

Knows nothing of jinja's environment, and of what is called.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext

from asyncgen.errors import clip
from asyncgen.runtime.wanted import is_wanted
from asyncgen.text.template_turns import Turn
from asyncgen.text.template_weights import MOST_DEPTH, Weights

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

TIMES = 8
"""Further characters for each one that is rendered: templates cut and join their input."""

READ = 32
"""Further work for each character that is rendered."""

MOST_SECONDS = 10.0
"""Seconds of one rendering, checked at its steps."""

MOST_PROCESSOR_SECONDS = 0.6
"""Seconds of the processor, likewise."""

SECONDS_EACH = 1e-4
"""Further seconds of the processor for each value that is rendered, such as a message's role."""

_UNTIMED = 2**16  # characters of a value that is made outside of a rendering
_CONTAINER = 128  # weight of a container beside its items: it is kept until the rendering ends
_CONTAINERS = (list, tuple, dict)
_AT_ONCE = 4  # parts of the work, of which one call, that nothing can stop, takes one
_LOOK = 2**15  # work after which the time is looked at
_SIMPLE = (bool, float, type(None))


class Budget(Weights):
    """Remaining steps, work, characters and time of a rendering."""

    __slots__ = (
        "_characters",
        "_deadline",
        "_look",
        "_most",
        "_most_work",
        "_processor",
        "_seconds",
        "_steps",
        "_turn",
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
        self._work = self._most_work = MOST_WORK
        self._look = MOST_WORK - _LOOK
        self._deadline = time.monotonic() + MOST_SECONDS
        self._seconds = MOST_PROCESSOR_SECONDS
        self._processor = time.thread_time() if begun is None else begun
        super().__init__()

    def step(self, characters: int = 0, work: int = 0) -> None:
        """Count a step, the characters of the template that it writes, and its work.

        Raises:
            SecurityError: No step is left.
        """
        self._steps = steps = self._steps - 1
        if steps < 0:
            raise SecurityError(f"it took more than {MOST_STEPS} steps")
        if steps % 32 == 0:
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
        if time.monotonic() > self._deadline:
            raise SecurityError(f"it took more than {MOST_SECONDS:g} s")
        if time.thread_time() - self._processor > self._seconds:
            raise SecurityError(f"it took the processor for more than {self._seconds:g} s")

    def work(self, units: int) -> None:
        """Count so many characters or items that one call reads.

        Raises:
            SecurityError: They are too many, for the rendering or at once.
        """
        self._work = left = self._work - units
        if left < self._look:
            most = self._most_work // _AT_ONCE
            if units > most:
                raise SecurityError(f"it read more than {most} characters in one call")
            if left < 0:
                raise SecurityError(f"it read more than {self._most_work} characters")
            self._check_time()
            self._look = left - _LOOK

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
        weight, items, _, _ = self.measure(given)
        self._characters += TIMES * weight
        self._most += TIMES * weight
        self._work += READ * weight
        self._look += READ * weight
        self._most_work += READ * weight
        self._seconds += SECONDS_EACH * items

    def count(self, value: Any, source: object = None) -> Any:
        """Count a value that was made, and return it; of an iterator, each item when it comes.

        Args:
            value: The value.
            source: What it was made of.
        """
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
            return Counted(self, value, source)
        return value

    def timed(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield items, and look at the time now and then: a filter may take none of many."""
        for number, item in enumerate(items):
            if number % 64 == 0:
                self._check_time()
            yield item

    def weigh(self, value: object) -> int:
        """Count the items and characters of a value, repeated ones each time.

        Raises:
            SecurityError: It is nested too deeply, or of a type that has no weight.
        """
        if type(value) is str:
            return len(value) if value.isascii() else 4 * len(value)
        weight, _, _, unknown = self.measure(value)
        if unknown is not None:
            raise SecurityError(
                f"it reads a value of the type `{clip(unknown, 80)}`, which templates may "
                "not read here: give a text, a number, a list or a mapping of them"
            )
        return weight

    def check_depth(self, value: object) -> None:
        """Refuse a value that is nested too deeply, whatever is done with it.

        Raises:
            SecurityError: It is.
        """
        self.measure(value)

    def count_items(self, value: object) -> int:
        """Count the values within a value, repeated ones each time."""
        return self.measure(value)[1]

    def depth(self, value: object) -> int:
        """Count the containers that are within one another."""
        return self.measure(value)[2]


class Counted:
    """Iterator whose items are a step each, as they come."""

    __slots__ = ("_budget", "_items", "level")

    level: int
    """Iterators that read from one another."""

    def __init__(self, budget: Budget, items: Iterator[Any], source: object = None) -> None:
        """Count the items of an iterator that reads from another one.

        Raises:
            SecurityError: Too many iterators read from one another.
        """
        self.level = 1 + (source.level if isinstance(source, Counted) else 0)
        if self.level > MOST_DEPTH:
            raise SecurityError(f"it made filters of more than {MOST_DEPTH} filters")
        self._budget = budget
        self._items = items

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        self._budget.step()
        return next(self._items)


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
    turn = Turn()
    budget = Budget(MOST_CHARACTERS, begun, turn)
    budget.grant(given)
    token = _budget.set(budget)
    try:
        yield
    finally:
        _budget.reset(token)
        turn.end()
