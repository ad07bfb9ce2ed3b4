"""Keep values of growing sequences for processors, at the cost of the changes since the last step.

Mostly that is a token more; with assisted generation also a draft that was taken back.
"""

from __future__ import annotations

import copy
from array import array
from collections import Counter
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor


class Memory(Protocol):
    """Values of one sequence; its length is that of the sequence."""

    def __len__(self) -> int:
        """Tokens that were taken in."""

    def extend(self, tokens: Iterable[int]) -> None:
        """Take further tokens in."""

    def pop(self) -> object:
        """Take the last token back."""


M = TypeVar("M", bound=Memory)


class SeenTokens:
    """The different tokens of a sequence, and how often each occurs.

    Attributes:
        token_ids: Every token once, as int64.
        counts: How often each occurs, as float32.
        largest: The largest token that ever occurred; -1 before the first.
    """

    def __init__(self, start: int = 0, tokens: Iterable[int] = ()) -> None:
        """Begin with a sequence.

        Args:
            start: Tokens at the beginning that do not count.
            tokens: The sequence so far.
        """
        self.token_ids = array("q")
        self.counts = array("f")
        self.largest = -1
        self._start = start
        self._sequence: list[int] = []
        self._places: dict[int, int] = {}
        self.extend(tokens)

    def __len__(self) -> int:
        """Tokens that were taken in."""
        return len(self._sequence)

    def extend(self, tokens: Iterable[int]) -> None:
        """Take further tokens in.

        Raises:
            IndexError: A token is negative.
        """
        before = len(self._sequence)
        self._sequence.extend(tokens)
        if not before:
            self._count()
            return
        for token in self._sequence[max(before, self._start) :]:
            place = self._places.get(token)
            if place is not None:
                self.counts[place] += 1.0
                continue
            self._add(token)

    def _add(self, token: int) -> None:
        """Count a token once more."""
        if token in self._places:
            self.counts[self._places[token]] += 1.0
            return
        if token < 0:
            raise IndexError(f"token {token} is negative")
        self.largest = max(self.largest, token)
        self._places[token] = len(self.token_ids)
        self.token_ids.append(token)
        self.counts.append(1.0)

    def _count(self) -> None:
        """Count a whole sequence, faster than token by token."""
        counts = Counter(self._sequence[self._start :])
        least = min(counts, default=0)
        if least < 0:
            raise IndexError(f"token {least} is negative")
        self.largest = max(counts, default=-1)
        self.token_ids, self.counts = array("q", counts), array("f", counts.values())
        self._places = {token: place for place, token in enumerate(counts)}

    def pop(self) -> None:
        """Take the last token back."""
        token = self._sequence.pop()
        if len(self._sequence) >= self._start:
            self._remove(token)

    def _remove(self, token: int) -> None:
        """Count a token once less."""
        place = self._places[token]
        self.counts[place] -= 1.0
        if not self.counts[place]:
            # The last entry takes the place of the one that goes.
            last, count = self.token_ids.pop(), self.counts.pop()
            del self._places[token]
            if last != token:
                self.token_ids[place], self.counts[place] = last, count
                self._places[last] = place


class RecentTokens(SeenTokens):
    """The different tokens among the last of a sequence, and how often each occurs there."""

    def __init__(self, window: int, start: int = 0) -> None:
        """Begin before the first token.

        Args:
            window: How many of the last tokens count.
            start: Tokens at the beginning that do not count.
        """
        self._window = window
        super().__init__(start)

    @property
    def _first(self) -> int:
        """Place of the first token that counts."""
        return max(self._start, len(self._sequence) - self._window)

    def extend(self, tokens: Iterable[int]) -> None:
        """Take further tokens in; as many at the other end no longer count.

        Raises:
            IndexError: A token is negative.
        """
        sequence, first, before = self._sequence, self._first, len(self._sequence)
        sequence.extend(tokens)
        for token in sequence[first : min(self._first, before)]:
            self._remove(token)
        for token in sequence[max(self._first, before) :]:
            self._add(token)

    def pop(self) -> None:
        """Take the last token back; one at the other end counts again."""
        first, token = self._first, self._sequence.pop()
        if len(self._sequence) >= first:
            self._remove(token)
        for earlier in self._sequence[self._first : first]:
            self._add(earlier)


class RowTracker:
    """Remembers the sequences of the last call.

    Attributes:
        tail_only: Trust the caller that a call differs from the one before in its last token and
            in what is longer or shorter, and nowhere else. Then the cost is that of the change;
            otherwise all older tokens are compared.
    """

    def __init__(self, *, tail_only: bool = False) -> None:
        """Start without any sequence."""
        self.tail_only = tail_only
        self._batch = self._length = 0
        self._seen: Tensor | None = None  # [B, capacity]; not kept on trust

    def follow(self, input_ids: Tensor) -> int | None:
        """Take sequences in and tell what changed.

        Args:
            input_ids: Tokens so far, int64 [B, T].

        Returns:
            Tokens at the beginning of every row that are the same as in the last call; None where
            the rows are others.
        """
        batch, length = input_ids.shape
        is_known, before = batch == self._batch, self._length
        self._batch, self._length = batch, length
        if self.tail_only:
            return max(min(before, length - 1), 0) if is_known else None
        seen = self._seen
        if not is_known or seen is None or seen.device != input_ids.device:
            self._seen = input_ids.clone()
            return None
        common = min(before, length)
        same = (seen[:, :common] == input_ids[:, :common]).all(dim=0)
        kept = int(same.long().cumprod(dim=0).sum())
        if length > seen.shape[1]:
            larger = self._seen = seen.new_empty(batch, max(length, 2 * seen.shape[1]))
            larger[:, :kept] = seen[:, :kept]
            seen = larger
        # A copy: the caller may go on writing to the buffer that these ids are a view of.
        seen[:, kept:length] = input_ids[:, kept:]
        return kept


class Memories(Generic[M]):
    """The memories of a processor, one for each row of its calls."""

    def __init__(self, make: Callable[[int], M], *, tail_only: bool = False) -> None:
        """Begin without any row.

        Args:
            make: Makes an empty memory for the row of this number.
            tail_only: See `RowTracker`.
        """
        self._make = make
        self._tracker = RowTracker(tail_only=tail_only)
        self._rows: list[M] = []

    def fresh(self) -> Memories[M]:
        """Return memories of the same kind that have seen nothing."""
        return Memories(self._make, tail_only=self._tracker.tail_only)

    def of(self, input_ids: Tensor) -> list[M]:
        """Bring the memories up to the sequences of a call, int64 [B, T]."""
        kept = self._tracker.follow(input_ids)
        if kept is None:
            kept, self._rows = 0, [self._make(row) for row in range(len(input_ids))]
        # A memory that raised in an earlier call may have taken less in.
        kept = min([kept, *map(len, self._rows)])
        if any(len(memory) > 2 * kept for memory in self._rows):
            # Most would be taken back, as where beams change places: to begin anew costs less.
            kept, self._rows = 0, [self._make(row) for row in range(len(input_ids))]
        for memory, tokens in zip(self._rows, input_ids[:, kept:].tolist(), strict=True):
            while len(memory) > kept:
                memory.pop()
            memory.extend(tokens)
        return self._rows

    def of_list(self, token_ids: list[int]) -> M:
        """Bring the memory of a single row up to a list that only ever grows at its end."""
        if not self._rows:
            self._rows = [self._make(0)]
        [memory] = self._rows
        memory.extend(token_ids[len(memory) :])
        return memory


def with_fresh_memory(processor: Any, _: int = 0) -> Any:
    """Copy a processor that has ``memories``, which begin anew in the copy."""
    copied = copy.copy(processor)
    copied.memories = processor.memories.fresh()
    return copied
