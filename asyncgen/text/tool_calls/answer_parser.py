"""Split the text of an answer, as it grows, into text for the user, reasoning and tool calls.

Text that may begin a marker is held back, and white space next to a marker is left out; all other
text passes unchanged and at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum, auto
from typing import TYPE_CHECKING

from asyncgen.text.tool_calls.call_collector import EnoughCallsError
from asyncgen.text.tool_calls.text_scanner import MalformedCallError, TextScanner, held_back

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.text.tool_calls.call_collector import CallCollector
    from asyncgen.text.tool_calls.formats import ReasoningFormat, ToolFormat
    from asyncgen.text.tool_calls.text_scanner import IncrementalParse
    from asyncgen.types import ToolCallDelta

_SPACE = " \t\r\n"


class AnswerParser(ABC):
    """Parser of one answer.

    Attributes:
        is_over: True if no more of the answer is wanted.
    """

    def __init__(self, calls: CallCollector) -> None:
        """Begin without text.

        Args:
            calls: Collector of the calls.
        """
        self.is_over = False
        self._scanner, self._calls = TextScanner(), calls
        self._reasoning: list[str] = []

    @property
    @abstractmethod
    def in_reasoning(self) -> bool:
        """True within the reasoning."""

    @abstractmethod
    def _read(self) -> str:
        """Parse as far as the text goes; return the part of it that is for the user."""

    def put(self, text: str) -> str:
        """Take more text; return the part of it that is for the user."""
        self._scanner.put(text)
        return self._read()

    def flush(self) -> str:
        """Return the text that was held back: the answer is complete."""
        self._scanner.is_complete = True
        return self._read()

    def take(self) -> tuple[str, Sequence[ToolCallDelta]]:
        """Return reasoning and parts of calls that are new since the last time."""
        reasoning = ""
        if self._reasoning:
            reasoning = "".join(self._reasoning)
            self._reasoning.clear()
        return reasoning, self._calls.take()


class _Place(Enum):
    START = auto()
    REASONING = auto()
    ANSWER = auto()
    CALL = auto()


class MarkerParser(AnswerParser):
    """Parser of formats that mark reasoning and calls in the text; see `AnswerParser`."""

    def __init__(
        self,
        calls: CallCollector,
        reasoning: ReasoningFormat | None,
        tools: ToolFormat | None,
        *,
        in_reasoning: bool = False,
    ) -> None:
        """Begin with the first text behind the prompt.

        Args:
            calls: Collector of the calls.
            reasoning: Format of the reasoning; ``None``: leave it in the text.
            tools: Format of the calls; ``None``: leave them in the text.
            in_reasoning: The prompt has opened the reasoning already.
        """
        super().__init__(calls)
        self._format, self._tools = reasoning, tools if calls.is_sought else None
        self._place = _Place.ANSWER if reasoning is None else _Place.START
        if in_reasoning:
            self._place = _Place.REASONING
        self._is_behind = in_reasoning  # a marker: white space here is dropped
        self._is_bare = self._has_text = False
        self._parse: IncrementalParse | None = None

    @property
    def in_reasoning(self) -> bool:
        """True within the reasoning."""
        return self._place is _Place.REASONING

    def put(self, text: str) -> str:
        """Take more text; return the part of it that is for the user."""
        if self._place is _Place.ANSWER and self._tools is None and not self._is_behind:
            return text
        return super().put(text)

    def _read(self) -> str:
        out: list[str] = []
        steps = {
            _Place.START: self._start,
            _Place.REASONING: self._think,
            _Place.ANSWER: self._answer,
            _Place.CALL: self._call,
        }
        while not self.is_over and steps[self._place](out):
            pass
        if self.is_over:
            self._scanner.rest = ""
        return "".join(out)

    def _start(self, out: list[str]) -> bool:
        """Check whether the answer begins with reasoning."""
        assert self._format is not None
        scanner, begin = self._scanner, self._format.begin
        text = scanner.rest.lstrip(_SPACE)
        if text.startswith(begin):
            scanner.rest = text[len(begin) :]
            self._place, self._is_behind = _Place.REASONING, True
            return True
        if begin.startswith(text) and not scanner.is_complete:
            return False
        self._place = _Place.ANSWER
        return True

    def _think(self, out: list[str]) -> bool:
        """Read on within the reasoning."""
        assert self._format is not None
        scanner, end = self._scanner, self._format.end
        text, place = self._shown(), scanner.rest.find(end)
        if place >= 0:
            kept = scanner.rest[:place].rstrip(_SPACE)
            self._reasoning.append(kept.lstrip(_SPACE) if self._is_behind else kept)
            scanner.rest = scanner.rest[place + len(end) :]
            self._place, self._is_behind = _Place.ANSWER, True
            return True
        self._reasoning.append(self._settled(text, end))
        return False

    def _answer(self, out: list[str]) -> bool:
        """Read on within the text for the user."""
        scanner, tools = self._scanner, self._tools
        text = self._shown()
        if tools is None:
            scanner.rest = ""
            out.append(text)
            return False
        if tools.bare and not self._has_text and text.lstrip(_SPACE).startswith("{"):
            self._begin_call("", is_bare=True)
            return True
        begins = (tools.begin, *tools.others)
        found = [(place, begin) for begin in begins if (place := text.find(begin)) >= 0]
        if found:
            place, begin = min(found)
            before = text[:place].rstrip(_SPACE)
            scanner.rest = text[place + len(begin) :]
            out.append(before)
            self._has_text = self._has_text or bool(before)
            self._begin_call(begin)
            return True
        settled = self._settled(text, *begins)
        self._has_text = self._has_text or bool(settled)
        out.append(settled)
        return False

    def _begin_call(self, marker: str, *, is_bare: bool = False) -> None:
        assert self._tools is not None and self._tools.parse is not None
        self._place, self._is_bare = _Place.CALL, is_bare
        self._scanner.mark(marker)
        self._calls.needs_known = is_bare
        self._parse = self._tools.parse(self._scanner, self._calls)

    def _call(self, out: list[str]) -> bool:
        """Read on within a call; one that is malformed becomes text."""
        assert self._parse is not None
        calls, scanner = self._calls, self._scanner
        try:
            next(self._parse)
        except StopIteration:
            self._place, self._is_behind = _Place.ANSWER, True
        except EnoughCallsError:
            self.is_over = True
        except MalformedCallError as error:
            raw = scanner.raw()
            out.append(raw)
            if (raw.strip() or calls.is_open) and not (self._is_bare and calls.undo()):
                calls.fail(str(error))
            self._place, self._has_text = _Place.ANSWER, True
        else:
            return False
        self.is_over = self.is_over or (calls.is_single and calls.count > 0)
        return True

    def _shown(self) -> str:
        """Return the text that was not read yet, without the white space behind a marker."""
        if self._is_behind:
            self._scanner.rest = self._scanner.rest.lstrip(_SPACE)
            self._is_behind = not self._scanner.rest
        return self._scanner.rest

    def _settled(self, text: str, *markers: str) -> str:
        """Return the text that cannot belong to a marker, nor to the white space before one."""
        scanner = self._scanner
        if scanner.is_complete:
            scanner.rest = ""
            return text
        settled = text[: len(text) - held_back(text, markers)].rstrip(_SPACE)
        scanner.rest = text[len(settled) :]
        return settled
