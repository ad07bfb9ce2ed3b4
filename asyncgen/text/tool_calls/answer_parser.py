"""Reads the text of an answer as it grows: what is for the user, what is reasoning, what is a call.

What may be the beginning of a marker is held back, and white space next to one is left out; all
other text is given on as it is, at once.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from asyncgen.text.tool_calls.call_collector import EnoughCallsError
from asyncgen.text.tool_calls.text_scanner import MalformedCallError, TextScanner, held_back

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.text.tool_calls.call_collector import CallCollector
    from asyncgen.text.tool_calls.formats import ReasoningFormat, ToolFormat
    from asyncgen.text.tool_calls.text_scanner import Reading
    from asyncgen.types import ToolCallDelta

_SPACE = " \t\r\n"


class AnswerParser(Protocol):
    """Takes an answer apart.

    Attributes:
        is_over: Whether there is as much of the answer as is wanted.
    """

    is_over: bool

    @property
    def in_reasoning(self) -> bool:
        """Whether it stands within the reasoning."""

    def put(self, text: str) -> str:
        """Take more text in; return what of it is for the user."""

    def flush(self) -> str:
        """Return what was held back, as nothing more will come."""

    def take(self) -> tuple[str, Sequence[ToolCallDelta]]:
        """Return the reasoning and the pieces of calls that are new since the last time."""


class _Place(Enum):
    START = auto()
    REASONING = auto()
    ANSWER = auto()
    CALL = auto()


class MarkerParser:
    """Reads formats that mark reasoning and calls by words in the text; see `AnswerParser`."""

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
            calls: Takes in what is read of calls.
            reasoning: How reasoning is marked; ``None`` to leave it in the text.
            tools: How calls are written; ``None`` to leave them in the text.
            in_reasoning: Whether the prompt has opened the reasoning already.
        """
        self.is_over = False
        self._cursor, self._calls = TextScanner(), calls
        self._format, self._tools = reasoning, tools if calls.is_sought else None
        self._place = _Place.ANSWER if reasoning is None else _Place.START
        if in_reasoning:
            self._place = _Place.REASONING
        self._reasoning: list[str] = []
        self._is_behind = in_reasoning  # a marker: white space here is not told
        self._is_bare = self._has_text = False
        self._reading: Reading | None = None

    @property
    def in_reasoning(self) -> bool:
        """Whether it stands within the reasoning."""
        return self._place is _Place.REASONING

    def put(self, text: str) -> str:
        """Take more text in; return what of it is for the user."""
        if self._place is _Place.ANSWER and self._tools is None and not self._is_behind:
            return text
        self._cursor.put(text)
        return self._read()

    def flush(self) -> str:
        """Return what was held back, as nothing more will come."""
        self._cursor.is_complete = True
        return self._read()

    def take(self) -> tuple[str, Sequence[ToolCallDelta]]:
        """Return the reasoning and the pieces of calls that are new since the last time."""
        reasoning = ""
        if self._reasoning:
            reasoning = "".join(self._reasoning)
            self._reasoning.clear()
        return reasoning, self._calls.take()

    def _read(self) -> str:
        """Read as far as the text goes."""
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
            self._cursor.rest = ""
        return "".join(out)

    def _start(self, out: list[str]) -> bool:
        """Find out whether the answer begins with reasoning."""
        assert self._format is not None
        cursor, begin = self._cursor, self._format.begin
        text = cursor.rest.lstrip(_SPACE)
        if text.startswith(begin):
            cursor.rest = text[len(begin) :]
            self._place, self._is_behind = _Place.REASONING, True
            return True
        if begin.startswith(text) and not cursor.is_complete:
            return False
        self._place = _Place.ANSWER
        return True

    def _think(self, out: list[str]) -> bool:
        """Read on within the reasoning."""
        assert self._format is not None
        cursor, end = self._cursor, self._format.end
        text, place = self._shown(), cursor.rest.find(end)
        if place >= 0:
            kept = cursor.rest[:place].rstrip(_SPACE)
            self._reasoning.append(kept.lstrip(_SPACE) if self._is_behind else kept)
            cursor.rest = cursor.rest[place + len(end) :]
            self._place, self._is_behind = _Place.ANSWER, True
            return True
        self._reasoning.append(self._settled(text, end))
        return False

    def _answer(self, out: list[str]) -> bool:
        """Read on within the text for the user."""
        cursor, tools = self._cursor, self._tools
        text = self._shown()
        if tools is None:
            cursor.rest = ""
            out.append(text)
            return False
        if tools.bare and not self._has_text and text.lstrip(_SPACE).startswith("{"):
            self._begin_call("", is_bare=True)
            return True
        place = text.find(tools.begin)
        if place >= 0:
            before = text[:place].rstrip(_SPACE)
            cursor.rest = text[place + len(tools.begin) :]
            out.append(before)
            self._begin_call(tools.begin)
            return True
        settled = self._settled(text, tools.begin)
        self._has_text = self._has_text or bool(settled)
        out.append(settled)
        return False

    def _begin_call(self, marker: str, *, is_bare: bool = False) -> None:
        assert self._tools is not None and self._tools.read is not None
        self._place, self._is_bare = _Place.CALL, is_bare
        self._calls.open(marker)
        self._calls.needs_known = is_bare
        self._reading = self._tools.read(self._cursor, self._calls)

    def _call(self, out: list[str]) -> bool:
        """Read on within a call; one that is malformed becomes text."""
        assert self._reading is not None
        calls, cursor = self._calls, self._cursor
        try:
            next(self._reading)
        except StopIteration:
            self._place, self._is_behind = _Place.ANSWER, True
        except EnoughCallsError:
            self.is_over = True
        except MalformedCallError as error:
            out.append(cursor.raw())
            if not (self._is_bare and calls.undo()):
                calls.fail(str(error))
            self._place, self._has_text = _Place.ANSWER, True
        else:
            return False
        self.is_over = self.is_over or (calls.is_single and calls.count > 0)
        return True

    def _shown(self) -> str:
        """What was not read yet; without the white space behind a marker."""
        if self._is_behind:
            self._cursor.rest = self._cursor.rest.lstrip(_SPACE)
            self._is_behind = not self._cursor.rest
        return self._cursor.rest

    def _settled(self, text: str, marker: str) -> str:
        """Read what cannot belong to a marker, nor to the white space in front of one."""
        cursor = self._cursor
        if cursor.is_complete:
            cursor.rest = ""
            return text
        settled = text[: len(text) - held_back(text, (marker,))].rstrip(_SPACE)
        cursor.rest = text[len(settled) :]
        return settled
