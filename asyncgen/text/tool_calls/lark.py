"""Rules in Lark, as llguidance reads it: texts, special tokens, texts up to a marker, JSON.

A special token stands in a grammar by its id, as no text may spell it.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

ANY = "/(?s:.*)/"
"""A terminal for any text."""


class LarkRules:
    """Rules of one grammar, as they are asked for.

    Attributes:
        rules: All so far, one a line.
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
        """Whether a text begins with a special token."""
        return self._split is not None and self._split.match(text) is not None

    def text(self, text: str) -> str:
        """A text as Lark has it; special tokens within by their ids."""
        pieces = [text] if self._split is None else self._split.split(text)
        return " ".join(
            f"<[{self._special[piece]}]>" if piece in self._special else quoted(piece)
            for piece in pieces
            if piece
        )

    def reserve(self, *, is_terminal: bool = False) -> str:
        """Name a rule, or a terminal, that is to be added later."""
        name = f"{'V' if is_terminal else 'v'}{len(self._names)}"
        self._names[f"={name}"] = name
        return name

    def add(self, body: str, *, is_terminal: bool = False) -> str:
        """Add a rule, or a terminal; one of the same body is there already. Return its name."""
        name = self._names.get(body)
        if name is None:
            name = self._names[body] = self.reserve(is_terminal=is_terminal)
            self.define(name, body)
        return name

    def define(self, name: str, body: str) -> None:
        """Say what a reserved name stands for."""
        self.rules.append(f"{name}: {body}")

    def up_to(self, marker: str, end: str, body: str = ANY) -> str:
        """A text in which a marker does not occur, and what ends it.

        Args:
            marker: What the text must not hold: whoever reads it stops there.
            end: Stands behind the text, and ends with the marker.
            body: Regular expressions of the text, as a terminal has them.
        """
        terminal = f"({body} & ~/(?s:.*){escaped(marker)}(?s:.*)/)"
        place = None if self._split is None else self._split.search(end)
        literal = end if place is None else end[: place.start()]
        rest = self.text(end[len(literal) :])
        # In one terminal, since nothing else tells where the text ends and its end begins.
        if literal:
            terminal += f" {quoted(literal)}"
        return f"{self.add(terminal, is_terminal=True)} {rest}".strip()


def quoted(text: str) -> str:
    """A literal."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """A text within a regular expression."""
    return "".join(
        each if each.isalnum() or ord(each) > 127 else f"\\x{ord(each):02x}" for each in text
    )


def json_rule(schema: Mapping[str, Any]) -> str:
    """A value that a schema allows; without one, an object."""
    whole = {**(schema or {"type": "object"}), "x-guidance": _ONE_LINE}
    return f"%json {json.dumps(whole, ensure_ascii=False)}"
