"""Make grammars of tool calls, in llguidance's Lark, from the syntax of a format.

Arguments follow the JSON schema that a tool declares: on one line, as `json.dumps` writes it, or in
the syntax of the format.
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
        syntax: Syntax of the format.
        schemas: Schema of the arguments of each tool that may be called.
        special: Ids of special tokens by their texts.
        is_single: Allow one call at most.

    Its methods raise ``UnwritableError`` for a schema that this format cannot enforce.
    """

    def __init__(
        self,
        syntax: CallSyntax,
        schemas: Mapping[str, Mapping[str, Any]],
        special: Mapping[str, int],
        *,
        is_single: bool,
    ) -> None:
        self._syntax, self._schemas, self._is_single = syntax, schemas, is_single
        self._lark = LarkRules(special)

    def calls(self, reasoning: ReasoningFormat | None = None) -> str:
        """Return the grammar of calls alone; with a format of reasoning, that may come before."""
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
        """Return the grammar of an answer from behind the marker of its first call."""
        return "\n".join(["start: calls", *self._rules(begin)])

    def calls_or(self, schema: Mapping[str, Any]) -> str:
        """Return the grammar of calls, or of a JSON value that a schema allows."""
        return "\n".join(
            ["start: calls | answer", f"answer: {json_rule(schema)}", *self._rules("")]
        )

    def _rules(self, begin: str) -> list[str]:
        """Return the rule ``calls`` and its parts, without a marker that was read already."""
        syntax, names = self._syntax, list(self._schemas)
        opening = syntax.opening
        first = [f"f{number}" for number in range(len(names))]
        later = [f"c{number}" for number in range(len(names))]
        parts = [self._lark.text(opening.removeprefix(begin)) if opening else "", "first"]
        if not self._is_single:
            parts.append(f"({self._lark.text(syntax.separator)} later)*")
        parts.append(self._lark.text(syntax.closing))
        rules = [f"calls: {' '.join(part for part in parts if part)}"]
        rules.append(f"first: {' | '.join(first)}")
        if not self._is_single:
            rules.append(f"later: {' | '.join(later)}")
        betweens = (syntax.between, *(syntax.other_betweens if begin else ()))
        for number, name in enumerate(names):
            after = self._lark.text(syntax.after)
            whole = f"{syntax.before}{name}{syntax.between}"
            wholes = [f"{syntax.before}{name}{between}" for between in betweens]
            cuts = wholes if opening else [each.removeprefix(begin) for each in wholes]
            heads = " | ".join(map(self._lark.text, cuts))
            rules.append(f"f{number}: ({heads}) a{number} {after}")
            if not self._is_single:
                rules.append(f"c{number}: {self._lark.text(whole)} a{number} {after}")
            rules.append(f"a{number}: {self._arguments(name)}")
        return rules + self._lark.rules

    def _arguments(self, name: str) -> str:
        """Return the body of the rule for the arguments of a tool."""
        write, schema = self._syntax.arguments, self._schemas[name]
        if write is None:
            return json_rule(schema)
        try:
            return write(self._lark, schema)
        except UnwritableError as error:
            raise UnwritableError(f"tool {name!r}: {error}") from None
