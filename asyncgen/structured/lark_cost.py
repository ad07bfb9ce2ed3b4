"""Bound the cost of a Lark grammar from its text, before the grammar engine sees it.

A terminal is one expression, whatever terminals it refers to: fourteen that each hold the next one
twice took 3 seconds and 1 GB. Schemas within a grammar are checked like others.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from asyncgen.structured.pattern_cost import MOST_OPTIONAL_PARTS, cost_problem, optional_parts
from asyncgen.structured.schema_support import UnsupportedSchemaError, check_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOKEN = re.compile(
    r"(?P<newline>(?:\r?\n)+)|(?P<space>[ \t]+)|(?P<comment>(?:\#|//)[^\n]*)"
    r'|(?P<string>"(?:\\.|[^"\\\n])*"i?)|(?P<regex>/(?:\\.|[^/\\])+/[imslux]*)'
    r"|(?P<json>%json\b)|(?P<directive>%\w+)|(?P<special><[^<>\s]+>)|(?P<reference>@[\w-]+)"
    r"|(?P<word>[!?]?\w[\w-]*)|(?P<mark>.)",
    re.DOTALL,
)
_DECODER = json.JSONDecoder()


class _Token(NamedTuple):
    kind: str
    text: str
    place: int


class LarkCost:
    """What the text of a grammar tells about its cost.

    Attributes:
        problem: What is wrong with it; ``None`` if nothing is.
        products: Names of the terminals that intersect or negate expressions, with those that
            refer to them.
        terminals: The definitions of all terminals, with what is imported, as text.
    """

    def __init__(self, text: str) -> None:
        """Read a grammar.

        Args:
            text: In the Lark of llguidance. What it does not take, it refuses by itself.
        """
        self._text = text
        self._weights: dict[str, int] = {}
        tokens, schemas = _tokens(text)
        self._bodies: dict[str, list[_Token]] = {}
        for name, body in _definitions(tokens):
            self._bodies.setdefault(name, []).extend(body)
        self.products = [name for name in self._bodies if _is_terminal(name) and self._joins(name)]
        self.terminals = "\n".join(self._terminal_texts(tokens))
        self.problem = self._problem(schemas)

    def _problem(self, schemas: list[object]) -> str | None:
        for name, body in self._bodies.items():
            if not _is_terminal(name) and _joins(body):
                return (
                    f"`&` and `~` in the rule {name[:40]!r}: only a terminal, as `NAME`, has them"
                )
        options = []
        try:
            for schema in schemas:
                if isinstance(schema, dict):  # expressions for white space
                    options.append(optional_parts(json.dumps(schema.pop("x-guidance", None))))
                check_schema(schema)
        except (UnsupportedSchemaError, RecursionError) as error:
            return f"`%json`: {error}"
        inline = [
            _parts_of(token)
            for name, body in self._bodies.items()
            if not _is_terminal(name)
            for token in body
            if token.kind == "regex"
        ]
        return cost_problem(
            [*map(self._weight, filter(_is_terminal, self._bodies)), *inline, *options]
        )

    def _weight(self, name: str, within: tuple[str, ...] = ()) -> int:
        """Count the optional parts of a terminal, of those that it refers to as well."""
        if name not in self._weights:
            if name in within or len(within) > MOST_OPTIONAL_PARTS:
                return 0  # a circle, which is refused
            total = sum(self._weights_of(self._bodies.get(name, []), (*within, name)))
            self._weights[name] = min(total, MOST_OPTIONAL_PARTS + 1)
        return self._weights[name]

    def _weights_of(self, body: list[_Token], within: tuple[str, ...]) -> Iterator[int]:
        for place, token in enumerate(body):
            if token.kind == "regex":
                yield _parts_of(token)
            elif token.kind == "word" and _is_terminal(token.text):
                yield self._weight(token.text, within)
            elif token.kind == "mark" and token.text in "?*{~":
                yield 1
            elif token.text == "|" and _stands_at_edge(body, place):
                yield 1

    def _joins(self, name: str) -> bool:
        """Tell whether a terminal intersects or negates, itself or through others."""
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            body = self._bodies.get(waiting.pop(), [])
            if _joins(body):
                return True
            further = {each.text for each in body if each.kind == "word"} - seen
            seen |= further
            waiting += further
        return False

    def _terminal_texts(self, tokens: list[_Token]) -> Iterator[str]:
        places = [place for place, _, _ in _starts(tokens)]
        for place, token in enumerate(tokens):
            if token.kind == "directive" and token.text == "%import":
                yield self._text[token.place :].partition("\n")[0]
            if token.kind == "word" and place in places and _is_terminal(token.text):
                after = next((each for each in places if each > place), None)
                end = len(self._text) if after is None else tokens[after].place
                directive = next(
                    (
                        each.place
                        for each in tokens[place:after]
                        if each.kind == "directive" and each.text != "%regex"
                    ),
                    end,
                )
                yield self._text[token.place : min(end, directive)]


def _tokens(text: str) -> tuple[list[_Token], list[object]]:
    """Split a grammar into tokens, without spaces and comments, and read the schemas in it."""
    tokens: list[_Token] = []
    schemas: list[object] = []
    place = 0
    while (found := _TOKEN.match(text, place)) is not None:
        kind = found.lastgroup or ""
        place = found.end()
        if kind not in ("space", "comment"):
            tokens.append(_Token(kind, found[0], found.start()))
        if kind in ("json", "directive"):
            begin = len(text) - len(text[place:].lstrip()) if text[place:].strip() else place
            if text[begin : begin + 1] in tuple('{[tf"'):
                try:
                    schema, place = _DECODER.raw_decode(text, begin)
                except (ValueError, RecursionError):
                    continue
                if kind == "json":
                    schemas.append(schema)
    return tokens, schemas


def _starts(tokens: list[_Token]) -> Iterator[tuple[int, int, str]]:
    """Yield of each definition the place of its name and of its colon, and the name."""
    line = 0
    for place, token in enumerate(tokens):
        if token.kind == "newline":
            line = place + 1
        elif token.text == ":" and token.kind == "mark" and line < place:
            if tokens[line].kind == "word":
                yield line, place, tokens[line].text.lstrip("!?")
            line = len(tokens)


def _definitions(tokens: list[_Token]) -> Iterator[tuple[str, list[_Token]]]:
    """Yield of each definition the name and the tokens of its body."""
    starts = list(_starts(tokens))
    ends = [*(place for place, _, _ in starts[1:]), len(tokens)]
    for (first, colon, name), end in zip(starts, ends, strict=False):
        body = [each for each in tokens[colon + 1 : end] if each.kind != "newline"]
        attributes = [each for each in tokens[first:colon] if each.kind == "regex"]
        yield name, attributes + body


def _parts_of(regex: _Token) -> int:
    """Count the optional parts of an expression between slashes, with flags behind it."""
    body, _, flags = regex.text[1:].rpartition("/")
    return optional_parts(f"(?x){body}" if "x" in flags else body)


def _is_terminal(name: str) -> bool:
    return name.lstrip("_!?")[:1].isupper()


def _joins(body: list[_Token]) -> bool:
    """Tell whether a body intersects or negates; ``x ~ 3`` repeats."""
    for place, token in enumerate(body):
        if token.kind == "mark" and token.text in "&~":
            after = body[place + 1].text if place + 1 < len(body) else ""
            if token.text == "&" or not after.isdigit():
                return True
    return False


def _stands_at_edge(body: list[_Token], place: int) -> bool:
    """Tell whether an alternative beside a bar is empty."""
    before = body[place - 1].text if place else "("
    after = body[place + 1].text if place + 1 < len(body) else ")"
    return before in ("(", "|") or after in (")", "|")
