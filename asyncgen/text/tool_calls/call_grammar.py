"""Grammars of calls, in Lark as llguidance reads it, made from the words of a format.

Arguments follow the JSON schema that a tool declares: on one line, as `json.dumps` writes it, or as
the format writes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen.text.tool_calls.argument_schema import UnwritableError
from asyncgen.text.tool_calls.lark import LarkRules, json_rule, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.text.tool_calls.formats import CallSyntax, ReasoningFormat


class CallGrammar:
    """Writes the grammars of one request.

    Args:
        words: Of the format.
        schemas: Of each tool that may be called, the schema of its arguments.
        special: Ids of special tokens by their texts.
        is_single: Whether one call is all that there may be.

    Its methods raise ``UnwritableError`` where a schema says what this format cannot keep to.
    """

    def __init__(
        self,
        words: CallSyntax,
        schemas: Mapping[str, Mapping[str, Any]],
        special: Mapping[str, int],
        *,
        is_single: bool,
    ) -> None:
        self._words, self._schemas, self._is_single = words, schemas, is_single
        self._lark = LarkRules(special)

    def calls(self, reasoning: ReasoningFormat | None = None) -> str:
        """CallCollector and nothing else; with a format of reasoning, that may come before."""
        rules = self._rules("")
        if reasoning is None:
            return "\n".join(["start: calls", *rules])
        if self._lark.begins_special(reasoning.end):
            # No text spells a special token, so none can run over it.
            body = "thought: THOUGHT " + self._lark.text(reasoning.end)
        else:
            body = f"thought[suffix={quoted(reasoning.end)}]: THOUGHT"
        return "\n".join(
            [
                "start: think? calls",
                f"think: {self._lark.text(reasoning.begin)} thought SPACE?",
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
        """CallCollector, or a JSON value that a schema allows."""
        return "\n".join(
            ["start: calls | answer", f"answer: {json_rule(schema)}", *self._rules("")]
        )

    def _rules(self, begin: str) -> list[str]:
        """The rule ``calls`` and what it is made of, without a marker that was read already."""
        words, names = self._words, list(self._schemas)
        opening = words.opening
        first = [f"f{number}" for number in range(len(names))]
        later = [f"c{number}" for number in range(len(names))]
        parts = [self._lark.text(opening.removeprefix(begin)) if opening else "", "first"]
        if not self._is_single:
            parts.append(f"({self._lark.text(words.separator)} later)*")
        parts.append(self._lark.text(words.closing))
        rules = [f"calls: {' '.join(part for part in parts if part)}"]
        rules.append(f"first: {' | '.join(first)}")
        if not self._is_single:
            rules.append(f"later: {' | '.join(later)}")
        for number, name in enumerate(names):
            after = self._lark.text(words.after)
            whole = f"{words.before}{name}{words.between}"
            cut = whole if opening else whole.removeprefix(begin)
            rules.append(f"f{number}: {self._lark.text(cut)} a{number} {after}")
            if not self._is_single:
                rules.append(f"c{number}: {self._lark.text(whole)} a{number} {after}")
            rules.append(f"a{number}: {self._arguments(name)}")
        return rules + self._lark.rules

    def _arguments(self, name: str) -> str:
        """What the arguments of a tool look like."""
        write, schema = self._words.arguments, self._schemas[name]
        if write is None:
            return json_rule(schema)
        try:
            return write(self._lark, schema)
        except UnwritableError as error:
            raise UnwritableError(f"tool {name!r}: {error}") from None
