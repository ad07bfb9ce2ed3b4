"""Declare formats of tool calls and of reasoning, and the formats of reasoning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from asyncgen.text.tool_calls.call_collector import CallCollector
    from asyncgen.text.tool_calls.lark import LarkRules
    from asyncgen.text.tool_calls.text_scanner import IncrementalParse, TextScanner

ParseCalls: TypeAlias = "Callable[[TextScanner, CallCollector], IncrementalParse]"
"""Parses the text behind the marker, to the end of the last call that belongs to it."""

WriteArguments: TypeAlias = "Callable[[LarkRules, Mapping[str, Any]], str]"
"""Adds the rules of arguments that follow a schema, and returns the body of a rule for all of them;
raises `UnwritableError` where the grammar cannot keep to the schema."""


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """Text that a model writes around the name and the arguments of its calls.

    All calls of an answer are ``opening``, then each call as ``before`` name ``between`` arguments
    ``after``, with ``separator`` between two of them, then ``closing``, which does not begin with
    ``separator``: the lexer of a grammar could not tell them apart.

    Attributes:
        before: Text before the name.
        between: Text between name and arguments.
        after: Text after the arguments.
        opening: Text before the first call.
        separator: Text between two calls.
        closing: Text after the last call.
        arguments: Writer of the grammar of arguments that are no JSON.
        other_betweens: Further texts between name and arguments, which a call that begins freely
            may have.
    """

    before: str
    between: str
    after: str
    opening: str = ""
    separator: str = ""
    closing: str = ""
    arguments: WriteArguments | None = None
    other_betweens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """Format in which a family of models calls tools.

    Attributes:
        name: Name for the option ``tool_format``.
        signs: Groups of texts; a template that writes no calls, and has all texts of one group,
            is of this format.
        begin: Marker before a call; it is no part of the text for the user.
        parse: Parser of the text behind the marker; ``None`` for a format with a parser class.
        syntax: Text around name and arguments, from which the grammar of a call is made.
        markers: Further markers, which may be special tokens.
        at_start: Markers that count at the very beginning of an answer.
        bare: True if a call may also stand without its marker at the beginning of the answer.
        others: Further markers that may begin a call where its grammar is not enforced.
    """

    name: str
    signs: tuple[tuple[str, ...], ...]
    begin: str
    parse: ParseCalls | None
    syntax: CallSyntax
    markers: tuple[str, ...] = ()
    at_start: tuple[str, ...] = ()
    bare: bool = False
    others: tuple[str, ...] = ()

    def is_of(self, template: str) -> bool:
        """Tell whether the text of a template has the signs of this format."""
        return any(all(part in template for part in sign) for sign in self.signs)


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Markers around the reasoning that a family of models writes before it answers.

    Attributes:
        name: Name for the option ``reasoning_format``.
        begin: Marker before the reasoning.
        end: Marker after it.
        signs: Texts; a template that has one of them is of this format.
        forced: Text that ends the reasoning when a budget is used up; empty for ``end``.
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
        """Text that ends the reasoning when a budget is used up."""
        return self.forced or self.end

    def is_of(self, template: str) -> bool:
        """Tell whether a template marks reasoning in this format."""
        return any(sign in template for sign in self.signs)


HARMONY = ReasoningFormat(
    name="harmony",
    begin="<|channel|>analysis<|message|>",
    end="<|end|>",
    signs=("<|channel|>analysis",),
    forced="<|end|><|start|>assistant<|channel|>final<|message|>",
    markers=("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|return|>", "<|call|>")
    + ("<|constrain|>",),
)
"""gpt-oss: reasoning has its own channel."""

REASONING_FORMATS = (
    HARMONY,
    ReasoningFormat("gemma", "<|channel>thought\n", "<channel|>", ("<|channel>thought",)),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]", ("[THINK]",)),
    ReasoningFormat("seed", "<seed:think>", "</seed:think>", ("<seed:think>",)),
    ReasoningFormat("cohere", "<|START_THINKING|>", "<|END_THINKING|>", ("<|START_THINKING|>",)),
    # Qwen 3, DeepSeek R1, GLM 4.5, SmolLM 3, Granite, Nemotron and most others
    ReasoningFormat("think", "<think>", "</think>", ("<think>", "</think>")),
)
