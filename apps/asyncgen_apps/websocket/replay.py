"""Buffer the pieces of a request: those not sent yet, and those sent, for a resume.

A piece gets its number when it is sent, and keeps it. Until then, pieces of a sample merge, so that
a slow socket gets fewer and longer ones. Knows no connection and no message.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncgen import TokenLogprob, ToolCallDelta


LONGEST = 16 * 1024
"""Bytes of a piece that merges no more: a message must fit the limit of a client."""

_EACH = 160
_EACH_ID = 40
_EACH_LOGPROB = 200
"""Approximate bytes of a piece, a token id and a log-probability in Python."""


@dataclass(slots=True)
class Piece:
    """Part of an answer that one ``delta`` sends.

    Attributes:
        index: Number of the sample.
        text: Text.
        token_ids: Token ids; ``None`` if the client does not want them.
        logprobs: Log-probabilities of the ids, if the client wants them.
        time: Seconds from acceptance to the last step, if the client wants ids.
        position: Number of tokens of the sample up to here; ``None`` if unknown.
        reasoning: Reasoning, which is not part of the text.
        tool_calls: Pieces of tool calls, which are not part of the text.
        prompt_logprobs: Next entries of the prompt, if the client wants them.
        seq: Number; 0 until it is sent.
        first_seq: First number that was merged into it; ``seq`` if none was.
        size: Approximate bytes in memory.
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
        """Compute the size."""
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
    """Return the approximate bytes of one entry with its alternatives."""
    return _EACH_LOGPROB * (1 if entry is None else 1 + len(entry.top))


class Replay:
    """Buffer of the pieces of one request.

    Attributes:
        last_seq: Number of the last piece that was sent.
    """

    def __init__(self, limit: int) -> None:
        """Begin empty.

        Args:
            limit: Bytes to keep. The oldest sent pieces are dropped to stay below it.
        """
        self._limit = limit
        self._sent: deque[Piece] = deque()
        self._waiting: list[_MergedPiece] = []
        self._sent_size = 0
        self._waiting_size = 0
        self._again: int | None = None  # the pieces behind this number are sent again first
        self.last_seq = 0

    @property
    def is_waiting(self) -> bool:
        """True if some pieces are to be sent, for the first time or again."""
        return bool(self._waiting) or self._again is not None

    @property
    def size(self) -> int:
        """Approximate bytes of all pieces."""
        return self._sent_size + self._waiting_size

    @property
    def overflows(self) -> bool:
        """True if the pieces not sent yet are larger than the limit."""
        return self._waiting_size > self._limit

    @property
    def first_kept(self) -> int:
        """Number of the oldest piece that can be sent again; one more than the last if none."""
        return self._sent[0].first_seq if self._sent else self.last_seq + 1

    def add(self, piece: Piece) -> None:
        """Add a piece to those that wait to be sent."""
        self._waiting_size += piece.size
        # Merged pieces are joined when they are sent: joining at every step copies a long text.
        _merge(self._waiting, piece)
        if self.size > self._limit:
            self._forget()

    def take(self, most: int = sys.maxsize) -> list[Piece]:
        """Return pieces to send: those to be sent again, then waiting ones, which get numbers.

        Args:
            most: Bytes behind which the rest goes on waiting.
        """
        taken: list[Piece] = []
        if self._again is not None:
            taken = self._take_again(most)
            if self._again is not None:
                return taken
            most -= sum(piece.size for piece in taken)
        count = 0
        for merged in self._waiting:
            if most <= 0:
                break
            most -= merged.size
            self._waiting_size -= merged.size
            piece = merged.join()
            self.last_seq += 1
            piece.seq = piece.first_seq = self.last_seq
            self._sent.append(piece)
            self._sent_size += piece.size
            taken.append(piece)
            count += 1
        del self._waiting[:count]
        if self._sent_size > self._limit:
            self._forget()
        return taken

    def rewind(self, seq: int) -> None:
        """Send again what was sent after a number; it is kept until then.

        Args:
            seq: Number, at least ``first_kept - 1``.
        """
        self._again = seq if seq < self.last_seq else None

    def _take_again(self, most: int) -> list[Piece]:
        """Return pieces that are to be sent again, merged, up to so many bytes or just above.

        Merging all of them at once would hold the event loop for milliseconds each time a client
        asks, and it may ask hundreds of times in a turn.
        """
        sent, again = list(self._sent), self._again
        merged: list[_MergedPiece] = []
        for piece in sent[bisect_right(sent, again, key=lambda piece: piece.seq) :]:
            if most <= 0:
                break
            most -= piece.size
            again = piece.seq
            _merge(merged, piece)
        self._again = None if again == self.last_seq else again
        return [each.join() for each in merged]

    def _forget(self) -> None:
        """Drop the oldest sent pieces, those beyond the limit that are not to be sent again."""
        while self._sent and self.size > self._limit:
            if self._again is not None and self._sent[0].seq > self._again:
                return
            self._sent_size -= self._sent.popleft().size


class _MergedPiece:
    """Pieces of one sample that are sent as one; at least one."""

    __slots__ = ("_pieces", "size")

    def __init__(self, piece: Piece) -> None:
        self._pieces = [piece]
        self.size = piece.size

    def add(self, piece: Piece) -> bool:
        """Add a piece; return False if it is of another sample or the result would be too long."""
        if self._pieces[0].index != piece.index or self.size + piece.size > LONGEST:
            return False
        self._pieces.append(piece)
        self.size += piece.size
        return True

    def join(self) -> Piece:
        """Return one piece with the content of all."""
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
        parts = [one.prompt_logprobs for one in pieces if one.prompt_logprobs is not None]
        prompt = tuple(entry for part in parts for entry in part) if parts else None
        seq, first_seq = last.seq, first.first_seq
        head = (first.index, text, ids, logprobs, last.time, last.position)
        return Piece(*head, reasoning, calls, prompt, seq, first_seq)


def _merge(merged: list[_MergedPiece], piece: Piece) -> None:
    """Add a piece to the last merged one, or begin the next."""
    if not merged or not merged[-1].add(piece):
        merged.append(_MergedPiece(piece))


def joined_calls(deltas: list[ToolCallDelta]) -> tuple[ToolCallDelta, ...]:
    """Return pieces of tool calls with consecutive pieces of one call joined."""
    joined: list[ToolCallDelta] = []
    for each in deltas:
        last = joined[-1] if joined else None
        follows = last is not None and last.index == each.index and each.name is None
        if last is not None and follows and last.error is None and each.error is None:
            joined[-1] = replace(last, arguments=last.arguments + each.arguments)
        else:
            joined.append(each)
    return tuple(joined)
