"""Scan a text that is still growing.

The methods of a scanner are generators: they yield where the text is not enough, and go on when
there is more.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    Put = Callable[[str], object]

IncrementalParse: TypeAlias = Generator[None, None, Any]
"""A parser that yields where its text is not enough; the next text resumes it."""

_SPACE = " \t\r\n"
_IN_STRING = re.compile(r'["\\]')
_IN_VALUE = re.compile(r'["{}\[\]]')
_SCALAR_END = re.compile(r"[,\]}\s]")
_CLOSING = {"{": "}", "[": "]"}


class MalformedCallError(Exception):
    """A call that is not written as its format has it; the message says what is wrong."""


class TextScanner:
    """A growing text, a position in it, and the text that was read since a mark.

    Attributes:
        rest: Text that was not read yet.
        is_complete: True if no more text will come.
    """

    __slots__ = ("_raw", "is_complete", "rest")

    def __init__(self) -> None:
        """Begin without text."""
        self.rest = ""
        self.is_complete = False
        self._raw: list[str] = []

    def put(self, text: str) -> None:
        """Add text at the end."""
        self.rest += text

    def mark(self, before: str = "") -> None:
        """Keep the text that is read from here on, after ``before``, which was read already."""
        self._raw = [before]

    def raw(self) -> str:
        """Return the text that was read since the mark."""
        return "".join(self._raw)

    def skip(self, count: int) -> str:
        """Read and return so many characters, which must be there."""
        taken, self.rest = self.rest[:count], self.rest[count:]
        self._raw.append(taken)
        return taken

    def more(self) -> IncrementalParse:
        """Wait for more text.

        Raises:
            MalformedCallError: The text is complete.
        """
        if self.is_complete:
            raise MalformedCallError("the answer ended within a call")
        yield

    def space(self) -> IncrementalParse:
        """Read white space, if any follows."""
        while True:
            self.skip(len(self.rest) - len(self.rest.lstrip(_SPACE)))
            if self.rest or self.is_complete:
                return
            yield

    def peek(self) -> IncrementalParse:
        """Return the next character without reading it."""
        while not self.rest:
            yield from self.more()
        return self.rest[0]

    def follows(self, literal: str) -> IncrementalParse:
        """Read a literal if it follows; return whether it did."""
        while len(self.rest) < len(literal) and literal.startswith(self.rest):
            if self.is_complete:
                return False
            yield
        if not self.rest.startswith(literal):
            return False
        self.skip(len(literal))
        return True

    def expect(self, literal: str) -> IncrementalParse:
        """Read a literal.

        Raises:
            MalformedCallError: Something else follows.
        """
        found = yield from self.follows(literal)
        if not found:
            raise MalformedCallError(f"{literal!r} should follow, and something else does")

    def until(self, *literals: str) -> IncrementalParse:
        """Read and return the text before the first of several literals."""
        parts: list[str] = []
        yield from self.stream_until(parts.append, *literals)
        return "".join(parts)

    def stream_until(self, put: Put, *literals: str, or_end: bool = False) -> IncrementalParse:
        """Pass text on as it comes, up to the first of several literals, which is not read.

        Args:
            put: Takes the text.
            literals: Literals that end it.
            or_end: The end of the answer ends it as well.
        """
        while True:
            places = [place for place in map(self.rest.find, literals) if place >= 0]
            end = min(places) if places else len(self.rest) - held_back(self.rest, literals)
            if end:
                put(self.skip(end))
            if places:
                return
            if or_end and self.is_complete:
                if self.rest:
                    put(self.skip(len(self.rest)))
                return
            yield from self.more()

    def json_value(self, put: Put) -> IncrementalParse:
        """Pass one value of JSON on as it comes; only its brackets and quotes are checked."""
        yield from self.space()
        first = yield from self.peek()
        if first == '"':
            put(self.skip(1))
            yield from self._string(put)
        elif first in _CLOSING:
            yield from self._nested(put)
        else:
            yield from self._scalar(put)

    def json_text(self) -> IncrementalParse:
        """Read one value of JSON; return its text."""
        parts: list[str] = []
        yield from self.json_value(parts.append)
        return "".join(parts)

    def _string(self, put: Put) -> IncrementalParse:
        """Pass the rest of a string on, with its closing quote."""
        while True:
            found = _IN_STRING.search(self.rest)
            if found is None:
                if self.rest:
                    put(self.skip(len(self.rest)))
                yield from self.more()
            elif found[0] == '"':
                put(self.skip(found.end()))
                return
            elif found.end() < len(self.rest):
                put(self.skip(found.end() + 1))
            else:
                yield from self.more()

    def _nested(self, put: Put) -> IncrementalParse:
        """Pass an object or a list on."""
        closing: list[str] = []
        while True:
            found = _IN_VALUE.search(self.rest)
            if found is None:
                if self.rest:
                    put(self.skip(len(self.rest)))
                yield from self.more()
                continue
            mark = found[0]
            if mark in _CLOSING:
                closing.append(_CLOSING[mark])
            elif mark != '"' and (not closing or closing.pop() != mark):
                raise MalformedCallError(f"{mark!r} closes nothing")
            put(self.skip(found.end()))
            if mark == '"':
                yield from self._string(put)
            if not closing:
                return

    def _scalar(self, put: Put) -> IncrementalParse:
        """Pass a number or a word on."""
        while True:
            found = _SCALAR_END.search(self.rest)
            if found is not None or self.is_complete:
                put(self.skip(len(self.rest) if found is None else found.start()))
                return
            yield


def held_back(text: str, literals: tuple[str, ...]) -> int:
    """Count the characters at the end of a text that may begin one of several literals."""
    most = min(len(text), max(map(len, literals)) - 1)
    for count in range(most, 0, -1):
        tail = text[-count:]
        if any(literal.startswith(tail) for literal in literals):
            return count
    return 0
