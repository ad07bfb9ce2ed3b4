"""Parse an answer by a response template: text for the user, reasoning and calls, as it grows.

The regions are those of `ResponseParser`. Two things differ, since nothing that a model says may be
lost: a call that is malformed is text and an error, and every region of text is passed on, where a
message keeps the last one.
"""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError
from asyncgen.text.response_template.patterns import Literals, Pattern
from asyncgen.text.response_template.regions import RegionSplitter, Step
from asyncgen.text.response_template.response_parser import field_value, typed
from asyncgen.text.tool_calls.answer_parser import AnswerParser
from asyncgen.text.tool_calls.call_collector import EnoughCallsError
from asyncgen.text.tool_calls.formats import ReasoningFormat
from asyncgen.text.tool_calls.text_scanner import MalformedCallError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from asyncgen.text.response_template.regions import Change
    from asyncgen.text.response_template.template import Field, ResponseTemplate
    from asyncgen.text.tool_calls.call_collector import CallCollector

_CALLS = "tool_calls"
_REASONING = ("reasoning_content", "reasoning", "thinking")


def has_calls(template: ResponseTemplate) -> bool:
    """Tell whether a template declares calls."""
    return _CALLS in template.fields


def reasoning_of(template: ResponseTemplate) -> ReasoningFormat | None:
    """Return the markers of the reasoning, where a template declares them as plain texts."""
    for name in _REASONING:
        field = template.fields.get(name)
        if field is None:
            continue
        begin, end = field.open, field.close
        if isinstance(begin, Literals) and isinstance(end, Literals):
            return ReasoningFormat("response_template", begin.texts[0], end.texts[0], ())
    return None


def markers_of(template: ResponseTemplate) -> frozenset[str]:
    """Return texts in which every special token stands that a template looks for."""
    found: set[str] = set()
    for field in template.fields.values():
        for delimiter in (field.open, field.close, field.content_args.get("tag_pattern")):
            if isinstance(delimiter, Literals):
                found.update(delimiter.texts)
            elif isinstance(delimiter, Pattern):
                found.add(delimiter.source.replace("\\", ""))
        found.update(chain.from_iterable(field.content_args.get("string_delims") or ()))
    return frozenset(found)


class TemplateParser(AnswerParser):
    """Parser of one answer; see `AnswerParser`."""

    def __init__(
        self,
        calls: CallCollector,
        template: ResponseTemplate,
        *,
        reads_reasoning: bool,
        prefix: str = "",
    ) -> None:
        """Begin behind the prompt.

        Args:
            calls: Collector of the calls.
            template: The declaration.
            reads_reasoning: Separate reasoning from the text.
            prefix: The part of the prompt that belongs to the message.
        """
        super().__init__(calls)
        self._reads_reasoning = reads_reasoning
        self._splitter = RegionSplitter(template)
        self._body: list[str] = []
        self._raw: list[str] = []
        self._outside: list[str] = []
        self._has_region = self._is_ended = False
        self._space, self._is_start, self._is_raw = "", True, False
        if prefix:
            self._pass_on(self._splitter.put(prefix))
            self._reasoning.clear()
            self._has_region, self._space = False, ""

    @property
    def in_reasoning(self) -> bool:
        """True within the reasoning."""
        field = self._splitter.current
        return field is not None and field.name in _REASONING

    def _read(self) -> str:
        text, self._scanner.rest = self._scanner.rest, ""
        if self._is_ended or self.is_over:
            return ""
        changes: Iterable[Change] = self._splitter.put(text)
        if self._scanner.is_complete:
            self._is_ended = True
            changes = chain(changes, self._splitter.finish())
        out = self._pass_on(changes)
        if self._is_ended and not self._has_region:
            out += "".join(self._outside)  # no delimiter at all: it is text as it stands
        return out

    def _pass_on(self, changes: Iterable[Change]) -> str:
        """Pass the text of regions on; return that for the user."""
        out: list[str] = []
        for step, field, text, captures in changes:
            if self.is_over:
                break
            if field is None:
                self._pass_outside(step, text)
            elif field.name == _CALLS and self._calls.is_sought:
                self._has_region = True
                self._take_call(step, field, text, captures, out)
            elif field.name in _REASONING and self._reads_reasoning:
                self._has_region = True
                self._take_text(step, text, self._reasoning)
            elif field.name in (_CALLS, *_REASONING):
                self._has_region = True
                self._take_raw(text, out)
            else:
                self._has_region = True
                self._take_text(step, text, out)
        return "".join(out)

    def _pass_outside(self, step: Step, text: str) -> None:
        """Keep text of no field, until a region shows that it is none of the message."""
        if step is Step.CHUNK and not self._has_region:
            self._outside.append(text)

    def _take_text(self, step: Step, text: str, out: list[str]) -> None:
        """Pass the text of a region on, without the white space next to a delimiter."""
        if step is Step.OPEN:
            self._is_start, self._is_raw = not self._is_raw, False
        if step is not Step.CHUNK:
            return
        if self._is_start:
            self._space = ""
        whole = text.lstrip() if self._is_start else self._space + text
        kept = whole.rstrip()
        self._space = whole[len(kept) :]
        if kept:
            self._is_start = False
            out.append(kept)

    def _take_raw(self, text: str, out: list[str]) -> None:
        """Pass a region on that is not told apart, as it stands, with its delimiters."""
        if text:
            out.append(self._space + text)
            self._space, self._is_raw = "", True

    def _take_call(
        self, step: Step, field: Field, text: str, captures: Mapping[str, str], out: list[str]
    ) -> None:
        """Collect the text of a call, and read it where it is complete."""
        self._space, self._is_raw = "", False
        if step is Step.OPEN:
            self._body, self._raw = [], []
        self._raw.append(text)
        if step is Step.CHUNK:
            self._body.append(text)
        if step is not Step.CLOSE:
            return
        calls = self._calls
        try:
            calls.begin(self._scanner)
            value = field_value(field, "".join(self._body), captures)
            if value == []:
                calls.undo()
            for number, each in enumerate(value if isinstance(value, list) else [value]):
                if number:
                    calls.begin(self._scanner)
                self._read_call(each)
        except EnoughCallsError:
            self.is_over = True
        except (MalformedCallError, InvalidRequestError) as error:
            calls.fail(str(error))
            out.append("".join(self._raw))
        self.is_over = self.is_over or (calls.is_single and calls.count > 0)

    def _read_call(self, value: Any) -> None:
        """Read one call of the form that messages have; it has begun."""
        calls = self._calls
        schemas = {
            name: schema["properties"]
            for name, schema in calls.parameters.items()
            if isinstance(schema.get("properties"), dict)
        }
        call = typed(value, schemas)
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise MalformedCallError("a call has no name")
        calls.name(function["name"])
        arguments = function.get("arguments", {})
        try:
            is_text = isinstance(arguments, str)
            calls.arguments(
                arguments if is_text else json.dumps(arguments, ensure_ascii=False, allow_nan=False)
            )
        except (TypeError, ValueError) as error:
            raise MalformedCallError(f"the arguments are no JSON: {error}") from None
        calls.end()
