"""Drafts looked up in the sequence itself: what followed the same words before.

Saxena 2023, "Prompt Lookup Decoding". Where the answer quotes its input, most of it is found there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.strategies.drafters.drafter import Drafting, Proposal

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch import Tensor

__all__ = ["LookupDrafter"]


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
        for name, value in (
            ("prompt_lookup_num_tokens", count),
            ("max_matching_ngram_size", max_matching_ngram_size),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidRequestError(name, value, "an integer of at least 1")
        self._count = count
        self._sizes = range(max_matching_ngram_size, 0, -1)
        self._ends = frozenset(eos_token_ids)
        self._ids: list[int] = []
        self._first: dict[tuple[int, ...], int] = {}

    def propose(self, ids: Tensor, room: int) -> Drafting:
        """See `Drafter`. Done at once."""
        self._extend(ids[0, len(self._ids) :].tolist())
        found = self._look_up()[: min(self._count, room)]
        return Proposal(ids.new_tensor(found))
        yield

    def update(self, accepted: int) -> None:
        """See `Drafter`. The sequence itself is all there is to learn."""

    def _extend(self, token_ids: list[int]) -> None:
        """Index the n-grams that now have a successor, each where it stood first."""
        known = self._ids
        for token_id in token_ids:
            for size in self._sizes:
                if size <= len(known):
                    self._first.setdefault(tuple(known[-size:]), len(known))
            known.append(token_id)

    def _look_up(self) -> list[int]:
        """What follows the first occurrence of the longest n-gram that has one."""
        for size in self._sizes:
            place = self._first.get(tuple(self._ids[-size:])) if size <= len(self._ids) else None
            if place is not None:
                following = self._ids[place : place + self._count]
                ends = [i for i, token_id in enumerate(following) if token_id in self._ends]
                return following[: ends[0]] if ends else following
        return []
