"""Which formats a model has, told from its chat template or said by whoever loads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from asyncgen.errors import InvalidRequestError
from asyncgen.text.tool_calls import (
    deepseek,
    gemma,
    glm,
    granite,
    harmony,
    llama,
    mistral,
    qwen,
    qwen_coder,
)
from asyncgen.text.tool_calls.answer_parser import MarkerParser
from asyncgen.text.tool_calls.harmony import HarmonyParser
from asyncgen.text.tool_calls.reasoning import HARMONY, REASONING_FORMATS

if TYPE_CHECKING:
    from asyncgen.text.tool_calls.answer_parser import AnswerParser
    from asyncgen.text.tool_calls.call_collector import CallCollector
    from asyncgen.text.tool_calls.formats import ReasoningFormat, ToolFormat

F = TypeVar("F", "ToolFormat", "ReasoningFormat")

TOOL_FORMATS: tuple[ToolFormat, ...] = (
    harmony.FORMAT,
    deepseek.FENCED,
    deepseek.FORMAT,
    gemma.FORMAT,
    gemma.FUNCTION,
    mistral.FORMAT,
    mistral.LIST,
    granite.FORMAT,
    glm.FORMAT,
    qwen_coder.FORMAT,
    qwen.FORMAT,
    llama.FORMAT,
)
"""In the order in which templates are looked at: signs of a later one occur in earlier ones too."""

NONE = "none"
"""What switches reading off."""

TOOL_NAMES = tuple(each.name for each in TOOL_FORMATS)
REASONING_NAMES = tuple(each.name for each in REASONING_FORMATS)


@dataclass(frozen=True, slots=True)
class ChatFormats:
    """How a model writes calls and reasoning.

    Attributes:
        tools: Its calls; ``None`` where that is not known, or switched off.
        reasoning: Its reasoning; the same.
    """

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None

    def reader(
        self, calls: CallCollector, *, reads_reasoning: bool, in_reasoning: bool = False
    ) -> AnswerParser:
        """Make what takes an answer apart.

        Args:
            calls: Takes in what is read of calls.
            reads_reasoning: Whether reasoning is told apart.
            in_reasoning: Whether the prompt has opened the reasoning already.
        """
        if self.tools is harmony.FORMAT or self.reasoning is HARMONY:
            return HarmonyParser(calls, keeps_reasoning=not reads_reasoning)
        reasoning = self.reasoning if reads_reasoning else None
        return MarkerParser(
            calls, reasoning, self.tools, in_reasoning=in_reasoning and reads_reasoning
        )

    @property
    def markers(self) -> frozenset[str]:
        """All markers, which may be special tokens and are read all the same."""
        found: list[str] = []
        if self.tools is not None:
            found += (self.tools.begin, *self.tools.markers)
        if self.reasoning is not None:
            found += (self.reasoning.begin, self.reasoning.end, *self.reasoning.markers)
        return frozenset(found)


NO_FORMATS = ChatFormats()
"""Where all of an answer is text."""


def check_formats(tool_format: str | None, reasoning_format: str | None) -> None:
    """Refuse names that are none.

    Raises:
        InvalidRequestError: Says which there are.
    """
    _check("tool_format", tool_format, TOOL_NAMES)
    _check("reasoning_format", reasoning_format, REASONING_NAMES)


def find_formats(
    templates: str | Mapping[str, str] | None,
    tool_format: str | None = None,
    reasoning_format: str | None = None,
) -> ChatFormats:
    """Find the formats of a model.

    Args:
        templates: Its chat template, or several by name.
        tool_format: Name of a format, or ``"none"``; ``None`` looks at the templates.
        reasoning_format: The same.

    Raises:
        InvalidRequestError: A name that is none.
    """
    check_formats(tool_format, reasoning_format)
    texts = templates.values() if isinstance(templates, Mapping) else [templates or ""]
    text = "\n".join(texts)
    return ChatFormats(
        _found(TOOL_FORMATS, tool_format, text), _found(REASONING_FORMATS, reasoning_format, text)
    )


def _found(formats: tuple[F, ...], name: str | None, text: str) -> F | None:
    if name is None:
        return next((each for each in formats if each.is_of(text)), None)
    return next((each for each in formats if each.name == name), None)


def _check(parameter: str, name: str | None, names: tuple[str, ...]) -> None:
    if name is not None and name != NONE and name not in names:
        raise InvalidRequestError(parameter, name, f"one of {', '.join((*names, NONE))}")
