"""Write grammars of arguments between tags, one by one, in the order of the schema.

A text is written as it is, up to the tag that ends it; all other values are JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asyncgen.text.tool_calls.argument_schema import UnwritableError, members, text_body, texts_of
from asyncgen.text.tool_calls.call_collector import is_text
from asyncgen.text.tool_calls.lark import json_rule, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.text.tool_calls.lark import LarkRules

_KEY = r"/[A-Za-z0-9_.\-]+/"


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags around an argument.

    Attributes:
        before: Tag before the name.
        between: Tags between name and value.
        end: Tag after the value.
        after: Text after that tag.
        is_framed: Line ends, which are no part of the value, stand around it.
    """

    before: str
    between: str
    end: str
    after: str
    is_framed: bool

    def write(self, lark: LarkRules, schema: Mapping[str, Any]) -> str:
        """Write the rules for the arguments of a tool.

        Args:
            lark: Rules of the grammar, to which those of the arguments are added.
            schema: Schema of the arguments.

        Returns:
            The body of a rule for all arguments.

        Raises:
            UnwritableError: The schema cannot be enforced.
        """
        found = members(schema)
        if found is None:
            key = lark.add(_KEY, is_terminal=True)
            start, value = lark.text(self.before), self._text(lark, {})
            return f"({start} {key} {lark.text(self._before_value)} {value})*"
        parts = []
        for each in found:
            if self.between[:1] in each.key or each.key != each.key.strip() or not each.key:
                raise UnwritableError(f"the argument {each.key!r} has a name that tags cannot hold")
            try:
                value = self._value(lark, each.schema, schema)
            except UnwritableError as error:
                raise UnwritableError(f"argument {each.key!r}: {error}") from None
            before = lark.text(self.before + each.key + self._before_value)
            parts.append(lark.add(f"{before} {value}") + ("" if each.is_required else "?"))
        return " ".join(parts) or '""'

    @property
    def _before_value(self) -> str:
        return self.between + ("\n" if self.is_framed else "")

    @property
    def _after_value(self) -> str:
        return ("\n" if self.is_framed else "") + self.end

    def _value(self, lark: LarkRules, schema: Any, root: Mapping[str, Any]) -> str:
        if not isinstance(schema, dict):
            return self._text(lark, {})
        if is_text(schema):
            return self._text(lark, schema)
        named = {name: root[name] for name in ("$defs", "definitions") if name in root}
        value = lark.add(json_rule({**named, **schema}))
        return f"{value} {lark.text(self._after_value + self.after)}"

    def _text(self, lark: LarkRules, schema: Mapping[str, Any]) -> str:
        """Return the body of a rule for a text that a schema allows, and its end."""
        listed, after = texts_of(schema), lark.text(self.after)
        if listed is not None:
            for text in listed:
                is_cut = not self.is_framed and text.strip("\n") != text
                if self.end in text or is_cut:
                    raise UnwritableError(f"{text!r} cannot be told from its tags")
            choices = " | ".join(quoted(text) for text in listed)
            return f"({choices}) {lark.text(self._after_value)} {after}".strip()
        body = text_body(schema)
        if schema.keys() & {"minLength", "maxLength"} and not self.is_framed:
            body += r" & ~/\n(?s:.*)/ & ~/(?s:.*)\n/"  # whose line ends would be lost
        return f"{lark.up_to(self.end, self._after_value, body)} {after}".strip()
