"""Buffer the pieces of a request: those not sent yet, and those sent, for a resume.

A piece gets its number when it is taken to be sent, and keeps it. Until then, pieces of a sample
merge: a socket that is slow gets fewer and longer ones. Knows no connection and no message.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncgen import TokenLogprob, ToolCallDelta


LONGEST = 16 * 1024
"""Bytes from which on a piece merges no more: a message must fit what a client accepts."""

_EACH = 160
_EACH_ID = 40
_EACH_LOGPROB = 200
"""Bytes that Python keeps, about."""


@dataclass(slots=True)
class Piece:
    """Text, and perhaps ids, that belong together.

    Attributes:
        index: Which sample.
        text: The text.
        token_ids: Where they are wanted.
        logprobs: Where they are wanted.
        time: Seconds since acceptance, of the last step; where ids are wanted.
        position: Tokens that the sample has with it; ``None`` where that is not known.
        reasoning: Reasoning, which is no part of the text.
        tool_calls: Pieces of calls, likewise.
        prompt_logprobs: The next entries of the prompt, where they are wanted.
        seq: Number, 0 until it has one.
        first_seq: The first of the numbers that were merged; ``seq`` if none were.
        size: Bytes that it keeps, about.
    """

    index: int
    text: str
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    time: float | None = None
    position: int | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    seq: int = 0
    first_seq: int = 0
    size: int = 0

    def __post_init__(self) -> None:
        """Weigh it."""
        text = self.text
        size = _EACH + (len(text) if text.isascii() else 4 * len(text))
        if self.reasoning:
            size += len(self.reasoning) if self.reasoning.isascii() else 4 * len(self.reasoning)
        if self.tool_calls:
            size += sum(_EACH + 4 * len(one.arguments) for one in self.tool_calls)
        if self.token_ids is not None:
            size += _EACH_ID * len(self.token_ids)
        if self.logprobs is not None:
            size += sum(map(size_of_entry, self.logprobs))
        if self.prompt_logprobs is not None:
            size += sum(map(size_of_entry, self.prompt_logprobs))
        self.size = size


def size_of_entry(entry: TokenLogprob | None) -> int:
    """Bytes that Python keeps for what is told of a token, about."""
    return _EACH_LOGPROB * (1 if entry is None else 1 + len(entry.top))


class Replay:
    """The pieces of one request."""

    def __init__(self, limit: int) -> None:
        """Start empty.

        Args:
            limit: Bytes to keep. What was sent is forgotten from the beginning to stay below it.
        """
        self._limit = limit
        self._sent: deque[Piece] = deque()
        self._waiting: list[_MergedPiece] = []
        self._sent_size = 0
        self._waiting_size = 0
        self.last_seq = 0

    @property
    def is_waiting(self) -> bool:
        """True if there are pieces that were never sent."""
        return bool(self._waiting)

    @property
    def size(self) -> int:
        """Bytes kept, about."""
        return self._sent_size + self._waiting_size

    @property
    def overflows(self) -> bool:
        """True if the pieces never sent are larger than the limit."""
        return self._waiting_size > self._limit

    @property
    def first_kept(self) -> int:
        """Number of the oldest piece that can be sent again; one more than the last if none."""
        return self._sent[0].first_seq if self._sent else self.last_seq + 1

    def add(self, piece: Piece) -> None:
        """Put a piece behind those that wait."""
        self._waiting_size += piece.size
        run = self._waiting[-1] if self._waiting else None
        # Joined when they are taken: to join at every step would copy a long piece each time.
        if run is None or not run.add(piece):
            self._waiting.append(_MergedPiece(piece))
        if self._sent_size + self._waiting_size > self._limit:
            self._forget()

    def take(self) -> list[Piece]:
        """Number all that waits; from now on it counts as sent."""
        taken = []
        for run in self._waiting:
            piece = run.join()
            self.last_seq += 1
            piece.seq = piece.first_seq = self.last_seq
            self._sent.append(piece)
            self._sent_size += piece.size
            taken.append(piece)
        self._waiting.clear()
        self._waiting_size = 0
        if self._sent_size > self._limit:
            self._forget()
        return taken

    def after(self, seq: int) -> list[Piece]:
        """Return the pieces sent after a number, merged again.

        Args:
            seq: At least ``first_kept - 1``.
        """
        sent = list(self._sent)
        start = bisect_right(sent, seq, key=lambda piece: piece.seq)
        runs: list[_MergedPiece] = []
        for piece in sent[start:]:
            if not runs or not runs[-1].add(piece):
                runs.append(_MergedPiece(piece))
        return [run.join() for run in runs]

    def _forget(self) -> None:
        while self._sent and self.size > self._limit:
            self._sent_size -= self._sent.popleft().size


class _MergedPiece:
    """Pieces of one sample that become one; at least one."""

    __slots__ = ("_pieces", "_size")

    def __init__(self, piece: Piece) -> None:
        self._pieces = [piece]
        self._size = piece.size

    def add(self, piece: Piece) -> bool:
        """Take one more, unless it is of another sample or this is long enough."""
        if self._pieces[0].index != piece.index or self._size + piece.size > LONGEST:
            return False
        self._pieces.append(piece)
        self._size += piece.size
        return True

    def join(self) -> Piece:
        """Make one of them."""
        pieces = self._pieces
        first, last = pieces[0], pieces[-1]
        if first is last:
            return first
        ids = logprobs = None
        if first.token_ids is not None:
            ids = tuple(number for one in pieces for number in one.token_ids or ())
        if first.logprobs is not None:
            logprobs = tuple(entry for one in pieces for entry in one.logprobs or ())
        text = "".join([one.text for one in pieces])
        reasoning = "".join([one.reasoning for one in pieces])
        calls = joined_calls([call for one in pieces for call in one.tool_calls])
        told = [one.prompt_logprobs for one in pieces if one.prompt_logprobs is not None]
        prompt = tuple(entry for part in told for entry in part) if told else None
        seq, first_seq = last.seq, first.first_seq
        head = (first.index, text, ids, logprobs, last.time, last.position)
        return Piece(*head, reasoning, calls, prompt, seq, first_seq)


def joined_calls(deltas: list[ToolCallDelta]) -> tuple[ToolCallDelta, ...]:
    """Pieces of calls with those that follow on one another made one."""
    joined: list[ToolCallDelta] = []
    for each in deltas:
        last = joined[-1] if joined else None
        follows = last is not None and last.index == each.index and each.name is None
        if last is not None and follows and last.error is None and each.error is None:
            joined[-1] = replace(last, arguments=last.arguments + each.arguments)
        else:
            joined.append(each)
    return tuple(joined)
