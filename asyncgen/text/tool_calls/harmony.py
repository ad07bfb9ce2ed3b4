"""gpt-oss: messages on channels, each ``<|channel|>…<|message|>…<|end|>``.

``analysis`` is reasoning; ``commentary`` that is addressed to a function is a call; all other
messages are for the user.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from asyncgen.text.tool_calls.call_collector import EnoughCallsError
from asyncgen.text.tool_calls.formats import CallSyntax, ToolFormat
from asyncgen.text.tool_calls.text_scanner import MalformedCallError, TextScanner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.text.tool_calls.call_collector import CallCollector
    from asyncgen.text.tool_calls.text_scanner import Reading
    from asyncgen.types import ToolCallDelta

_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_HEADS = ("<|start|>", "<|channel|>")
_BODY_ENDS = (*_ENDS, "<|start|>", "<|channel|>")
_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>(\w+)")

FORMAT = ToolFormat(
    name="harmony",
    signs=(("<|channel|>", "<|message|>"),),
    begin="<|channel|>commentary to=functions.",
    read=None,
    words=CallSyntax(
        before="<|channel|>commentary to=functions.",
        between=" <|constrain|>json<|message|>",
        after="",  # ``<|call|>`` ends the answer
    ),
    markers=(*_BODY_ENDS, "<|message|>", "<|constrain|>"),
)


class HarmonyParser:
    """Reads messages on channels; see `AnswerParser`."""

    def __init__(self, calls: CallCollector, *, keeps_reasoning: bool) -> None:
        """Begin behind ``<|start|>assistant``.

        Args:
            calls: Takes in what is read of calls.
            keeps_reasoning: Whether reasoning stays in the text for the user.
        """
        self.is_over = self.in_reasoning = False
        self._cursor, self._calls = TextScanner(), calls
        self._keeps = keeps_reasoning
        self._out: list[str] = []
        self._reasoning: list[str] = []
        self._reading: Reading | None = self._messages()

    def put(self, text: str) -> str:
        """Take more text in; return what of it is for the user."""
        self._cursor.put(text)
        return self._read()

    def flush(self) -> str:
        """Return what was held back, as nothing more will come."""
        self._cursor.is_complete = True
        return self._read()

    def take(self) -> tuple[str, Sequence[ToolCallDelta]]:
        """Return the reasoning and the pieces of calls that are new since the last time."""
        reasoning = "".join(self._reasoning)
        self._reasoning.clear()
        return reasoning, self._calls.take()

    def _read(self) -> str:
        """Read as far as the text goes."""
        try:
            if self._reading is not None and not self.is_over:
                next(self._reading)
        except StopIteration:
            self._reading = None
        text = "".join(self._out)
        self._out.clear()
        return text

    def _messages(self) -> Reading:
        """Read message after message."""
        cursor = self._cursor
        while True:
            while not cursor.rest and not cursor.is_complete:
                yield
            if not cursor.rest:
                return
            is_head = yield from self._is_head()
            if not is_head:
                yield from cursor.stream_until(self._out.append, *_HEADS, or_end=True)
                continue
            head: list[str] = []
            yield from cursor.stream_until(head.append, "<|message|>", or_end=True)
            yield from cursor.follows("<|message|>")
            yield from self._body("".join(head))
            for end in _ENDS:
                yield from cursor.follows(end)

    def _is_head(self) -> Reading:
        """Whether a head follows; the first one may begin with whom it is for."""
        rest = self._cursor.rest
        heads = (*_HEADS, " to=")
        while any(head.startswith(rest) and head != rest for head in heads):
            if self._cursor.is_complete:
                return False
            yield
            rest = self._cursor.rest
        return rest.startswith(heads)

    def _body(self, head: str) -> Reading:
        """Read what a message says, to before what ends it."""
        cursor, found = self._cursor, _CHANNEL.search(head)
        recipient = _RECIPIENT.search(head)
        if recipient is not None and self._calls.is_sought:
            yield from self._call(recipient[1], head)
            return
        put = self._out.append
        if found is not None and found[1] == "analysis" and not self._keeps:
            self.in_reasoning, put = True, self._reasoning.append
        yield from cursor.stream_until(put, *_BODY_ENDS, or_end=True)
        self.in_reasoning = False

    def _call(self, name: str, head: str) -> Reading:
        """Read a call; one that is malformed becomes text."""
        cursor, calls = self._cursor, self._calls
        try:
            calls.open(f"{head}<|message|>")
            calls.begin(cursor)
            calls.name(name)
            yield from cursor.stream_until(calls.arguments, *_BODY_ENDS, or_end=True)
            calls.end()
        except EnoughCallsError:
            self.is_over = True
        except MalformedCallError as error:
            calls.fail(str(error))
            self._out.append(cursor.raw())
        self.is_over = self.is_over or (calls.is_single and calls.count > 0)
        if self.is_over:
            yield
