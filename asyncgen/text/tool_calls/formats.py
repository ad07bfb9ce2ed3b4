"""What a format of calls, and one of reasoning, says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from asyncgen.text.tool_calls.call_collector import CallCollector
    from asyncgen.text.tool_calls.lark import LarkRules
    from asyncgen.text.tool_calls.text_scanner import Reading, TextScanner

ReadCalls: TypeAlias = "Callable[[TextScanner, CallCollector], Reading]"
"""Reads what stands behind the marker, to the end of the last call that belongs to it."""

WriteArguments: TypeAlias = "Callable[[LarkRules, Mapping[str, Any]], str]"
"""Adds the rules of arguments that follow a schema, and returns what stands for them all; raises
`UnwritableError` where the schema says what cannot be kept to."""


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """The words that a model writes around the name and the arguments of its calls.

    All calls of an answer are ``opening``, then each call as ``before`` name ``between`` arguments
    ``after``, with ``separator`` between two of them, then ``closing``.

    Attributes:
        before: In front of the name.
        between: From the name to the arguments.
        after: Behind the arguments.
        opening: In front of the first call.
        separator: Between two calls.
        closing: Behind the last call.
        arguments: Writes the grammar of arguments that are no JSON.
    """

    before: str
    between: str
    after: str
    opening: str = ""
    separator: str = ""
    closing: str = ""
    arguments: WriteArguments | None = None


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family of models calls tools.

    Attributes:
        name: What ``tool_format`` calls it.
        signs: A template that has one of these texts, each of them complete, is of this format.
        begin: The marker behind which a call is read; it is no part of the text.
        read: Reads what stands behind the marker; ``None`` where a reader of its own does.
        words: From which the grammar of a call is made.
        markers: Further markers, which may be special tokens.
        bare: Whether a call may also stand without its marker, where the answer begins.
    """

    name: str
    signs: tuple[tuple[str, ...], ...]
    begin: str
    read: ReadCalls | None
    words: CallSyntax
    markers: tuple[str, ...] = ()
    bare: bool = False

    def is_of(self, template: str) -> bool:
        """Whether a template writes calls in this format."""
        return any(all(part in template for part in sign) for sign in self.signs)


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a family of models marks what it thinks before it answers.

    Attributes:
        name: What ``reasoning_format`` calls it.
        begin: The marker in front.
        end: The marker behind.
        signs: A template that has one of these texts is of this format.
        forced: What ends the reasoning where a budget is used up; empty for ``end``.
        markers: Further markers, which may be special tokens.
    """

    name: str
    begin: str
    end: str
    signs: tuple[str, ...]
    forced: str = ""
    markers: tuple[str, ...] = ()

    @property
    def ending(self) -> str:
        """What is written where the reasoning is ended."""
        return self.forced or self.end

    def is_of(self, template: str) -> bool:
        """Whether a template marks reasoning in this format."""
        return any(sign in template for sign in self.signs)
