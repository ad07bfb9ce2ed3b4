"""Read a value that a model wrote as a literal of Python or of JSON, or as a mixture of both.

Strings stand in either kind of quotes, lists may be tuples, and the words of both languages are
known. Nothing is executed.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<word>[A-Za-z]+)
    |(?P<mark>[\[\](){},:])
    )""",
    re.DOTALL | re.VERBOSE,
)
_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|\r\n|.)", re.DOTALL)
_ESCAPED = {
    **{"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"},
    **{"a": "\a", "v": "\v", "/": "/", "\n": "", "\r\n": ""},
    **{each: each for each in "\\'\""},
}
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_MOST_NESTED = 64
_MOST_DIGITS = 4000


def read_literal(text: str) -> Any:
    """Return the value that a text stands for.

    Args:
        text: One literal; white space around it is ignored.

    Raises:
        ValueError: It is no literal, it is nested more than 64 deep, or JSON cannot hold it.
    """
    reader = _Reader(text)
    value = reader.value(0)
    reader.finish()
    return value


def as_json(value: object) -> str:
    """Return a value of `read_literal` as JSON on one line."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


class _Reader:
    """The tokens of a text, read from the left."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = next(self._tokens)

    def value(self, depth: int) -> Any:
        """Read a value."""
        kind, text = self._take()
        if depth > _MOST_NESTED:
            raise ValueError(f"a value nested more than {_MOST_NESTED} deep")
        if kind == "text":
            return _unescaped(text[1:-1])
        if kind == "number":
            return _number(text)
        if kind == "word" and text in _WORDS:
            return _WORDS[text]
        if text == "{":
            return dict(self._entries("}", depth, is_pair=True))
        if text in ("[", "("):
            return list(self._entries(_CLOSING[text], depth, is_pair=False))
        raise ValueError(f"{text!r} is no value")

    def finish(self) -> None:
        """Check that nothing follows.

        Raises:
            ValueError: Something does.
        """
        if self._next[0]:
            raise ValueError(f"{self._next[1]!r} follows the value")

    def _entries(self, closing: str, depth: int, *, is_pair: bool) -> Iterator[Any]:
        """Read the entries of a container, and what closes it."""
        while self._next[1] != closing or self._next[0] != "mark":
            entry = self.value(depth + 1)
            if is_pair:
                if not isinstance(entry, str):
                    raise ValueError(f"the key {entry!r} is no text")
                self._expect(":")
                entry = entry, self.value(depth + 1)
            yield entry
            if self._next != ("mark", closing):
                self._expect(",")
        self._take()

    def _expect(self, mark: str) -> None:
        if self._next != ("mark", mark):
            raise ValueError(f"{mark!r} should follow, not {self._next[1]!r}")
        self._take()

    def _take(self) -> tuple[str, str]:
        taken, self._next = self._next, next(self._tokens)
        return taken


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each token, then empty ones."""
    place, end = 0, len(text.rstrip())
    while place < end:
        found = _TOKEN.match(text, place, end)
        if found is None or found.lastgroup is None:
            raise ValueError(f"no literal: {text[place : place + 20]!r}")
        yield found.lastgroup, found[found.lastgroup]
        place = found.end()
    while True:
        yield "", ""


def _number(text: str) -> int | float:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number of more than {_MOST_DIGITS} digits")
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def _unescaped(text: str) -> str:
    """Return the text that stands for another between quotes."""
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_character, text)
    # JSON writes a character beyond the first 65,536 as two surrogates.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16")


def _character(found: re.Match[str]) -> str:
    code = found[1]
    if len(code) > 1 and code[0] in "xuU":
        number = int(code[1:], 16)
        if number > 0x10FFFF:
            raise ValueError(f"{found[0]!r} is no character")
        return chr(number)
    return _ESCAPED.get(code, found[0])
