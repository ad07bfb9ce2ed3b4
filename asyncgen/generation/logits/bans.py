"""Bans and biases of given tokens and token sequences, and repairs of the scores as a whole."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.base import LogitsProcessor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "InfNanRemoveLogitsProcessor",
    "LogitNormalization",
    "NoBadWordsLogitsProcessor",
    "SequenceBiasLogitsProcessor",
    "SuppressTokensAtBeginLogitsProcessor",
    "SuppressTokensLogitsProcessor",
    "TokenIds",
    "bias_completions",
    "suppress",
    "token_list",
]

TokenIds = int | list[int] | Tensor

_LARGEST_BIAS = torch.finfo(torch.float32).max


def suppress(scores: Tensor, token_ids: Tensor) -> Tensor:
    """Ban tokens.

    Args:
        scores: [B, V].
        token_ids: Ids below V, int64 [N].

    Returns:
        [B, V].
    """
    return scores.index_fill(-1, token_ids, -torch.inf)


def bias_completions(
    scores: Tensor, input_ids: Tensor, prefixes: Tensor, last: Tensor, bias: Tensor
) -> Tensor:
    """Add a bias to the last token of each sequence whose beginning is already there.

    Args:
        scores: [B, V].
        input_ids: Tokens so far, int64 [B, T].
        prefixes: All but the last token of N sequences of one length, int64 [N, L - 1].
        last: Their last tokens, int64 [N]; several sequences may share one.
        bias: What to add, [N]; -inf bans.

    Returns:
        [B, V]; the same tensor where no beginning fits into T tokens.
    """
    length = prefixes.shape[1]
    if input_ids.shape[1] < length:
        return scores
    tail = input_ids[:, None, input_ids.shape[1] - length :]  # [B, 1, L - 1]
    there = (tail == prefixes).all(-1)  # [B, N]
    return scores.index_add(1, last, torch.where(there, bias, 0.0).to(scores.dtype))


class SequenceBiasLogitsProcessor(LogitsProcessor):
    """Adds a bias to tokens, and to tokens that complete a sequence (`bias_completions`)."""

    def __init__(
        self, sequence_bias: list[list[list[int] | float]] | dict[tuple[int, ...], float]
    ) -> None:
        """Check the table.

        Args:
            sequence_bias: ``[[[10, 45], -2.0], [[64], -7.5]]``, or the same as a dict from
                tuples to floats. A sequence of one token is biased always, a longer one at its
                last token.

        Raises:
            InvalidRequestError: It has another form.
        """
        self.sequence_bias = sequence_bias
        self._pairs = _bias_pairs(sequence_bias)
        self._layout: tuple[int, torch.dtype, torch.device] | None = None
        self._always: Tensor | None = None
        self._groups: list[tuple[Tensor, Tensor, Tensor]] = []

    @property
    def pairs(self) -> list[tuple[tuple[int, ...], float]]:
        """Sequences and their biases, every sequence once."""
        return self._pairs

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Bias the scores; ids are int64 [B, T], scores [B, V].

        Raises:
            InvalidRequestError: A sequence has tokens outside of the vocabulary.
        """
        if self._layout != (scores.shape[-1], scores.dtype, scores.device):
            self._prepare(scores)
        if self._always is not None:
            scores = scores + self._always
        for prefixes, last, bias in self._groups:
            scores = bias_completions(scores, input_ids, prefixes, last, bias)
        return scores

    def _prepare(self, scores: Tensor) -> None:
        size, device = scores.shape[-1], scores.device
        unknown = sorted({token for tokens, _ in self._pairs for token in tokens if token >= size})
        if unknown:
            allowed = f"must be below the size of the vocabulary, {size}"
            raise InvalidRequestError("sequence_bias", unknown, allowed)
        always = torch.zeros(size, dtype=scores.dtype, device=device)
        groups: dict[int, list[tuple[tuple[int, ...], float]]] = {}
        for tokens, bias in self._pairs:
            if len(tokens) == 1:
                always[tokens[0]] = bias
            else:
                groups.setdefault(len(tokens), []).append((tokens, bias))
        self._always = always if bool(always.any()) else None
        self._layout = (size, scores.dtype, device)
        self._groups = [
            (
                torch.tensor([tokens[:-1] for tokens, _ in group], device=device),
                torch.tensor([tokens[-1] for tokens, _ in group], device=device),
                torch.tensor([bias for _, bias in group], dtype=scores.dtype, device=device),
            )
            for group in groups.values()
        ]


class NoBadWordsLogitsProcessor(SequenceBiasLogitsProcessor):
    """Bans sequences of tokens: a bias of -inf on the token that would complete each."""

    def __init__(
        self, bad_words_ids: list[list[int]], eos_token_id: TokenIds | None = None
    ) -> None:
        """Check the words.

        Args:
            bad_words_ids: Sequences of token ids that must not be generated.
            eos_token_id: Ids that end a sequence; a bad word that is just one of them is left
                out, so that generation can end.

        Raises:
            InvalidRequestError: ``bad_words_ids`` is no non-empty list of non-empty lists of ids.
        """
        self.bad_word_ids = bad_words_ids
        if not isinstance(bad_words_ids, list) or not bad_words_ids:
            raise InvalidRequestError("bad_words_ids", bad_words_ids, "must be a non-empty list")
        for word in bad_words_ids:
            if not isinstance(word, list) or not word or not _are_ids(word):
                allowed = "every word must be a non-empty list of token ids"
                raise InvalidRequestError("bad_words_ids", bad_words_ids, allowed)
        ends = set() if eos_token_id is None else set(token_list(eos_token_id))
        words = {tuple(word) for word in bad_words_ids if len(word) > 1 or word[0] not in ends}
        self._pairs: list[tuple[tuple[int, ...], float]] = []
        if words:
            super().__init__(dict.fromkeys(sorted(words), -torch.inf))
        self._empty = not words

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Ban the words; ids are int64 [B, T], scores [B, V]."""
        return scores if self._empty else super().__call__(input_ids, scores)


class SuppressTokensLogitsProcessor(LogitsProcessor):
    """Bans tokens at every step (`suppress`)."""

    def __init__(self, suppress_tokens: TokenIds, device: str | torch.device = "cpu") -> None:
        """Keep the tokens.

        Args:
            suppress_tokens: Token ids; those outside of the vocabulary have no effect.
            device: Where the ids are kept.
        """
        self.suppress_tokens = VocabularyIds(token_list(suppress_tokens), device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Ban the tokens; scores are [B, V]."""
        return suppress(scores, self.suppress_tokens.within(scores))


class SuppressTokensAtBeginLogitsProcessor(LogitsProcessor):
    """Bans tokens as the first generated one (`suppress`)."""

    def __init__(
        self,
        begin_suppress_tokens: TokenIds,
        begin_index: int,
        device: str | torch.device = "cpu",
    ) -> None:
        """Keep the tokens.

        Args:
            begin_suppress_tokens: Token ids; those outside of the vocabulary have no effect.
            begin_index: Length at which they are banned, that of the prompt.
            device: Where the ids are kept.
        """
        self.begin_suppress_tokens = VocabularyIds(token_list(begin_suppress_tokens), device)
        self.begin_index = begin_index

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Ban the tokens if it is the first step; ids are int64 [B, T], scores [B, V]."""
        if input_ids.shape[-1] != self.begin_index:
            return scores
        return suppress(scores, self.begin_suppress_tokens.within(scores))


class InfNanRemoveLogitsProcessor(LogitsProcessor):
    """Replaces NaN by 0 and infinities by the largest finite values."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Repair the scores, [B, V]."""
        limits = torch.finfo(scores.dtype)
        return scores.nan_to_num(nan=0.0, posinf=limits.max, neginf=limits.min)


class LogitNormalization(LogitsProcessor):
    """Turns scores into log-probabilities."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply a log-softmax to the scores, [B, V]."""
        return scores.log_softmax(-1)


class VocabularyIds:
    """Token ids that may lie outside of a vocabulary, cut to it once its size is known."""

    def __init__(self, token_ids: Iterable[int], device: str | torch.device) -> None:
        """Keep the ids.

        Args:
            token_ids: Any integers.
            device: Where the tensor is kept.
        """
        self._ids = list(token_ids)
        self._tensor = torch.tensor(self._ids, dtype=torch.int64, device=device)
        self._size: int | None = None

    def within(self, scores: Tensor) -> Tensor:
        """Return those below V as int64 [N] on the device of ``scores`` [B, V]."""
        size = scores.shape[-1]
        if self._size != size or self._tensor.device != scores.device:
            self._tensor = torch.tensor(self.below(size), dtype=torch.int64, device=scores.device)
            self._size = size
        return self._tensor

    def below(self, size: int) -> list[int]:
        """Return those below a size V; asks no device."""
        return [token for token in self._ids if 0 <= token < size]


def token_list(token_ids: TokenIds | Sequence[int]) -> list[int]:
    """Turn one id, a list or a tensor into a list.

    Raises:
        TypeError: It holds something that is no integer.
    """
    if isinstance(token_ids, Tensor):
        listed = token_ids.flatten().tolist()
    else:
        listed = [token_ids] if isinstance(token_ids, int) else list(token_ids)
    if not all(isinstance(token, int) for token in listed):
        raise TypeError(f"{token_ids!r}: token ids must be integers")
    return listed


def _are_ids(tokens: Iterable[object]) -> bool:
    return all(isinstance(token, int) and token >= 0 for token in tokens)


def _bias_pairs(table: Any) -> list[tuple[tuple[int, ...], float]]:
    """Bring both forms of a bias table to pairs; of a sequence given twice the last counts."""
    if not isinstance(table, dict | list) or not table:
        allowed = "must be a non-empty list of [token ids, bias] pairs, or a dict"
        raise InvalidRequestError("sequence_bias", table, allowed)
    keys = tuple if isinstance(table, dict) else list
    pairs: dict[tuple[int, ...], float] = {}
    for entry in table.items() if isinstance(table, dict) else table:
        tokens, bias = entry if isinstance(entry, list | tuple) and len(entry) == 2 else ((), None)
        if not isinstance(tokens, keys) or not tokens or not _are_ids(tokens):
            allowed = f"every sequence must be a non-empty {keys.__name__} of token ids"
            raise InvalidRequestError("sequence_bias", table, allowed)
        if not isinstance(bias, float):
            raise InvalidRequestError("sequence_bias", table, "every bias must be a float")
        if not (abs(bias) <= _LARGEST_BIAS or math.isinf(bias)):
            raise InvalidRequestError(
                "sequence_bias", table, "every bias must be a number that a score can be"
            )
        pairs[tuple(tokens)] = bias
    return list(pairs.items())
