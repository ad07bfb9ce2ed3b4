"""Bans and biases of given tokens and token sequences, and repairs of the scores as a whole."""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from asyncgen.errors import InvalidRequestError, shorten
from asyncgen.generation.logits.base import (
    BuildContext,
    ColumnsProcessor,
    Definition,
    LogitsProcessor,
    Stage,
    check_count,
)
from asyncgen.generation.logits.batched import Ban, BatchScores, Columns, RowProcessor
from asyncgen.runtime.transfer import host_ints, to_device
from asyncgen.types import NEVER_IDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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


class _BiasTable:
    """Biases of token sequences, found by what must be there before the last token.

    Attributes:
        pairs: Sequences and their biases, every sequence once.
        tokens: Those of sequences of one token, whose biases apply always, int64 [N].
        always: Their biases, float64 [N].
        largest: The largest token of all sequences; -1 where there are none.
    """

    def __init__(self, pairs: Iterable[tuple[tuple[int, ...], float]]) -> None:
        """Sort the sequences; every one is there once."""
        self.pairs = list(pairs)
        self.largest = max(chain.from_iterable(tokens for tokens, _ in self.pairs), default=-1)
        single = {tokens[0]: bias for tokens, bias in self.pairs if len(tokens) == 1}
        # A table may be as long as the vocabulary: it is laid out once, and not in a step.
        self.tokens = host_ints(list(single))
        self.always = torch.tensor(list(single.values()), dtype=torch.float64, device="cpu")
        self._after: dict[int, dict[tuple[int, ...], list[tuple[int, float]]]] = {}
        for tokens, bias in self.pairs:
            if len(tokens) > 1:
                group = self._after.setdefault(len(tokens) - 1, {})
                group.setdefault(tokens[:-1], []).append((tokens[-1], bias))

    @property
    def longest(self) -> int:
        """So many of the last tokens have a say."""
        return max(self._after, default=0)

    def completions(self, token_ids: list[int]) -> dict[int, float]:
        """Return the tokens that would complete a longer sequence, each with all its biases."""
        found: dict[int, float] = {}
        for size, group in self._after.items():
            for token, bias in group.get(tuple(token_ids[-size:]), ()):
                found[token] = found.get(token, 0.0) + bias
        return found


class _BatchedBias:
    """Adds the biases of several rows, in place."""

    def __init__(self, parts: list[RowProcessor], scores: BatchScores) -> None:
        """Lay out what applies at every step."""
        self._parts = parts
        self._dtype, device = scores.values.dtype, scores.values.device
        tables = [(row * scores.size, processor.biases) for row, processor in parts]
        places = torch.cat([first + biases.tokens for first, biases in tables])
        always = torch.cat([biases.always for _, biases in tables]).to(self._dtype)
        self._places = to_device(places, device) if len(places) else None
        self._always = to_device(always, device)

    def __call__(self, scores: BatchScores) -> None:
        """Add what applies to each row."""
        if self._places is not None:
            scores.flat.index_add_(0, self._places, self._always)
        pairs = [
            (row * scores.size + token, bias)
            for row, processor in self._parts
            for token, bias in processor.biases.completions(scores.rows[row].tokens).items()
        ]
        if pairs:
            places, biases = map(list, zip(*pairs, strict=True))
            added = scores.tensor(biases, self._dtype)
            scores.flat.index_add_(0, scores.tensor(places), added)


def _biases_fit(processor: SequenceBiasLogitsProcessor, size: int) -> bool:
    return processor.biases.largest < size


class SequenceBiasLogitsProcessor(LogitsProcessor):
    """Adds a bias to tokens, and to tokens that complete a sequence."""

    definition = Definition(
        Stage.PROCESSOR, 20, "sequence_bias", batched=_BatchedBias, fits=_biases_fit
    )

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
        self.biases = _BiasTable(_bias_pairs(sequence_bias))
        self._always = torch.empty(0, dtype=torch.float32, device="cpu")

    @property
    def pairs(self) -> list[tuple[tuple[int, ...], float]]:
        """Sequences and their biases, every sequence once."""
        return self.biases.pairs

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Bias the scores; ids are int64 [B, T], scores [B, V].

        Raises:
            InvalidRequestError: A sequence has tokens outside of the vocabulary.
        """
        size, longest = scores.shape[-1], self.biases.longest
        if not _biases_fit(self, size):
            allowed = f"must be below the size of the vocabulary, {size}"
            raise InvalidRequestError("sequence_bias", self.biases.largest, allowed)
        if len(self.biases.tokens):
            scores = scores + self._always_of(scores)
        if not longest:
            return scores
        tails = input_ids[:, max(input_ids.shape[1] - longest, 0) :].tolist()
        found = [
            (row, token, bias)
            for row, tail in enumerate(tails)
            for token, bias in self.biases.completions(tail).items()
        ]
        rows, tokens, biases = zip(*found, strict=True) if found else ((), (), ())
        where = torch.tensor([rows, tokens], dtype=torch.int64, device=scores.device)
        added = torch.tensor(biases, dtype=scores.dtype, device=scores.device)
        return scores.index_put((where[0], where[1]), added, accumulate=True)

    def _always_of(self, scores: Tensor) -> Tensor:
        """The biases of single tokens, [V]."""
        if self._always.shape != scores.shape[-1:] or self._always.dtype != scores.dtype:
            self._always = torch.zeros(scores.shape[-1], dtype=scores.dtype, device="cpu")
            self._always[self.biases.tokens] = self.biases.always.to(scores.dtype)
        self._always = self._always.to(scores.device)
        return self._always


class NoBadWordsLogitsProcessor(SequenceBiasLogitsProcessor):
    """Bans sequences of tokens: a bias of -inf on the token that would complete each."""

    definition = Definition(
        Stage.PROCESSOR,
        80,
        "bad_words_ids",
        build=lambda kind, words, setting: kind(words, setting.eos_token_ids),
        batched=_BatchedBias,
        fits=_biases_fit,
    )

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
        # There may be thousands: no function is called for each of them.
        are_words = _are_all(bad_words_ids, list) and all(bad_words_ids)
        if not are_words or not _are_ids(chain.from_iterable(bad_words_ids)):
            allowed = "every word must be a non-empty list of token ids"
            raise InvalidRequestError("bad_words_ids", bad_words_ids, allowed)
        ends = set() if eos_token_id is None else set(token_list(eos_token_id))
        words = {tuple(word) for word in bad_words_ids if len(word) > 1 or word[0] not in ends}
        self.biases = _BiasTable((word, -torch.inf) for word in sorted(words))
        self._always = torch.empty(0, dtype=torch.float32, device="cpu")


class TimedBan(LogitsProcessor):
    """Bans the same tokens at all lengths that a rule names (`suppress`)."""

    def due(self, length: int) -> VocabularyIds | None:
        """Return the tokens that are banned where so many are there; None: there are none."""
        raise NotImplementedError

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Ban the tokens where they are due; ids are int64 [B, T], scores [B, V]."""
        tokens = self.due(input_ids.shape[-1])
        return scores if tokens is None else suppress(scores, tokens.within(scores))

    def banned(self, token_ids: list[int], size: int) -> Sequence[int]:
        """The same for one row of a batch (`Ban`)."""
        tokens = self.due(len(token_ids))
        return () if tokens is None else tokens.below(size)


class SuppressTokensLogitsProcessor(TimedBan):
    """Bans tokens at every step."""

    definition = Definition(
        Stage.PROCESSOR,
        160,
        "suppress_tokens",
        build=lambda kind, tokens, setting: kind(tokens, setting.device),
        batched=Ban,
    )

    def __init__(self, suppress_tokens: TokenIds, device: str | torch.device = "cpu") -> None:
        """Keep the tokens.

        Args:
            suppress_tokens: Token ids; those outside of the vocabulary have no effect.
            device: Where the ids are kept.
        """
        self.suppress_tokens = VocabularyIds(token_list(suppress_tokens), device)

    is_constant = True

    def due(self, length: int) -> VocabularyIds:
        """Return the tokens, at any length."""
        return self.suppress_tokens


class SuppressTokensAtBeginLogitsProcessor(TimedBan):
    """Bans tokens as the first generated one."""

    definition = Definition(
        Stage.PROCESSOR,
        170,
        "begin_suppress_tokens",
        batched=Ban,
        build=lambda kind, tokens, setting: kind(tokens, _begin_index(setting), setting.device),
    )

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

        Raises:
            InvalidRequestError: ``begin_index`` is no integer of at least 0.
        """
        self.begin_suppress_tokens = VocabularyIds(token_list(begin_suppress_tokens), device)
        self.begin_index = check_count("begin_index", begin_index, least=0)

    def due(self, length: int) -> VocabularyIds | None:
        """Return the tokens at the first step."""
        return self.begin_suppress_tokens if length == self.begin_index else None


def _begin_index(setting: BuildContext) -> int:
    """Return the length at which the first token that is not forced is generated."""
    forced = setting.prompt_length <= 1 and setting.config.forced_bos_token_id is not None
    return setting.prompt_length + int(forced)


def remove_invalid(scores: Tensor) -> Tensor:
    """Replace NaN by 0 and infinities by the largest finite values, in [B, V]."""
    limits = torch.finfo(scores.dtype)
    return scores.nan_to_num(nan=0.0, posinf=limits.max, neginf=limits.min)


def normalize(scores: Tensor) -> Tensor:
    """Apply a log-softmax to the scores, [B, V]."""
    return scores.log_softmax(-1)


class InfNanRemoveLogitsProcessor(ColumnsProcessor):
    """Replaces NaN by 0 and infinities by the largest finite values (`remove_invalid`)."""

    definition = Definition(
        Stage.PROCESSOR,
        140,
        "remove_invalid_values",
        is_on=bool,
        build=lambda kind, *_: kind(),
        batched=Columns(remove_invalid),
    )


class LogitNormalization(ColumnsProcessor):
    """Turns scores into log-probabilities (`normalize`)."""

    definition = Definition(
        Stage.LAST,
        20,
        "renormalize_logits",
        is_on=lambda value: value is True,
        build=lambda kind, *_: kind(),
        batched=Columns(normalize),
    )


class VocabularyIds:
    """Token ids that may lie outside of a vocabulary, cut to it once its size is known."""

    def __init__(self, token_ids: Iterable[int], device: str | torch.device) -> None:
        """Keep the ids.

        Args:
            token_ids: Any integers.
            device: Where the tensor is kept.
        """
        self._ids = self._below = list(token_ids)
        self._tensor = torch.tensor(self._ids, dtype=torch.int64, device=device)
        self._size: int | None = None

    def within(self, scores: Tensor) -> Tensor:
        """Return those below V as int64 [N] on the device of ``scores`` [B, V]."""
        below = self.below(scores.shape[-1])
        if self._tensor.device != scores.device or len(self._tensor) != len(below):
            self._tensor = torch.tensor(below, dtype=torch.int64, device=scores.device)
        return self._tensor

    def below(self, size: int) -> list[int]:
        """Return those below a size V, the same list at every call; asks no device."""
        if self._size != size:
            self._size, self._below = size, [token for token in self._ids if 0 <= token < size]
        return self._below


def token_list(token_ids: TokenIds | Sequence[int]) -> list[int]:
    """Turn one id, a list or a tensor into a list.

    Raises:
        TypeError: It holds something that is no integer.
    """
    if isinstance(token_ids, Tensor):
        listed = token_ids.flatten().tolist()
    else:
        listed = [token_ids] if isinstance(token_ids, int) else list(token_ids)
    is_other = isinstance(token_ids, (*NEVER_IDS, dict)) or bool in map(type, listed)
    if is_other or not all(isinstance(token, int) for token in listed):
        raise TypeError(f"{shorten(token_ids)}: token ids must be integers")
    return listed


def _are_ids(tokens: Iterable[object]) -> bool:
    ids: list[Any] = list(tokens)
    return _are_all(ids, int) and bool not in map(type, ids) and min(ids, default=0) >= 0


def _bias_pairs(table: Any) -> list[tuple[tuple[int, ...], float]]:
    """Bring both forms of a bias table to pairs; of a sequence given twice the last counts."""
    if not isinstance(table, dict | list) or not table:
        allowed = "must be a non-empty list of [token ids, bias] pairs, or a dict"
        raise InvalidRequestError("sequence_bias", table, allowed)
    # There may be as many as tokens of the vocabulary: no function is called for each of them.
    keys: type = tuple if isinstance(table, dict) else list
    sequences: list[Any] = [None]
    biases: list[Any] = []
    if isinstance(table, dict):
        sequences, biases = list(table), list(table.values())
    elif all(isinstance(entry, list | tuple) and len(entry) == 2 for entry in table):
        sequences, biases = [tokens for tokens, _ in table], [bias for _, bias in table]
    are_sequences = _are_all(sequences, keys) and all(sequences)
    if not are_sequences or not _are_ids(chain.from_iterable(sequences)):
        allowed = f"every sequence must be a non-empty {keys.__name__} of token ids"
        raise InvalidRequestError("sequence_bias", table, allowed)
    if not _are_all(biases, float):
        raise InvalidRequestError("sequence_bias", table, "every bias must be a float")
    if not all(abs(bias) <= _LARGEST_BIAS or math.isinf(bias) for bias in biases):
        raise InvalidRequestError(
            "sequence_bias", table, "every bias must be a number that a score can be"
        )
    return list(dict(zip(map(tuple, sequences), biases, strict=True)).items())


def _are_all(values: Iterable[object], kind: type) -> bool:
    return all(issubclass(each, kind) for each in set(map(type, values)))
