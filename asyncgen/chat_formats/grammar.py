"""Grammars of calls, in Lark as llguidance reads it, made from the words of a format.

Arguments follow the JSON schema that a tool declares, on one line, as `json.dumps` writes it. A
special token stands in a grammar by its id, as no text may spell it.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.chat_formats.base import CallWords, ReasoningFormat

_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class CallGrammar:
    """Writes the grammars of one request.

    Args:
        words: Of the format.
        schemas: Of each tool that may be called, the schema of its arguments.
        special: Ids of special tokens by their texts.
        is_single: Whether one call is all that there may be.
    """

    def __init__(
        self,
        words: CallWords,
        schemas: Mapping[str, Mapping[str, Any]],
        special: Mapping[str, int],
        *,
        is_single: bool,
    ) -> None:
        self._words, self._schemas, self._is_single = words, schemas, is_single
        self._special = special
        texts = sorted(special, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, texts))})") if texts else None

    def calls(self, reasoning: ReasoningFormat | None = None) -> str:
        """Calls and nothing else; with a format of reasoning, that may come before."""
        rules = self._rules("")
        if reasoning is None:
            return "\n".join(["start: calls", *rules])
        if self._split is not None and self._split.match(reasoning.end):
            # No text spells a special token, so none can run over it.
            body = "thought: THOUGHT " + self._text(reasoning.end)
        else:
            body = f"thought[suffix={_quoted(reasoning.end)}]: THOUGHT"
        return "\n".join(
            [
                "start: think? calls",
                f"think: {self._text(reasoning.begin)} thought SPACE?",
                body,
                "THOUGHT: /(?s:.*)/",
                r"SPACE: /[ \n]+/",
                *rules,
            ]
        )

    def rest(self, begin: str) -> str:
        """The rest of an answer behind the marker of its first call."""
        return "\n".join(["start: calls", *self._rules(begin)])

    def calls_or(self, schema: Mapping[str, Any]) -> str:
        """Calls, or a JSON value that a schema allows."""
        return "\n".join(["start: calls | answer", f"answer: {_json(schema)}", *self._rules("")])

    def _rules(self, begin: str) -> list[str]:
        """The rule ``calls`` and what it is made of, without a marker that was read already."""
        words, names = self._words, list(self._schemas)
        opening = words.opening
        first = [f"f{number}" for number in range(len(names))]
        later = [f"c{number}" for number in range(len(names))]
        parts = [self._text(opening.removeprefix(begin)) if opening else "", "first"]
        if not self._is_single:
            parts.append(f"({self._text(words.separator)} later)*")
        parts.append(self._text(words.closing))
        rules = [f"calls: {' '.join(part for part in parts if part)}"]
        rules.append(f"first: {' | '.join(first)}")
        if not self._is_single:
            rules.append(f"later: {' | '.join(later)}")
        for number, name in enumerate(names):
            after = self._text(words.after)
            whole = f"{words.before}{name}{words.between}"
            cut = whole if opening else whole.removeprefix(begin)
            rules.append(f"f{number}: {self._text(cut)} a{number} {after}")
            if not self._is_single:
                rules.append(f"c{number}: {self._text(whole)} a{number} {after}")
            rules.append(f"a{number}: {_json(self._schemas[name])}")
        return rules

    def _text(self, text: str) -> str:
        """A text as Lark has it; special tokens within by their ids."""
        pieces = [text] if self._split is None else self._split.split(text)
        return " ".join(
            f"<[{self._special[piece]}]>" if piece in self._special else _quoted(piece)
            for piece in pieces
            if piece
        )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json(schema: Mapping[str, Any]) -> str:
    """A value that a schema allows; without one, an object."""
    whole = {**(schema or {"type": "object"}), "x-guidance": _ONE_LINE}
    return f"%json {json.dumps(whole, ensure_ascii=False)}"
