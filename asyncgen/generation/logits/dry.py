"""DRY ("don't repeat yourself"): penalise tokens that would go on with a repetition.

After llama.cpp's sampler of that name. A token that followed an earlier run of tokens, of which
the text now ends with a copy, gets a penalty that grows exponentially with the run's length. Texts
that break sequences, such as line ends, end a run.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.base import (
    Definition,
    LogitsProcessor,
    Stage,
    check_count,
    is_finite,
)
from asyncgen.generation.logits.sequence_memory import Memories, with_fresh_memory
from asyncgen.generation.stopping.stop_strings import TokenBytes
from asyncgen.runtime.request_failure import request_failure
from asyncgen.runtime.transfer import host_ints, to_device

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from asyncgen.generation.logits.batched import BatchScores, RowProcessor

Breakers: TypeAlias = Mapping[int, "tuple[tuple[int, ...], ...]"]
"""Of each token that begins the end of a sequence, the tokens that must follow: none, or some."""

_LONGEST_TAIL = 20
"""Tokens behind the first one of a breaker."""

_MOST_KEPT = 16
"""Lists of texts whose breakers are kept, of each tokenizer."""

_vocabularies: weakref.WeakKeyDictionary[Any, dict[int, _Vocabulary]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()

_LONE_BYTES = "".join(map(chr, range(0xDC80, 0xDD00)))
"""Bytes that are no character, as Python decodes them."""

_LOG_OF_LARGEST = 88.7228391
"""Logarithm of the largest float32: no penalty grows beyond it."""


def find_breakers(tokenizer: Any, texts: Iterable[str], vocab_size: int) -> Breakers:
    """Find the tokens in which texts begin that break sequences.

    Args:
        tokenizer: Of the model.
        texts: None of them empty. The first ones take a while: the whole vocabulary is decoded.
        vocab_size: Token ids are below this.

    Returns:
        A token that holds a whole text breaks alone; one that ends with the beginning of a text
        does with the tokens of the rest behind it. llama.cpp finds the same ones, but that it
        leaves out the space in front of a token of SentencePiece, and takes the last bytes of a
        character that tokens divide for other characters.
    """
    size = min(len(tokenizer), vocab_size)
    with _lock:
        known = _vocabularies.setdefault(tokenizer, {})
        if size not in known:
            table = TokenBytes(tokenizer)
            known[size] = _Vocabulary([table[token_id] for token_id in range(size)])
        return known[size].breakers(tuple(texts), tokenizer)


class _Vocabulary:
    """The bytes of all tokens, and the breakers that were looked for among them."""

    def __init__(self, words: list[bytes]) -> None:
        self._words = words
        self._ids_of = {word: token_id for token_id, word in reversed([*enumerate(words)])}
        self._kept: OrderedDict[tuple[str, ...], Breakers] = OrderedDict()

    def breakers(self, texts: tuple[str, ...], tokenizer: Any) -> Breakers:
        """Return the breakers of some texts; those of the last ones are kept."""
        if texts not in self._kept:
            self._kept[texts] = self._find(texts, tokenizer)
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(texts)
        return self._kept[texts]

    def _find(self, texts: tuple[str, ...], tokenizer: Any) -> Breakers:
        found: dict[int, list[tuple[int, ...]]] = {}
        for sought in map(str.encode, texts):
            tails: dict[int, tuple[int, ...]] = {}
            for token_id, word in enumerate(self._words):
                if sought[:1] not in word:
                    continue
                own = found.setdefault(token_id, [])
                if sought in word:
                    own.append(())
                    continue
                for cut in range(1, len(sought)):
                    if word.endswith(sought[:cut]):
                        if cut not in tails:
                            tails[cut] = self._tokenized(sought[cut:], tokenizer)
                        own.append(tails[cut])
        return {token_id: tuple(dict.fromkeys(own)) for token_id, own in found.items() if own}

    def _tokenized(self, rest: bytes, tokenizer: Any) -> tuple[int, ...]:
        """Return the tokens of the rest of a text, which may begin inside of a character."""
        text = rest.decode(errors="surrogateescape")
        inside = len(text) - len(text.lstrip(_LONE_BYTES))
        first, ids = rest[:inside], self._ids_of
        lone = [first] if first in ids else [rest[place : place + 1] for place in range(inside)]
        begun = [ids.get(each, -1) for each in lone]
        behind = tokenizer.encode(text[inside:], add_special_tokens=False) if text[inside:] else []
        return tuple([*begun, *behind][:_LONGEST_TAIL])


class Repetitions:
    """A sequence, and the earlier runs that it ends with a copy of.

    A token more costs three operations on whole vectors, so that no text makes a step long.
    """

    def __init__(self, breakers: Breakers | None = None) -> None:
        """Begin with no token.

        Args:
            breakers: Where sequences break; None for nowhere.
        """
        self.tokens: list[int] = []
        self._breakers = breakers or {}
        self._heads: list[int] = []  # places of tokens that may begin a breaker
        self._breaks: list[tuple[int, int]] = []  # the last breaker at each place, as `last_break`
        self._ids, self._lengths = torch.zeros(2, 64, dtype=torch.int64, device="cpu")
        self._is_followed = True

    def __len__(self) -> int:
        """Tokens that were taken in."""
        return len(self.tokens)

    @property
    def ids(self) -> Tensor:
        """The tokens, int64 [T]."""
        return self._ids[: len(self.tokens)]

    @property
    def lengths(self) -> Tensor:
        """Of each place, the length of the run that ends there and at the end, int64 [T].

        That of the last place is 0: it is the end itself.
        """
        found = self._lengths[: len(self.tokens)]
        if not self._is_followed:
            found.copy_(host_ints(matches_of_end(self.tokens)))
            self._is_followed = True
        return found

    @property
    def last_break(self) -> tuple[int, int]:
        """Place of the first token of the last breaker, and the number of tokens behind it.

        -1 and 0 where there is none.
        """
        return self._breaks[-1] if self._breaks else (-1, 0)

    def extend(self, tokens: Iterable[int]) -> None:
        """Take further tokens in."""
        new, before = list(tokens), len(self.tokens)
        for token in new:
            self.tokens.append(token)
            self._breaks.append(self._find_break(token))
        size = len(self.tokens)
        if size > len(self._ids):
            for name in ("_ids", "_lengths"):
                larger = torch.zeros(2 * size, dtype=torch.int64, device="cpu")
                larger[:before] = getattr(self, name)[:before]
                setattr(self, name, larger)
        self._ids[before:size] = host_ints(new)
        if len(new) == 1 and self._is_followed:
            longer = self._lengths[:before].roll(1).add_(1)
            longer[:1] = 1
            torch.mul(longer, self._ids[:before] == new[0], out=self._lengths[:before])
            self._lengths[before] = 0
        elif new:
            self._is_followed = False

    def pop(self) -> None:
        """Take the last token back."""
        self.tokens.pop()
        self._breaks.pop()
        if self._heads and self._heads[-1] == len(self.tokens):
            self._heads.pop()
        self._is_followed = False

    def _find_break(self, token: int) -> tuple[int, int]:
        """Return the last breaker behind which, or at whose end, a new token stands."""
        tokens, place = self.tokens, len(self.tokens) - 1
        if token in self._breakers:
            self._heads.append(place)
        for head in reversed(self._heads):
            if place - head > _LONGEST_TAIL:
                break  # what there is of it was found before
            behind = tuple(tokens[head + 1 :])
            tails = self._breakers[tokens[head]]
            met = [len(tail) for tail in tails if behind[: len(tail)] == tail]
            if met:
                return head, max(met)
        return self.last_break


def matches_of_end(tokens: Sequence[int]) -> list[int]:
    """Find where the end of a sequence occurs before, in linear time.

    The Z algorithm (Gusfield 1997, section 1.4) on the sequence from behind.

    Returns:
        Of each place, the length of the run that ends there and at the end; 0 for the last one.
    """
    size = len(tokens)
    behind = tokens[::-1]
    lengths = [0] * size
    left = right = 0
    for place in range(1, size):
        length = min(lengths[place - left], right - place) if place < right else 0
        while place + length < size and behind[length] == behind[place + length]:
            length += 1
        lengths[place] = length
        if place + length > right:
            left, right = place, place + length
    return lengths[::-1]


@dataclass(frozen=True, slots=True)
class DRY:
    """Settings of the penalty.

    Attributes:
        multiplier: Penalty on the shortest repetition that has one.
        base: Factor for each token more.
        allowed_length: Longest repetition without one.
        last_n: Tokens at the end in which repetitions are looked for; None for all.
        breakers: Where sequences break.
    """

    multiplier: float
    base: float = 1.75
    allowed_length: int = 2
    last_n: int | None = None
    breakers: Breakers | None = None

    def penalties(self, seen: Repetitions) -> dict[int, float]:
        """Return the penalty of each token that would go on with a repetition."""
        tokens = seen.tokens
        first = 0 if self.last_n is None else max(len(tokens) - self.last_n, 0)
        lengths = seen.lengths[first:-1]
        most = int(lengths.max()) if len(lengths) else 0
        if most < self.allowed_length:
            return {}
        head, behind = seen.last_break
        if head >= first:
            most = min(most, len(tokens) - 1 - head - behind)
        places = (lengths >= self.allowed_length).nonzero()[:, 0]
        # No run begins before the window.
        found = lengths[places].minimum(places + 1).clamp(max=most)
        longest = _longest_of_each(seen.ids[first + places + 1], found, self.allowed_length)
        return {
            token: self.multiplier * self.base ** self._exponent(length)
            for token, length in longest.items()
            if () not in (self.breakers or {}).get(token, ())
        }

    def _exponent(self, length: int) -> int:
        exponent = length - self.allowed_length
        if self.base > 1.000001:
            return min(exponent, int(_LOG_OF_LARGEST / math.log(self.base)))
        return exponent


class DRYLogitsProcessor(LogitsProcessor):
    """Penalises tokens that would go on with a repetition, in prompt and answer (`DRY`)."""

    definition = Definition(
        Stage.PROCESSOR,
        195,
        "dry_multiplier",
        off=0.0,
        build=lambda kind, multiplier, setting: kind(
            multiplier,
            setting.value("dry_base"),
            setting.value("dry_allowed_length"),
            None if (last_n := setting.value("dry_penalty_last_n")) == -1 else last_n,
            setting.value("dry_breakers"),
            tail_only=setting.tail_only,
        ),
        batched=lambda parts, scores: _BatchedDRY(parts, scores),
        for_sample=with_fresh_memory,
    )

    def __init__(
        self,
        multiplier: float,
        base: float = 1.75,
        allowed_length: int = 2,
        last_n: int | None = None,
        breakers: Breakers | None = None,
        *,
        tail_only: bool = False,
    ) -> None:
        """Check the parameters.

        Args:
            multiplier: Penalty on the shortest repetition that has one, at least 0.
            base: Factor for each token more, at least 1.
            allowed_length: Longest repetition without a penalty, at least 1.
            last_n: Tokens at the end in which repetitions are looked for; None for all.
            breakers: Where sequences break (`find_breakers`); None for nowhere.
            tail_only: Promise that rows only ever change at their end; see `RowTracker`.

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        for name, value, least in (("dry_multiplier", multiplier, 0), ("dry_base", base, 1)):
            if not is_finite(value) or value < least:
                raise InvalidRequestError(name, value, f"must be a number of at least {least}")
        check_count("dry_allowed_length", allowed_length)
        if last_n is not None:
            check_count("dry_penalty_last_n", last_n, least=0)
        self.dry = DRY(multiplier, base, allowed_length, last_n, breakers)
        self.memories: Memories[Repetitions] = Memories(
            lambda _: Repetitions(breakers), tail_only=tail_only
        )

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Subtract the penalties; ids are int64 [B, T], scores [B, V]."""
        rows = [self.dry.penalties(memory) for memory in self.memories.of(input_ids)]
        if not any(rows):
            return scores
        changed = scores.clone()
        for own, penalties in zip(changed, rows, strict=True):
            _subtract(own, _within(penalties, scores.shape[-1]), 0)
        return changed

    def penalties(self, token_ids: list[int], size: int) -> dict[int, float]:
        """Return the penalties of one row of a batch.

        Raises:
            IndexError: A token is not of the vocabulary.
        """
        return _within(self.dry.penalties(self.memories.of_list(token_ids)), size)


class _BatchedDRY:
    """Subtracts the penalties of several rows, in place."""

    def __init__(self, parts: list[RowProcessor], scores: BatchScores) -> None:
        self._parts = parts

    def __call__(self, scores: BatchScores) -> None:
        """Change the scores of one step."""
        for row, processor in self._parts:
            try:
                penalties = processor.penalties(scores.rows[row].tokens, scores.size)
            except BaseException as error:
                scores.failures.setdefault(row, request_failure(error))
            else:
                _subtract(scores.flat, penalties, row * scores.size)


def _longest_of_each(tokens: Tensor, lengths: Tensor, least: int) -> dict[int, int]:
    """Return the largest length of each token, of those that reach the least; all int64 [N]."""
    best = torch.zeros(int(tokens.max()) + 1, dtype=torch.int64, device="cpu")
    best.scatter_reduce_(0, tokens, lengths, "amax")
    kept = (best >= least).nonzero()[:, 0]
    return dict(zip(kept.tolist(), best[kept].tolist(), strict=True))


def _subtract(flat: Tensor, penalties: dict[int, float], offset: int) -> None:
    """Subtract the penalties of one row from flattened scores, in place."""
    if penalties:
        places = to_device(host_ints([offset + token for token in penalties]), flat.device)
        values = to_device(
            torch.tensor([*penalties.values()], dtype=flat.dtype, device="cpu"), flat.device
        )
        flat[places] = flat[places] - values


def _within(penalties: dict[int, float], size: int) -> dict[int, float]:
    largest = max(penalties, default=-1)
    if largest >= size:
        raise IndexError(f"token {largest} is not below the {size} scores")
    return penalties
