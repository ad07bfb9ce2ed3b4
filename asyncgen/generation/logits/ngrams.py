"""No n-gram twice: an index that grows by one token at a time, and the processor over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.generation.logits.base import LogitsProcessor, check_count

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from torch import Tensor

__all__ = ["NGramIndex", "NoRepeatNGramLogitsProcessor", "ban_tokens"]


class NGramIndex:
    """Which tokens followed which (n-1)-grams in one sequence.

    Appending a token and asking what is banned take constant time.
    """

    def __init__(self, ngram_size: int, tokens: Iterable[int] = ()) -> None:
        """Start from a sequence.

        Args:
            ngram_size: n, at least 1.
            tokens: The sequence so far.
        """
        self._context_size = ngram_size - 1
        self._context: tuple[int, ...] = ()
        self._followers: dict[tuple[int, ...], set[int]] = {}
        self.extend(tokens)

    def append(self, token: int) -> None:
        """Take the next token in."""
        if len(self._context) < self._context_size:
            self._context = (*self._context, token)
            return
        self._followers.setdefault(self._context, set()).add(token)
        self._context = (*self._context, token)[1:]

    def extend(self, tokens: Iterable[int]) -> None:
        """Take several tokens in, in order."""
        for token in tokens:
            self.append(token)

    def banned(self) -> Collection[int]:
        """Return the tokens that would complete an n-gram a second time."""
        return self._followers.get(self._context, ())


def ban_tokens(scores: Tensor, banned: Sequence[Collection[int]]) -> Tensor:
    """Set the scores of some tokens to -inf, other ones in every row.

    Args:
        scores: [B, V].
        banned: For each of the B rows, token ids below V.

    Returns:
        [B, V]; the same tensor where nothing is banned.
    """
    pairs = [(row, token) for row, tokens in enumerate(banned) for token in tokens]
    if not pairs:
        return scores
    where = torch.tensor(pairs, device=scores.device)
    return scores.index_put((where[:, 0], where[:, 1]), scores.new_tensor(-torch.inf))


class NoRepeatNGramLogitsProcessor(LogitsProcessor):
    """Bans tokens that would complete an n-gram that is already there, prompt included.

    It remembers the sequences of the last call: where each grew by one token, only that token is
    looked at; anything else is indexed anew.
    """

    def __init__(self, ngram_size: int) -> None:
        """Check the size.

        Args:
            ngram_size: n, at least 1.

        Raises:
            InvalidRequestError: It is no positive integer.
        """
        self.ngram_size = check_count("ngram_size", ngram_size)
        self._seen: Tensor | None = None
        self._rows: list[NGramIndex] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Ban repeated n-grams; ids are int64 [B, T], scores [B, V]."""
        if self._grew_by_one(input_ids):
            for row, token in zip(self._rows, input_ids[:, -1].tolist(), strict=True):
                row.append(token)
        else:
            self._rows = [NGramIndex(self.ngram_size, row) for row in input_ids.tolist()]
        # A copy: the caller may go on writing to the buffer that these ids are a view of.
        self._seen = input_ids.clone()
        return ban_tokens(scores, [row.banned() for row in self._rows])

    def _grew_by_one(self, input_ids: Tensor) -> bool:
        seen = self._seen
        return (
            seen is not None
            and input_ids.shape[0] == seen.shape[0]
            and input_ids.shape[1] == seen.shape[1] + 1
            and input_ids.device == seen.device
            and torch.equal(input_ids[:, :-1], seen)
        )
