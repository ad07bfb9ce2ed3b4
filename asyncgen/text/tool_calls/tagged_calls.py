"""CallCollector whose arguments stand between tags, one by one; they come out as JSON."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncgen.text.tool_calls.call_collector import CallCollector
    from asyncgen.text.tool_calls.text_scanner import Reading, TextScanner


class TaggedArguments:
    """Writes arguments as a JSON object while they are read.

    Whether a value is a text is what the tool declares; another one that is no JSON is a text too.
    """

    def __init__(self, cursor: TextScanner, calls: CallCollector) -> None:
        """Begin behind the name."""
        self._cursor, self._calls = cursor, calls
        self._is_first = True

    def read(self, key: str, end: str, *, is_string: bool | None = None) -> Reading:
        """Read a value to behind the tag that ends it.

        Args:
            key: Name of the argument.
            end: The tag.
            is_string: Whether the model says that it is a text; ``None`` where it does not.
        """
        cursor, calls = self._cursor, self._calls
        calls.arguments(("{" if self._is_first else ", ") + json.dumps(key) + ": ")
        self._is_first = False
        yield from cursor.follows("\n")  # frames the value, and is no part of it
        if calls.is_string(key) if is_string is None else is_string:
            calls.arguments('"')
            yield from cursor.stream_until(
                lambda text: calls.arguments(_escaped(text)), "\n" + end, end
            )
            calls.arguments('"')
        else:
            text = yield from cursor.until("\n" + end, end)
            while _ends_in_a_string(text):  # so the tag is a part of it
                text += cursor.skip(1)
                text += yield from cursor.until("\n" + end, end)
            calls.arguments(_as_json(text))
        yield from cursor.follows("\n")
        yield from cursor.expect(end)

    def close(self) -> None:
        """All arguments were read."""
        self._calls.arguments("{}" if self._is_first else "}")
        self._calls.end()


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


_QUOTES = re.compile(r'\\.|"', re.DOTALL)


def _ends_in_a_string(text: str) -> bool:
    """Whether a value begins as JSON does, and stops within one of its strings."""
    if not text.lstrip().startswith(('"', "{", "[")):
        return False
    return _QUOTES.findall(text).count('"') % 2 == 1


def _as_json(text: str) -> str:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return text.strip()
