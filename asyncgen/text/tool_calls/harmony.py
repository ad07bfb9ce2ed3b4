"""Parse the answers of gpt-oss: messages on channels, ``<|channel|>…<|message|>…<|end|>``.

``analysis`` is reasoning; ``commentary`` to a function is a call; all other messages are for the
user. A message whose head is none of these is text, head and all.
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
_HEAD = re.compile(
    r"""(?:<\|start\|>assistant)?
    (?:\ to=(?P<before>[^\s<]+))?
    (?:<\|channel\|>(?P<channel>analysis|commentary|final)\b)?
    (?:\ to=(?P<behind>[^\s<]+))?
    (?:(?:\s*<\|constrain\|>\s*|\s+)(?:json|code|text|markdown))?\s*""",
    re.VERBOSE,
)
_FUNCTIONS = "functions."
_EVERYBODY = (None, "all", "assistant", "user")
"""Recipients of messages that are no calls."""

FORMAT = ToolFormat(
    name="harmony",
    signs=(("<|channel|>", "<|message|>"),),
    begin="<|channel|>commentary to=functions.",
    parse=None,
    syntax=CallSyntax(
        before="<|channel|>commentary to=functions.",
        between=" <|constrain|>json<|message|>",
        after="",  # ``<|call|>`` ends the answer
        other_betweens=(
            " json<|message|>",
            "<|message|>",
            "<|channel|>commentary json<|message|>",
            "<|channel|>commentary <|constrain|>json<|message|>",
        ),
    ),
    markers=(*_BODY_ENDS, "<|message|>", "<|constrain|>"),
    others=(
        "<|channel|>analysis to=functions.",
        "<|channel|>final to=functions.",
        "<|start|>assistant to=functions.",
        *(f"{end} to=functions." for end in _ENDS),
    ),
    at_start=(" to=functions.",),
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
            scanner.mark()
            is_whole = yield from self._read_head()
            yield from self._message(scanner.raw(), is_whole=is_whole)
            for end in _ENDS:
                yield from scanner.follows(end)

    def _read_head(self) -> IncrementalParse:
        """Read a head up to its end, the end of its message or the next head.

        Returns:
            Whether it ends as a head does.
        """
        scanner = self._scanner
        yield from scanner.follows("<|start|>")
        yield from scanner.stream_until(_ignore, "<|message|>", *_BODY_ENDS, or_end=True)
        has_channel = yield from scanner.follows("<|channel|>")
        if has_channel:
            yield from scanner.stream_until(_ignore, "<|message|>", *_BODY_ENDS, or_end=True)
        is_whole = yield from scanner.follows("<|message|>")
        return is_whole

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

    def _message(self, raw: str, *, is_whole: bool) -> IncrementalParse:
        """Read the content of a message.

        Args:
            raw: Its head.
            is_whole: The head ends as a head does.
        """
        scanner, calls = self._scanner, self._calls
        head = _HEAD.fullmatch(raw.removesuffix("<|message|>")) if is_whole else None
        if head is None:
            calls.fail(f"{raw!r} is no head of a message")
            self._out.append(raw)
            if is_whole:
                yield from scanner.stream_until(self._out.append, *_BODY_ENDS, or_end=True)
            return
        recipient = head["before"] or head["behind"]
        if recipient not in _EVERYBODY:
            yield from self._to(recipient, raw)
            return
        put = self._out.append
        if head["channel"] == "analysis" and not self._keeps:
            self._in_reasoning, put = True, self._reasoning.append
        yield from scanner.stream_until(put, *_BODY_ENDS, or_end=True)
        self._in_reasoning = False

    def _to(self, recipient: str, raw: str) -> IncrementalParse:
        """Read a message to a function, or to something else, which is text."""
        calls = self._calls
        if calls.is_sought and recipient.startswith(_FUNCTIONS):
            yield from self._call(recipient.removeprefix(_FUNCTIONS))
            return
        if calls.is_sought:
            calls.fail(f"there is no tool {recipient!r}")
        self._out.append(raw)
        yield from self._scanner.stream_until(self._out.append, *_BODY_ENDS, or_end=True)

    def _call(self, name: str) -> IncrementalParse:
        """Read a call, whose head was read; one that is malformed becomes text."""
        scanner, calls = self._scanner, self._calls
        try:
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


def _ignore(text: str) -> None:
    """Take a part of a head, which the scanner keeps since its mark."""
