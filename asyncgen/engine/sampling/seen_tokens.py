"""What is true of one growing sequence, kept up at the cost of the new tokens alone.

Each of these reads a list that only ever grows at its end. They know no tensors and no scores.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from asyncgen.generation.logits import NGramIndex

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["BiasRounds", "RepeatedNGrams", "SeenTokens"]


class SeenTokens:
    """The different tokens of a sequence, and how often each occurs.

    Attributes:
        token_ids: Every token once, as int64.
        counts: How often each occurs, as float32.
    """

    def __init__(self, start: int, vocab_size: int) -> None:
        """Begin with nothing read.

        Args:
            start: Tokens at the beginning that do not count.
            vocab_size: Tokens are below it.
        """
        self.token_ids = array("q")
        self.counts = array("f")
        self._places: dict[int, int] = {}
        self._read = start
        self._vocab_size = vocab_size

    def read(self, token_ids: list[int]) -> None:
        """Take the tokens in that are new.

        Raises:
            IndexError: A token is not of the vocabulary.
        """
        for token in token_ids[self._read :]:
            place = self._places.get(token)
            if place is not None:
                self.counts[place] += 1.0
                continue
            if not 0 <= token < self._vocab_size:
                raise IndexError(f"token {token} is not below the {self._vocab_size} scores")
            self._places[token] = len(self.token_ids)
            self.token_ids.append(token)
            self.counts.append(1.0)
        self._read = max(self._read, len(token_ids))


class RepeatedNGrams:
    """Which tokens would complete an n-gram a second time."""

    def __init__(self, ngram_size: int) -> None:
        """Begin with nothing read; ``ngram_size`` is n."""
        self._index = NGramIndex(ngram_size)
        self._read = 0

    def banned(self, token_ids: list[int]) -> Collection[int]:
        """Take the tokens in that are new, and answer for the next one."""
        self._index.extend(token_ids[self._read :])
        self._read = len(token_ids)
        return self._index.banned()


class BiasRounds:
    """Which biases of token sequences apply after a sequence: one round for each length.

    In a round every token occurs once at most; what several rounds add to a token is added in
    their order.
    """

    def __init__(self, pairs: Iterable[tuple[tuple[int, ...], float]]) -> None:
        """Sort the sequences by what must be there before their last token.

        Args:
            pairs: Sequences and their biases, every sequence once.
        """
        always: list[tuple[int, float]] = []
        self._after: dict[int, dict[tuple[int, ...], list[tuple[int, float]]]] = {}
        for tokens, bias in pairs:
            if len(tokens) == 1:
                always.append((tokens[0], bias))
                continue
            group = self._after.setdefault(len(tokens) - 1, {})
            group.setdefault(tokens[:-1], []).append((tokens[-1], bias))
        self._always = always

    def rounds(self, token_ids: list[int]) -> list[list[tuple[int, float]]]:
        """Return tokens and biases that apply to the next token, round by round."""
        return [
            self._always,
            *(group.get(tuple(token_ids[-size:]), []) for size, group in self._after.items()),
        ]
