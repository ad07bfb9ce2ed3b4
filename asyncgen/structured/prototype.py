"""Matchers at the beginning of a format, which are copied for each row, and replaced when used up.

The grammar engine shares one lexer among all copies of a matcher, which learns from each of them.
It stops for all of them when one step of any costs too much, or when all together have met too many
states. So a row that meets such an end tries again with a lexer of its own: if that stops as well,
the row has caused it, and fails alone; otherwise the others follow to the new lexer.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_MOST_RENEWING = 0.1
"""Most seconds in each second that lexers are made anew: it is done between two steps."""

_TOKENS_A_MASK = 64
"""Tokens that a new lexer reads before its fuel is set anew, which a mask does."""

MOST_FORCED = 4096
"""Most tokens that a grammar may force at one place, since they are computed in one call."""


def forced_problem(count: int) -> str | None:
    """Tell what is wrong with the number of tokens that are forced at one place."""
    if count <= MOST_FORCED:
        return None
    return f"it forces {count} tokens at one place; at most {MOST_FORCED}"


class RenewalBudget:
    """Time that new lexers may take, of all formats of a tokenizer."""

    def __init__(self) -> None:
        """Begin with all of it."""
        self._lock = threading.Lock()
        self._since = -1.0
        self._left = 0.0

    def takes(self, seconds: float) -> bool:
        """Take some of it; false if that much is not left in this second."""
        with self._lock:
            now = time.monotonic()
            if now - self._since >= 1 or self._since < 0:
                self._since, self._left = now, _MOST_RENEWING
            if seconds > self._left:
                return False
            self._left -= seconds
            return True


class Prototype:
    """A matcher at the beginning of a format, and its lexer.

    Attributes:
        problem: What is wrong with the format; empty if it can be used.
        is_broken: The lexer is known to have stopped; set by whoever finds it.
    """

    def __init__(self, make: Callable[[], Any], budget: RenewalBudget) -> None:
        """Make the matcher.

        Args:
            make: Makes a matcher of the grammar engine with a lexer of its own.
            budget: Time that may be spent on making it again.
        """
        self._make = make
        self._budget = budget
        begin = time.thread_time()
        self._matcher = make()
        self.problem = self._begin()
        self._seconds = time.thread_time() - begin
        self._successor: Prototype | None = None
        self.is_broken = False

    def _begin(self) -> str:
        """Compute the first mask, so that errors are found here; return what is wrong.

        It also sets the limits of steps: a lexer has none before its first mask.
        """
        if self._matcher.is_error():
            return str(self._matcher.get_error())
        problem = "; ".join(self._matcher.get_grammar_warnings())
        if problem:
            return problem
        first = self.copy()
        first.compute_bitmask()  # forces, without the interpreter lock
        while forced := first.compute_ff_tokens():
            problem = forced_problem(len(forced)) or ""
            if problem or first.try_consume_tokens(forced) < len(forced):
                break
        if not first.is_stopped():
            first.compute_bitmask()
        return str(first.get_error()) if first.is_error() else problem

    def copy(self) -> Any:
        """Return a matcher at the beginning; costs some microseconds."""
        return self._matcher.deep_copy()

    @property
    def latest(self) -> Prototype:
        """The last one that rows have followed to; may be itself."""
        found = self
        while found.is_broken and found._successor is not None:
            found = found._successor
        return found

    def replacements(self) -> Iterator[Prototype]:
        """Yield those that a row may try: the one of the other rows, and one that nobody has used.

        The second one is missing where too much time has gone into new ones.
        """
        latest = self.latest
        if not latest.is_broken:
            yield latest
        if self._budget.takes(self._seconds):
            yield Prototype(self._make, self._budget)

    def follow_to(self, other: Prototype) -> None:
        """Let other rows follow to one with which a row could go on."""
        latest = self.latest
        if latest is not other and latest.is_broken:
            latest._successor = other


def problem_of(matcher: Any) -> str:
    """Return the error of a matcher as one line; empty without one."""
    if not matcher.is_error():
        return ""
    return str(matcher.get_error().strip().partition("\n")[0][:300])


def is_of_lexer(problem: str) -> bool:
    """Tell whether an error is one of the lexer, which all copies share."""
    return "lexer error" in problem


def hidden_problem(matcher: Any) -> str:
    """Return the error of a lexer that has stopped, empty without one; costs a mask.

    Most calls do not tell of it: what is forced is cut short, and what comes next is not allowed.
    """
    copy = matcher.deep_copy()
    copy.compute_bitmask()  # where nothing is forced, it tells; otherwise it forces, within limits
    copy.try_consume_tokens(copy.compute_ff_tokens()[:1])  # there this one tells
    problem = problem_of(copy)
    return problem if is_of_lexer(problem) else ""


def replay(matcher: Any, token_ids: Sequence[int]) -> bool:
    """Let a matcher at the beginning consume tokens; false if it does not."""
    matcher.compute_bitmask()  # sets the fuel anew
    for place in range(0, len(token_ids), _TOKENS_A_MASK):
        if place:
            matcher.compute_bitmask()
        part = token_ids[place : place + _TOKENS_A_MASK]
        if matcher.try_consume_tokens(part) < len(part):
            return False
    return not matcher.is_error()
