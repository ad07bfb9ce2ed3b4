"""Search a growing text for literals and regular expressions, in time linear in the text.

A file's regular expression must not run away, and an answer must be searched before it is complete.
So an expression is run as a set of states that each character moves (Pike's virtual machine: Cox,
"Regular Expression Matching: the Virtual Machine Approach", 2009): no backtracking, and a state
that is alive at the end of the text says that a match may still come. Matches are those of
``re.search`` with ``re.DOTALL``. Backreferences and lookarounds need more than states; they are
refused.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from asyncgen.text.tool_calls.text_scanner import held_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_parser: Any = importlib.import_module("re._parser")

_MOST_STATES = 300
_MOST_REPEATS = 200
_MOST_PARTS = 2000

_CHAR, _SPLIT, _JUMP, _SAVE, _AT, _MATCH = range(6)


class PatternError(ValueError):
    """A regular expression that is malformed or not read; the message says why."""


class Match(NamedTuple):
    """A place in the text, and the texts of the named groups that took part."""

    start: int
    end: int
    groups: Mapping[str, str]


class Search(Protocol):
    """A search that goes on as the text grows; positions count from the beginning of the answer.

    Attributes:
        found: The leftmost match, where it cannot change any more.
        pending: Where a match may still begin; ``None`` for nowhere.
        place: Place up to which the text was read.
    """

    found: Match | None
    pending: int | None
    place: int

    def restart(self, place: int) -> None:
        """Search from a place on."""

    def run(self, text: str, base: int, *, is_complete: bool) -> None:
        """Read on to the end of the text, or to a match.

        Args:
            text: The text from position ``base`` on.
            base: Position of its first character.
            is_complete: No more text will come.
        """


class Literals:
    """Literals of which any one matches, the longest first.

    Args:
        texts: At least one, none of them empty.
    """

    groups: frozenset[str] = frozenset()

    def __init__(self, texts: Sequence[str]) -> None:
        ordered = sorted(dict.fromkeys(texts), key=len, reverse=True)
        self.texts = tuple(ordered)
        self._search = re.compile("|".join(map(re.escape, ordered))).search
        alike = sorted(ordered)  # behind each text stand those that begin with it
        self._grow = any(longer.startswith(text) for text, longer in pairwise(alike))

    def search(self) -> Search:
        """Begin a search."""
        return _LiteralSearch(self)

    def find(self, text: str, place: int, *, is_complete: bool) -> tuple[int, int] | int | None:
        """Return the place of a match, the place where one may begin, or ``None`` for neither."""
        found = self._search(text, place)
        if found is None:
            held = 0 if is_complete else held_back(text[place:], self.texts)
            return len(text) - held if held else None
        if self._grow and found.end() == len(text) and not is_complete:
            return found.start()
        return found.span()


class _LiteralSearch:
    """See `Search`."""

    def __init__(self, literals: Literals) -> None:
        self._literals, self.place = literals, 0
        self.found: Match | None = None
        self.pending: int | None = None

    def restart(self, place: int) -> None:
        self.place, self.found, self.pending = place, None, None

    def run(self, text: str, base: int, *, is_complete: bool) -> None:
        if self.found is not None:
            return
        place = self._literals.find(text, self.place - base, is_complete=is_complete)
        if isinstance(place, tuple):
            self.found, self.pending = Match(base + place[0], base + place[1], {}), None
        else:
            self.pending = None if place is None else base + place
            self.place = base + len(text) if place is None else base + place


@dataclass(slots=True)
class _State:
    """One step of a program: what it does, and its operands."""

    kind: int
    test: Callable[[str], bool] | None = None
    first: int = 0
    second: int = 0


_Thread = tuple[int, int, tuple[int, ...]]
"""Number of a state, the place where its match begins, and the places of its groups."""


@dataclass(slots=True)
class Pattern:
    """A compiled regular expression.

    Attributes:
        source: The expression.
        groups: Names of its groups.
    """

    source: str
    states: list[_State] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    looks_ahead: bool = False
    _parts: int = 0

    @classmethod
    def compile(cls, source: str) -> Pattern:
        """Compile an expression.

        Raises:
            PatternError: It is malformed, too large, or has what cannot be read.
        """
        if not isinstance(source, str):
            raise PatternError(f"{source!r} is no text")
        try:
            tree = _parser.parse(source, re.DOTALL)
        except (re.error, RecursionError, OverflowError) as error:
            raise PatternError(f"{source!r} is no regular expression: {error}") from None
        if tree.state.flags & ~(re.DOTALL | re.UNICODE):
            raise PatternError(f"{source!r} sets flags, which are not read")
        pattern = cls(source, names=dict(tree.state.groupdict))
        try:
            pattern._emit(tree)
        except RecursionError:
            raise PatternError(f"{source!r} is nested too deeply") from None
        pattern._add(_State(_MATCH))
        return pattern

    @property
    def groups(self) -> frozenset[str]:
        """Names of the groups."""
        return frozenset(self.names)

    @property
    def may_be_empty(self) -> bool:
        """True if there is a place where it matches without reading anything."""
        seen, stack = set[int](), [0]
        while stack:
            number = stack.pop()
            state = self.states[number]
            if state.kind == _MATCH:
                return True
            if number in seen or state.kind == _CHAR:
                continue
            seen.add(number)
            if state.kind in (_SPLIT, _JUMP):
                stack += [state.first, state.second][: 2 if state.kind == _SPLIT else 1]
            else:
                stack.append(number + 1)
        return False

    def search(self) -> Search:
        """Begin a search."""
        return _PatternSearch(self)

    def matches(self, text: str) -> Iterable[Match]:
        """Yield the matches in a whole text, from the left, none of them overlapping."""
        search, place = _PatternSearch(self), 0
        while place <= len(text):
            search.restart(place)
            search.run(text, 0, is_complete=True)
            if search.found is None:
                return
            yield search.found
            place = search.found.end + (search.found.end == search.found.start)

    def _add(self, state: _State) -> int:
        if len(self.states) >= _MOST_STATES:
            raise PatternError(f"{self.source!r} has more than {_MOST_STATES} states")
        self.states.append(state)
        return len(self.states) - 1

    def _emit(self, tree: Any) -> None:
        """Add the states of a part of the expression."""
        self._parts += 1  # a part without states, which may be repeated, is one as well
        if self._parts > _MOST_PARTS:
            raise PatternError(f"{self.source!r} has more than {_MOST_PARTS} parts")
        for operation, operand in tree:
            name = str(operation)
            if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
                self._add(_State(_CHAR, _test(name, operand)))
            elif name == "SUBPATTERN":
                self._group(*operand)
            elif name == "BRANCH":
                self._branch(operand[1])
            elif name in ("MAX_REPEAT", "MIN_REPEAT"):
                self._repeat(*operand, is_greedy=name == "MAX_REPEAT")
            elif name == "AT" and str(operand) in _PLACES:
                self.looks_ahead = True
                self._add(_State(_AT, first=_PLACES[str(operand)]))
            else:
                raise PatternError(
                    f"{self.source!r} has {_NAMED.get(name, name)}, which is not read"
                )

    def _group(self, number: int | None, added: int, removed: int, tree: Any) -> None:
        if added or removed:
            raise PatternError(f"{self.source!r} sets flags, which are not read")
        if number is None:
            self._emit(tree)
            return
        self._add(_State(_SAVE, first=2 * number - 2))
        self._emit(tree)
        self._add(_State(_SAVE, first=2 * number - 1))

    def _branch(self, branches: Sequence[Any]) -> None:
        jumps = []
        for tree in branches[:-1]:
            split = self._add(_State(_SPLIT))
            self.states[split].first = len(self.states)
            self._emit(tree)
            jumps.append(self._add(_State(_JUMP)))
            self.states[split].second = len(self.states)
        self._emit(branches[-1])
        for jump in jumps:
            self.states[jump].first = len(self.states)

    def _repeat(self, low: int, high: Any, tree: Any, *, is_greedy: bool) -> None:
        is_endless = high is _parser.MAXREPEAT or str(high) == "MAXREPEAT"
        if low > _MOST_REPEATS or (not is_endless and high > _MOST_REPEATS):
            raise PatternError(f"{self.source!r} repeats more than {_MOST_REPEATS} times")
        for _ in range(low):
            self._emit(tree)
        splits = []
        for _ in range(1 if is_endless else high - low):
            splits.append(self._add(_State(_SPLIT)))
            self._emit(tree)
            if is_endless:
                self._add(_State(_JUMP, first=splits[0]))
        for split in splits:
            inside, behind = split + 1, len(self.states)
            state = self.states[split]
            state.first, state.second = (inside, behind) if is_greedy else (behind, inside)


class _PatternSearch:
    """See `Search`."""

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._slots = (-1,) * (2 * max(pattern.names.values(), default=0))
        self.restart(0)

    def restart(self, place: int) -> None:
        self.place, self._threads = place, list[_Thread]()
        self._best: _Thread | None = None
        self._end = place
        self.found: Match | None = None
        self.pending: int | None = None

    def run(self, text: str, base: int, *, is_complete: bool) -> None:
        if self.found is not None:
            return
        end = base + len(text)
        while self.place < end and (self._best is None or self._threads):
            self._step(text, base)
        if is_complete and (self._best is None or self._threads):
            self._threads = self._closed(self._with_start(self._threads), text, base, is_end=True)
            self._threads = []
        if self._best is not None and not self._threads:
            self.found = self._match(text, base)
            self.pending = None
        else:
            starts = [thread[1] for thread in self._threads]
            if self._best is not None:
                starts.append(self._best[1])
            self.pending = min(starts, default=None)

    def _with_start(self, threads: list[_Thread]) -> list[_Thread]:
        """Add a match that begins here, behind all that began before."""
        if self._best is not None:
            return threads
        return [*threads, (0, self.place, self._slots)]

    def _step(self, text: str, base: int) -> None:
        """Read one character."""
        letter, states = text[self.place - base], self._pattern.states
        if self._pattern.looks_ahead:
            current = self._closed(self._with_start(self._threads), text, base)
        else:
            current = self._threads
            if self._best is None:
                known = {thread[0] for thread in current}
                start = [(0, self.place, self._slots)]
                current = current + self._closed(start, text, base, known)
        moved = []
        for number, start_place, slots in current:
            test = states[number].test
            if test is not None and test(letter):
                moved.append((number + 1, start_place, slots))
        self.place += 1
        self._threads = moved if self._pattern.looks_ahead else self._closed(moved, text, base)

    def _closed(
        self,
        threads: list[_Thread],
        text: str,
        base: int,
        known: set[int] | None = None,
        *,
        is_end: bool = False,
    ) -> list[_Thread]:
        """Follow the states that read nothing; keep those that read a character, best first.

        A match ends the list: what comes behind it is worse.
        """
        states, seen = self._pattern.states, set() if known is None else known
        ready: list[_Thread] = []
        stack = threads[::-1]
        while stack:
            number, start, slots = stack.pop()
            if number in seen:
                continue
            seen.add(number)
            state = states[number]
            kind = state.kind
            if kind == _CHAR:
                ready.append((number, start, slots))
            elif kind == _MATCH:
                self._best, self._end = (number, start, slots), self.place
                break
            elif kind == _SPLIT:
                stack.append((state.second, start, slots))
                stack.append((state.first, start, slots))
            elif kind == _JUMP:
                stack.append((state.first, start, slots))
            elif kind == _SAVE:
                place = state.first
                saved = (*slots[:place], self.place, *slots[place + 1 :])
                stack.append((number + 1, start, saved if place < len(slots) else slots))
            elif self._holds(state.first, text, base, is_end=is_end):
                stack.append((number + 1, start, slots))
        return ready

    def _holds(self, place: int, text: str, base: int, *, is_end: bool) -> bool:
        """Tell whether a condition holds between two characters."""
        here = self.place - base
        if place == _BEGINNING:
            return self.place == 0
        if place == _END:
            return is_end and here == len(text)
        before = here > 0 and _is_word(text[here - 1])
        behind = here < len(text) and _is_word(text[here])
        return (before != behind) == (place == _BOUNDARY)

    def _match(self, text: str, base: int) -> Match:
        assert self._best is not None
        _, start, slots = self._best
        groups = {}
        for name, number in self._pattern.names.items():
            begin, end = slots[2 * number - 2], slots[2 * number - 1]
            if begin >= 0 and end >= 0:
                groups[name] = text[begin - base : end - base]
        return Match(start, self._end, groups)


_BEGINNING, _END, _BOUNDARY, _NO_BOUNDARY = range(4)
_PLACES = {
    "AT_BEGINNING": _BEGINNING,
    "AT_BEGINNING_STRING": _BEGINNING,
    "AT_END": _END,
    "AT_END_STRING": _END,
    "AT_BOUNDARY": _BOUNDARY,
    "AT_NON_BOUNDARY": _NO_BOUNDARY,
}
_NAMED = {
    "ASSERT": "a lookaround",
    "ASSERT_NOT": "a lookaround",
    "GROUPREF": "a reference to a group",
    "GROUPREF_EXISTS": "a reference to a group",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive repeat",
}


def _is_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


_KINDS: dict[str, Callable[[str], bool]] = {
    "CATEGORY_SPACE": str.isspace,
    "CATEGORY_NOT_SPACE": lambda letter: not letter.isspace(),
    "CATEGORY_DIGIT": str.isdecimal,
    "CATEGORY_NOT_DIGIT": lambda letter: not letter.isdecimal(),
    "CATEGORY_WORD": _is_word,
    "CATEGORY_NOT_WORD": lambda letter: not _is_word(letter),
}


def _test(name: str, operand: Any) -> Callable[[str], bool]:
    """Return the test of a character."""
    if name == "ANY":
        return lambda letter: True
    if name == "IN":
        return _class_test(operand)
    wanted = chr(operand)
    if name == "LITERAL":
        return lambda letter: letter == wanted
    return lambda letter: letter != wanted


def _class_test(operand: Any) -> Callable[[str], bool]:
    """Return the test of a class of characters, such as ``[^>\\n]`` or ``\\w``."""
    is_negated = False
    tests: list[Callable[[str], bool]] = []
    for operation, value in operand:
        name = str(operation)
        if name == "NEGATE":
            is_negated = True
        elif name == "RANGE":
            tests.append(_range_test(*map(chr, value)))
        elif name == "CATEGORY":
            tests.append(_KINDS[str(value)])
        else:
            tests.append(_test(name, value))
    if len(tests) == 1 and not is_negated:
        return tests[0]
    return lambda letter: any(test(letter) for test in tests) != is_negated


def _range_test(low: str, high: str) -> Callable[[str], bool]:
    return lambda letter: low <= letter <= high
