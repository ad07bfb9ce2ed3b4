"""No n-gram twice: an index that grows by one token at a time, and the processor over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.generation.logits.base import (
    Definition,
    LogitsProcessor,
    Stage,
    check_count,
    check_ids,
)
from asyncgen.generation.logits.batched import Ban
from asyncgen.generation.logits.sequence_memory import Memories, with_fresh_memory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from torch import Tensor


class NGramIndex:
    """Tokens that followed each (n-1)-gram in one sequence.

    Appending a token, taking it back and asking what is banned take constant time.
    """

    def __init__(self, ngram_size: int, tokens: Iterable[int] = ()) -> None:
        """Start from a sequence.

        Args:
            ngram_size: n, at least 1.
            tokens: The sequence so far.
        """
        self._context_size = ngram_size - 1
        self._tokens: list[int] = []
        self._followers: dict[tuple[int, ...], dict[int, int]] = {}
        self.extend(tokens)

    def __len__(self) -> int:
        """Tokens of the sequence."""
        return len(self._tokens)

    def append(self, token: int) -> None:
        """Take the next token in."""
        if len(self._tokens) >= self._context_size:
            followers = self._followers.setdefault(self._context, {})
            followers[token] = followers.get(token, 0) + 1
        self._tokens.append(token)

    def pop(self) -> None:
        """Take the last token back."""
        token = self._tokens.pop()
        if len(self._tokens) >= self._context_size:
            followers = self._followers[self._context]
            followers[token] -= 1
            if not followers[token]:
                del followers[token]

    @property
    def _context(self) -> tuple[int, ...]:
        return tuple(self._tokens[len(self._tokens) - self._context_size :])

    def extend(self, tokens: Iterable[int]) -> None:
        """Take several tokens in, in order."""
        for token in tokens:
            self.append(token)

    def followers(self, context: tuple[int, ...]) -> Collection[int]:
        """Return the tokens that came after these n - 1 ones."""
        return self._followers.get(context, ())

    def banned(self) -> Collection[int]:
        """Return the tokens that would complete an n-gram a second time."""
        is_short = len(self._tokens) < self._context_size
        return () if is_short else self.followers(self._context)


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
    where = torch.tensor(pairs, dtype=torch.int64, device=scores.device)
    return scores.index_put((where[:, 0], where[:, 1]), scores.new_tensor(-torch.inf))


class NoRepeatNGramLogitsProcessor(LogitsProcessor):
    """Bans tokens that would complete an n-gram that is already there, prompt included.

    It remembers the sequences of the last call, and looks at what changed since.
    """

    definition = Definition(
        Stage.PROCESSOR,
        60,
        "no_repeat_ngram_size",
        off=0,
        is_on=lambda size: size > 0,
        build=lambda kind, size, setting: kind(size, tail_only=setting.tail_only),
        batched=Ban,
        for_sample=with_fresh_memory,
    )

    def __init__(self, ngram_size: int, *, tail_only: bool = False) -> None:
        """Check the size.

        Args:
            ngram_size: n, at least 1.
            tail_only: Promise that rows only ever change at their end, so that a call costs the
                same however long they are; see `RowTracker`.

        Raises:
            InvalidRequestError: It is no positive integer.
        """
        self.ngram_size = check_count("ngram_size", ngram_size)
        self.memories: Memories[NGramIndex] = Memories(
            lambda _: NGramIndex(ngram_size), tail_only=tail_only
        )

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Ban repeated n-grams; ids are int64 [B, T], scores [B, V]."""
        return ban_tokens(scores, [row.banned() for row in self.memories.of(input_ids)])

    def banned(self, token_ids: list[int], size: int) -> Sequence[int]:
        """The same for one row of a batch (`Ban`)."""
        return tuple(self.memories.of_list(token_ids).banned())


class EncoderNoRepeatNGramLogitsProcessor(LogitsProcessor):
    """Bans tokens that would complete an n-gram of the encoder's input, or of a prompt.

    The n-grams are indexed once; a call looks the last n - 1 tokens up.
    """

    definition = Definition(
        Stage.PROCESSOR,
        70,
        "encoder_no_repeat_ngram_size",
        off=0,
        is_on=lambda size: size > 0,
        build=lambda kind, size, setting: kind(
            size, setting.encoder_ids("encoder_no_repeat_ngram_size")
        ),
        batched=Ban,
        fits=lambda own, size: own.largest < size,
    )

    def __init__(self, encoder_ngram_size: int, encoder_input_ids: Tensor) -> None:
        """Index the n-grams.

        Args:
            encoder_ngram_size: n, at least 1.
            encoder_input_ids: The tokens whose n-grams are banned, int64 [B, T] or [T].

        Raises:
            InvalidRequestError: ``encoder_ngram_size`` is no positive integer, or the tokens are
                no tensor of integers.
        """
        self.ngram_size = check_count("encoder_ngram_size", encoder_ngram_size)
        ids = check_ids("encoder_input_ids", encoder_input_ids)
        rows = ids[None] if ids.dim() == 1 else ids
        self._rows = [NGramIndex(self.ngram_size, row) for row in rows.tolist()]
        self.largest = int(rows.max()) if rows.numel() else -1

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Ban n-grams of the encoder's input; ids are int64 [B, T], scores [B, V].

        B is the number of encoder rows, or a multiple of it where each has several beams.
        """
        each = max(input_ids.shape[0] // len(self._rows), 1)
        tails = input_ids[:, max(input_ids.shape[1] - self.ngram_size + 1, 0) :].tolist()
        banned = [self._followers(number // each, tail) for number, tail in enumerate(tails)]
        return ban_tokens(scores, banned)

    def banned(self, token_ids: list[int], size: int) -> Sequence[int]:
        """The same for one row of a batch (`Ban`), whose prompt is the only one."""
        return tuple(self._followers(0, token_ids[max(len(token_ids) - self.ngram_size + 1, 0) :]))

    def _followers(self, row: int, tail: list[int]) -> Collection[int]:
        return self._rows[row].followers(tuple(tail) if self.ngram_size > 1 else ())
