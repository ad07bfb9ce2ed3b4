"""Parse the answers of gpt-oss: messages on channels, ``<|channel|>…<|message|>…<|end|>``.

``analysis`` is reasoning; ``commentary`` to a function is a call; all other messages are for the
user.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from asyncgen.text.tool_calls.answer_parser import AnswerParser
from asyncgen.text.tool_calls.call_collector import EnoughCallsError
from asyncgen.text.tool_calls.formats import CallSyntax, ToolFormat
from asyncgen.text.tool_calls.text_scanner import MalformedCallError

if TYPE_CHECKING:
    from asyncgen.text.tool_calls.call_collector import CallCollector
    from asyncgen.text.tool_calls.text_scanner import IncrementalParse

_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_HEADS = ("<|start|>", "<|channel|>")
_BODY_ENDS = (*_ENDS, "<|start|>", "<|channel|>")
_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>(\w+)")

FORMAT = ToolFormat(
    name="harmony",
    signs=(("<|channel|>", "<|message|>"),),
    begin="<|channel|>commentary to=functions.",
    parse=None,
    syntax=CallSyntax(
        before="<|channel|>commentary to=functions.",
        between=" <|constrain|>json<|message|>",
        after="",  # ``<|call|>`` ends the answer
    ),
    markers=(*_BODY_ENDS, "<|message|>", "<|constrain|>"),
)


class HarmonyParser(AnswerParser):
    """Parser of messages on channels; see `AnswerParser`."""

    def __init__(self, calls: CallCollector, *, keeps_reasoning: bool) -> None:
        """Begin behind ``<|start|>assistant``.

        Args:
            calls: Collector of the calls.
            keeps_reasoning: Leave reasoning in the text for the user.
        """
        super().__init__(calls)
        self._keeps = keeps_reasoning
        self._out: list[str] = []
        self._in_reasoning = False
        self._parse: IncrementalParse | None = self._messages()

    @property
    def in_reasoning(self) -> bool:
        """True within the reasoning."""
        return self._in_reasoning

    def _read(self) -> str:
        try:
            if self._parse is not None and not self.is_over:
                next(self._parse)
        except StopIteration:
            self._parse = None
        text = "".join(self._out)
        self._out.clear()
        return text

    def _messages(self) -> IncrementalParse:
        """Read message after message."""
        scanner = self._scanner
        while True:
            while not scanner.rest and not scanner.is_complete:
                yield
            if not scanner.rest:
                return
            is_head = yield from self._is_head()
            if not is_head:
                yield from scanner.stream_until(self._out.append, *_HEADS, or_end=True)
                continue
            head: list[str] = []
            yield from scanner.stream_until(head.append, "<|message|>", or_end=True)
            yield from scanner.follows("<|message|>")
            yield from self._body("".join(head))
            for end in _ENDS:
                yield from scanner.follows(end)

    def _is_head(self) -> IncrementalParse:
        """Tell whether a head follows; the first one may begin with the recipient."""
        rest = self._scanner.rest
        heads = (*_HEADS, " to=")
        while any(head.startswith(rest) and head != rest for head in heads):
            if self._scanner.is_complete:
                return False
            yield
            rest = self._scanner.rest
        return rest.startswith(heads)

    def _body(self, head: str) -> IncrementalParse:
        """Read the content of a message."""
        scanner, found = self._scanner, _CHANNEL.search(head)
        recipient = _RECIPIENT.search(head)
        if recipient is not None and self._calls.is_sought:
            yield from self._call(recipient[1], head)
            return
        put = self._out.append
        if found is not None and found[1] == "analysis" and not self._keeps:
            self._in_reasoning, put = True, self._reasoning.append
        yield from scanner.stream_until(put, *_BODY_ENDS, or_end=True)
        self._in_reasoning = False

    def _call(self, name: str, head: str) -> IncrementalParse:
        """Read a call; one that is malformed becomes text."""
        scanner, calls = self._scanner, self._calls
        try:
            calls.open(f"{head}<|message|>")
            calls.begin(scanner)
            calls.name(name)
            yield from scanner.stream_until(calls.arguments, *_BODY_ENDS, or_end=True)
            calls.end()
        except EnoughCallsError:
            self.is_over = True
        except MalformedCallError as error:
            calls.fail(str(error))
            self._out.append(scanner.raw())
        self.is_over = self.is_over or (calls.is_single and calls.count > 0)
        if self.is_over:
            yield
