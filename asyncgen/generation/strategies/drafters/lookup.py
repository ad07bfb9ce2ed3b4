"""Drafts looked up in the sequence itself: what followed the same words before.

Saxena 2023, "Prompt Lookup Decoding". Where the answer quotes its input, most of it is found there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.generation.strategies.drafters.drafter import check_count
from asyncgen.generation.strategies.step import Drafting, Proposal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from torch import Tensor


class LookupDrafter:
    """Proposes what followed the first earlier occurrence of the last tokens.

    An index of n-grams grows with the sequence, so a look-up takes constant time.
    """

    def __init__(
        self, count: int, max_matching_ngram_size: int = 2, eos_token_ids: Collection[int] = ()
    ) -> None:
        """Begin without a sequence.

        Args:
            count: Most tokens of a proposal, at least 1.
            max_matching_ngram_size: Most last tokens that must occur earlier, at least 1; where
                they do not, one less is tried.
            eos_token_ids: Tokens that end the sequence; a proposal ends before them.

        Raises:
            InvalidRequestError: A number is below 1.
        """
        check_count("prompt_lookup_num_tokens", count)
        check_count("max_matching_ngram_size", max_matching_ngram_size)
        self._count = count
        self._longest = max_matching_ngram_size
        self._ends = frozenset(eos_token_ids)
        self._ids: list[int] = []
        self._index = _Index()
        self._match, self._size = _ROOT, 0

    def propose(self, ids: Tensor, room: int) -> Drafting:
        """See `Drafter`. Done at once."""
        self._extend(ids[0, len(self._ids) :].tolist())
        found = self._look_up()[: min(self._count, room)]
        return Proposal(ids.new_tensor(found))
        yield

    def update(self, accepted: int) -> None:
        """See `Drafter`. The sequence itself is all there is to learn."""

    def has_read_beginning_of(self, ids: Tensor) -> bool:
        """Return whether the ids ``[1, T]`` go on where the sequence so far ends."""
        return ids[0, : len(self._ids)].tolist() == self._ids

    def _extend(self, token_ids: list[int]) -> None:
        """Index what now has a successor, and find the longest last n-gram that is there."""
        index = self._index
        for token_id in token_ids:
            if self._ids:
                index.append(self._ids[-1])
            self._ids.append(token_id)
            # What matches with this token begins with what has matched without it.
            state, size = index.widest(self._match, self._size), self._size
            while state and token_id not in index.following[state]:
                state = index.shorter[state]
                size = index.longest[state]
            if token_id in index.following[state]:
                state, size = index.following[state][token_id], size + 1
            self._size = min(size, self._longest)
            self._match = index.widest(state, self._size)

    def _look_up(self) -> list[int]:
        """Return the tokens after the first occurrence of the longest n-gram that occurs before."""
        if not self._size:
            return []
        place = self._index.end[self._match]
        following = self._ids[place : place + self._count]
        ends = [i for i, token_id in enumerate(following) if token_id in self._ends]
        return following[: ends[0]] if ends else following


def continuations(ids: list[int], longest: int, count: int, end: int) -> Iterator[list[int]]:
    """Yield what followed the last tokens each time that they stood earlier.

    All occurrences in turn, for callers that may refuse some; `LookupDrafter` has the first at
    once. Those of the most last tokens come first, then those of one less, each from left to right.

    Args:
        ids: The sequence.
        longest: Most last tokens that must stand earlier.
        count: Most tokens that are yielded at a time.
        end: Nothing is yielded that stands from here on.
    """
    for size in range(min(longest, len(ids) - 1), 0, -1):
        last = ids[-size:]
        for place in range(size, min(len(ids), end)):
            if ids[place - size : place] == last:
                yield ids[place : min(place + count, end)]


_ROOT = 0
"""The state of the empty n-gram."""


class _Index:
    """Every n-gram of a sequence, of any size, in memory and time that grow with its length alone.

    The suffix automaton of Blumer et al., "The smallest automaton recognizing the subwords of a
    text" (1985), section 2. A state stands for n-grams that end at the same places; each is the
    end of the longest of them.

    Attributes:
        following: For each state, where one more token leads.
        shorter: The state of the longest end that occurs at more places; the root has none (-1).
        longest: Size of the longest n-gram of each state.
        end: Where the first occurrence of each state ends, exclusive.
    """

    def __init__(self) -> None:
        self.following: list[dict[int, int]] = [{}]
        self.shorter = [-1]
        self.longest = [0]
        self.end = [0]
        self._whole = _ROOT

    def widest(self, state: int, size: int) -> int:
        """The state of the last ``size`` tokens of a state's n-grams."""
        while state and size <= self.longest[self.shorter[state]]:
            state = self.shorter[state]
        return state

    def append(self, token_id: int) -> None:
        """Make the sequence longer by a token."""
        before, length = self._whole, self.longest[self._whole] + 1
        self._whole = self._add({}, length, length)
        while before != -1 and token_id not in self.following[before]:
            self.following[before][token_id] = self._whole
            before = self.shorter[before]
        if before == -1:
            self.shorter[self._whole] = _ROOT
            return
        old = self.following[before][token_id]
        if self.longest[old] > self.longest[before] + 1:
            # Its shorter n-grams occur here as well, its longer ones do not: they part.
            both = self._add(dict(self.following[old]), self.longest[before] + 1, self.end[old])
            self.shorter[both] = self.shorter[old]
            self.shorter[old] = both
            while before != -1 and self.following[before].get(token_id) == old:
                self.following[before][token_id] = both
                before = self.shorter[before]
            old = both
        self.shorter[self._whole] = old

    def _add(self, following: dict[int, int], longest: int, end: int) -> int:
        """A new state."""
        self.following.append(following)
        self.shorter.append(-1)
        self.longest.append(longest)
        self.end.append(end)
        return len(self.end) - 1
