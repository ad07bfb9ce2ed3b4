"""Find the formats of tool calls and reasoning of a model, by its chat template or by name."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeVar

from asyncgen.errors import InvalidRequestError
from asyncgen.text.response_template.template import read_template
from asyncgen.text.tool_calls import (
    gemma,
    harmony,
    invoke_formats,
    json_envelopes,
    json_formats,
    python_formats,
    tagged_formats,
)
from asyncgen.text.tool_calls.answer_parser import MarkerParser
from asyncgen.text.tool_calls.formats import HARMONY, REASONING_FORMATS
from asyncgen.text.tool_calls.harmony import HarmonyParser
from asyncgen.text.tool_calls.template_parser import (
    TemplateParser,
    has_calls,
    markers_of,
    reasoning_of,
)
from asyncgen.text.tool_calls.template_probe import NAME, reads, written_calls

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from asyncgen.text.response_template.template import ResponseTemplate
    from asyncgen.text.tool_calls.answer_parser import AnswerParser
    from asyncgen.text.tool_calls.call_collector import CallCollector
    from asyncgen.text.tool_calls.formats import ReasoningFormat, ToolFormat

F = TypeVar("F", "ToolFormat", "ReasoningFormat")

TOOL_FORMATS: tuple[ToolFormat, ...] = (
    harmony.FORMAT,
    json_formats.DEEPSEEK_FENCED,
    json_formats.DEEPSEEK,
    gemma.FORMAT,
    gemma.FUNCTION,
    json_formats.MISTRAL,
    json_formats.MISTRAL_LIST,
    *json_envelopes.FORMATS,
    *invoke_formats.FORMATS,
    *python_formats.FORMATS,
    json_formats.GRANITE,
    tagged_formats.GLM,
    tagged_formats.QWEN_CODER,
    json_formats.QWEN,
    json_formats.LLAMA,
)
"""Formats in the order in which they are tried: signs of a later one occur in earlier ones too."""

_MOST_SECONDS = 1.0
"""Seconds of the processor after which no further template of a model is asked for its calls."""

NONE = "none"
"""Name that switches parsing off."""

TOOL_NAMES = tuple(each.name for each in TOOL_FORMATS)
REASONING_NAMES = tuple(each.name for each in REASONING_FORMATS)


@dataclass(frozen=True, slots=True)
class ChatFormats:
    """The formats of a model.

    Attributes:
        tools: Format of its calls; ``None``: unknown or switched off.
        reasoning: Format of its reasoning; ``None``: unknown or switched off.
        response: Declaration of its answers, by which they are read; ``None``: by the formats.
            Then the formats say what a grammar writes, and where reasoning ends.
    """

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    response: ResponseTemplate | None = None

    @property
    def reads_calls(self) -> bool:
        """True if calls of tools are read."""
        return self.tools is not None if self.response is None else has_calls(self.response)

    def parser(
        self,
        calls: CallCollector,
        *,
        reads_reasoning: bool,
        in_reasoning: bool = False,
        prefix: str = "",
    ) -> AnswerParser:
        """Make a parser of one answer.

        Args:
            calls: Collector of the calls.
            reads_reasoning: Separate reasoning from the text.
            in_reasoning: The prompt has opened the reasoning already.
            prefix: What `opened_by` found in the prompt.
        """
        if self.response is not None:
            return TemplateParser(
                calls, self.response, reads_reasoning=reads_reasoning, prefix=prefix
            )
        if self.tools is harmony.FORMAT or self.reasoning is HARMONY:
            return HarmonyParser(calls, keeps_reasoning=not reads_reasoning)
        reasoning = self.reasoning if reads_reasoning else None
        return MarkerParser(
            calls, reasoning, self.tools, in_reasoning=in_reasoning and reads_reasoning
        )

    def opened_by(self, prompt: str) -> str:
        """Return the part of a prompt that a declaration of answers has to see."""
        return "" if self.response is None else self.response.behind_anchor(prompt)

    @property
    def markers(self) -> frozenset[str]:
        """All markers; those that are special tokens must be kept in the decoded text."""
        found: list[str] = []
        if self.response is not None:
            found += markers_of(self.response)
        if self.tools is not None:
            found += (self.tools.begin, *self.tools.markers)
        if self.reasoning is not None:
            found += (self.reasoning.begin, self.reasoning.end, *self.reasoning.markers)
        return frozenset(found)


NO_FORMATS = ChatFormats()
"""No formats: all of an answer is text."""


def check_formats(tool_format: str | None, reasoning_format: str | None) -> None:
    """Check the names of formats.

    Raises:
        InvalidRequestError: A name is unknown; lists the known ones.
    """
    _check("tool_format", tool_format, TOOL_NAMES)
    _check("reasoning_format", reasoning_format, REASONING_NAMES)


def find_formats(
    templates: str | Mapping[str, str] | None,
    tool_format: str | None = None,
    reasoning_format: str | None = None,
    response_template: Mapping[str, Any] | None = None,
) -> ChatFormats:
    """Find the formats of a model.

    Args:
        templates: Its chat template, or several by name.
        tool_format: Name of a format, or ``"none"``; ``None``: detect it from the templates.
        reasoning_format: The same.
        response_template: Its declaration of answers, which comes first where no format is named.

    Raises:
        InvalidRequestError: A name is unknown, or the declaration is malformed.
    """
    check_formats(tool_format, reasoning_format)
    texts = list(templates.values()) if isinstance(templates, Mapping) else [templates or ""]
    ends = time.thread_time() + _MOST_SECONDS
    if tool_format is None:
        order = _with_tools_first(templates) if isinstance(templates, Mapping) else texts
        asked = _in_time(order, ends)
        tools = next((found for text in asked if (found := _written_by(text))), None)
    else:
        tools = _found(TOOL_FORMATS, tool_format, "")
    formats = ChatFormats(tools, _found(REASONING_FORMATS, reasoning_format, "\n".join(texts)))
    if response_template is None or tool_format is not None or reasoning_format is not None:
        return formats
    return _declared(formats, _in_time(texts, ends), response_template)


def _in_time(texts: Iterable[str], ends: float) -> Iterator[str]:
    """Yield templates until the time for rendering them is over: each may take a second or two."""
    return takewhile(lambda _: time.thread_time() < ends, texts)


def _declared(
    found: ChatFormats, texts: Iterable[str], response_template: Mapping[str, Any]
) -> ChatFormats:
    """Let a declaration read the answers, and keep of the formats what agrees with it."""
    try:
        response = read_template(response_template)
    except InvalidRequestError as error:
        error.add_note("name a `tool_format` or a `reasoning_format` to load the model without it")
        raise
    declared = partial(TemplateParser, template=response, reads_reasoning=False)
    agrees = found.tools is not None and any(
        reads(declared, answer) for text in texts for answer in written_calls(text)
    )
    reasoning = reasoning_of(response)
    known = found.reasoning
    if known is not None and reasoning is not None and known.end == reasoning.end:
        reasoning = known
    return ChatFormats(found.tools if agrees else None, reasoning, response)


def _with_tools_first(templates: Mapping[str, str]) -> list[str]:
    """List templates in the order in which they are asked for their calls."""
    names = sorted(templates, key=lambda name: (name != "tool_use", name != "default"))
    return [templates[name] for name in names]


@lru_cache(maxsize=64)
def _written_by(template: str) -> ToolFormat | None:
    """Find the format in which a template writes calls.

    Of several that read a call back, the one that writes it alike is taken. A template that drops
    calls, or refuses them, is judged by the signs of the formats.
    """
    is_written = False
    signed = next((each for each in TOOL_FORMATS if each.is_of(template)), None)
    for answer in written_calls(template):
        is_written = True
        found = [each for each in TOOL_FORMATS if reads(partial(_reader, each), answer)]
        marked = [each for each in found if each.begin in answer]
        if not marked and signed not in found:
            continue  # bare JSON, while the template tells of markers
        found = marked or found
        return next((each for each in found if _begins_alike(each, answer)), found[0])
    return None if is_written else signed


def _reader(tools: ToolFormat, calls: CallCollector) -> AnswerParser:
    return ChatFormats(tools).parser(calls, reads_reasoning=False)


def _begins_alike(tools: ToolFormat, answer: str) -> bool:
    """Tell whether an answer has the text that a format writes up to the arguments."""
    syntax = tools.syntax
    head = syntax.opening + syntax.before + NAME + syntax.between
    return "".join(head.split()) in "".join(answer.split())


def _found(formats: tuple[F, ...], name: str | None, text: str) -> F | None:
    if name is None:
        return next((each for each in formats if each.is_of(text)), None)
    return next((each for each in formats if each.name == name), None)


def _check(parameter: str, name: str | None, names: tuple[str, ...]) -> None:
    if name is not None and name != NONE and name not in names:
        raise InvalidRequestError(parameter, name, f"one of {', '.join((*names, NONE))}")
