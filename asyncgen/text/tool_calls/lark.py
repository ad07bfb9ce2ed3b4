"""Write rules in llguidance's Lark: texts, special tokens, texts up to a marker, JSON.

A grammar refers to a special token by its id, since no text may spell it.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

ANY = "/(?s:.*)/"
"""Terminal for any text."""


class LarkRules:
    """The rules of one grammar; equal rules are written once.

    Attributes:
        rules: All rules so far, one a line.
    """

    def __init__(self, special: Mapping[str, int]) -> None:
        """Begin without rules.

        Args:
            special: Ids of special tokens by their texts.
        """
        self.rules: list[str] = []
        self._special = special
        self._names: dict[str, str] = {}
        texts = sorted(special, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, texts))})") if texts else None

    def begins_special(self, text: str) -> bool:
        """Tell whether a text begins with a special token."""
        return self._split is not None and self._split.match(text) is not None

    def text(self, text: str) -> str:
        """Return a text as Lark writes it, special tokens by their ids."""
        pieces = [text] if self._split is None else self._split.split(text)
        return " ".join(
            f"<[{self._special[piece]}]>" if piece in self._special else quoted(piece)
            for piece in pieces
            if piece
        )

    def reserve(self, *, is_terminal: bool = False) -> str:
        """Return a new name for a rule, or a terminal, that is defined later."""
        name = f"{'V' if is_terminal else 'v'}{len(self._names)}"
        self._names[f"={name}"] = name
        return name

    def add(self, body: str, *, is_terminal: bool = False) -> str:
        """Add a rule, or a terminal, unless one of the same body exists; return its name."""
        name = self._names.get(body)
        if name is None:
            name = self._names[body] = self.reserve(is_terminal=is_terminal)
            self.define(name, body)
        return name

    def define(self, name: str, body: str) -> None:
        """Define the rule of a reserved name."""
        self.rules.append(f"{name}: {body}")

    def up_to(self, marker: str, end: str, body: str = ANY) -> str:
        """Return a rule for a text without a marker, and for the literal that ends the text.

        Args:
            marker: Marker that the text must not contain, since a parser would stop there.
            end: Literal behind the text; it ends with the marker.
            body: Regular expressions of the text, in the syntax of a terminal.
        """
        terminal = f"({body} & ~/(?s:.*){escaped(marker)}(?s:.*)/)"
        place = None if self._split is None else self._split.search(end)
        literal = end if place is None else end[: place.start()]
        rest = self.text(end[len(literal) :])
        # In one terminal, since otherwise the place where the text ends is ambiguous.
        if literal:
            terminal += f" {quoted(literal)}"
        return f"{self.add(terminal, is_terminal=True)} {rest}".strip()


def quoted(text: str) -> str:
    """Return a text as a literal."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """Escape a text for a regular expression."""
    return "".join(
        each if each.isalnum() or ord(each) > 127 else f"\\x{ord(each):02x}" for each in text
    )


def json_rule(schema: Mapping[str, Any]) -> str:
    """Return the body of a rule for JSON that a schema allows; for an empty schema, any object."""
    whole = {**(schema or {"type": "object"}), "x-guidance": _ONE_LINE}
    return f"%json {json.dumps(whole, ensure_ascii=False)}"
