"""Tournament sampling: SynthID's watermark, as a processor of scores.

Dathathri et al. 2024, "Scalable watermarking for identifying large language model outputs",
Nature 634, 818-823: section "Tournament sampling" and the vectorised form in its methods.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.base import Definition, LogitsProcessor, Stage
from asyncgen.generation.watermarking.config import (
    WORD,
    BaseWatermarkingConfig,
    check_integer,
    watermark_error,
)

if TYPE_CHECKING:
    from torch import Tensor


_LARGEST_TABLE = 2**24
_LONGEST_NGRAM = 64
_MOST_KEYS = 64
_LONGEST_HISTORY = 2**16
"""Far beyond what is of use; each costs every step of a row its time, and others that wait."""

_MULTIPLIER = 6364136223846793005
_INCREMENT = 1


@dataclass
class SynthIDTextWatermarkingConfig(BaseWatermarkingConfig):
    """A watermark by tournament sampling (Dathathri et al. 2024, Nature 634, 818-823).

    Attributes:
        ngram_len: Tokens of a hashed n-gram, the new one included; from 1 to 64.
        keys: Secrets, one for each layer of the tournament; at most 64, of 64 bits each.
        context_history_size: Contexts that are remembered, at most 2**16; one that recurs is not
            watermarked.
        sampling_table_seed: Seed of the table of g-values.
        sampling_table_size: Size of that table, below 2**24.
        skip_first_ngram_calls: Leave the first ``ngram_len - 1`` tokens without a watermark.
        debug_mode: Watermark a uniform distribution in place of the model's.
    """

    ngram_len: int
    keys: list[int]
    context_history_size: int = 1024
    sampling_table_seed: int = 0
    sampling_table_size: int = 2**16
    skip_first_ngram_calls: bool = False
    debug_mode: bool = False

    own_keys: ClassVar[frozenset[str]] = frozenset({"ngram_len", "keys"})
    remembers: ClassVar[bool] = True

    def validate(self) -> None:
        """Check the fields.

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        check_integer("ngram_len", self.ngram_len, 1, _LONGEST_NGRAM)
        check_integer("context_history_size", self.context_history_size, 0, _LONGEST_HISTORY)
        check_integer("sampling_table_seed", self.sampling_table_seed, 0)
        check_integer("sampling_table_size", self.sampling_table_size, 1)
        if self.sampling_table_size >= _LARGEST_TABLE:
            raise watermark_error(
                "sampling_table_size", self.sampling_table_size, "must be below 2**24"
            )
        if not isinstance(self.keys, list | tuple) or not 1 <= len(self.keys) <= _MOST_KEYS:
            raise watermark_error(
                "keys", self.keys, f"must be a list of 1 to {_MOST_KEYS} integers"
            )
        for key in self.keys:
            check_integer("keys", key, -WORD // 2, WORD // 2 - 1)
        for name in ("skip_first_ngram_calls", "debug_mode"):
            if not isinstance(getattr(self, name), bool):
                raise watermark_error(name, getattr(self, name), "must be True or False")

    def construct_processor(
        self, vocab_size: int, device: str | torch.device
    ) -> SynthIDTextWatermarkLogitsProcessor:
        """Make the processor that holds the tournament.

        Args:
            vocab_size: Not used: any vocabulary will do.
            device: Where scores will be.
        """
        return SynthIDTextWatermarkLogitsProcessor(**self.to_dict(), device=device)


def extend_hash(state: Tensor, data: Tensor) -> Tensor:
    """Hash one value more, with the linear congruential generator of newlib and musl.

    Args:
        state: Hash so far, int64.
        data: The value, int64, of a shape that broadcasts with it.

    Returns:
        The new hash, int64; products wrap modulo 2**64.
    """
    return (state + data) * _MULTIPLIER + _INCREMENT


def tournament_layer(probabilities: Tensor, g_values: Tensor) -> Tensor:
    """Play one layer of the tournament, between two draws of the distribution so far.

    Args:
        probabilities: [B, V].
        g_values: Who wins, 0 or 1, [B, V].

    Returns:
        The distribution of the winner, [B, V].
    """
    mass = (g_values * probabilities).sum(dim=1, keepdim=True)
    return probabilities * (1 + g_values - mass)


@dataclass(slots=True)
class _State:
    """Memory of a processor about the sequences.

    Attributes:
        context: The last ``ngram_len - 1`` generated tokens, zeros before, int64 [B, N - 1].
        history: Hashes of contexts that were used, newest first, int64 [B, context_history_size].
        num_calls: Tokens so far.
    """

    context: Tensor
    history: Tensor
    num_calls: int = 0

    def take(self, tokens: Tensor) -> None:
        """Take a generated token of each row in, int64 [B, 1]."""
        self.context = torch.cat((self.context, tokens), dim=1)[:, 1:]


class SynthIDTextWatermarkLogitsProcessor(LogitsProcessor):
    """Favours tokens whose g-values win the tournament (`tournament_layer`).

    The shift depends on the last ``ngram_len - 1`` generated tokens. It keeps state: one object
    serves one generation, and must see every token of it.

    Attributes:
        prompt_length: Tokens of the prompt. Those behind it at the first call were generated
            before, and are remembered as if it had seen them come; None if that is never so.
    """

    definition = Definition(
        # It remembers the sequence from its first call on, and holds a table to be shared.
        Stage.LAST,
        10,
        for_sample=lambda own, _: copy.copy(own),
    )

    def __init__(
        self,
        ngram_len: int,
        keys: list[int],
        sampling_table_size: int,
        sampling_table_seed: int,
        context_history_size: int,
        device: str | torch.device,
        skip_first_ngram_calls: bool = False,
        debug_mode: bool = False,
    ) -> None:
        """Check the parameters and draw the table of g-values.

        Args:
            ngram_len: Tokens of a hashed n-gram, the new one included; at least 1.
            keys: Secrets, one for each layer of the tournament.
            sampling_table_size: Size of the table, below 2**24.
            sampling_table_seed: Its seed.
            context_history_size: Contexts that are remembered.
            device: Where the table is drawn and scores will be.
            skip_first_ngram_calls: Leave the first ``ngram_len - 1`` tokens without a watermark.
            debug_mode: Watermark a uniform distribution in place of the model's.

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        config = SynthIDTextWatermarkingConfig(
            ngram_len,
            keys,
            context_history_size,
            sampling_table_seed,
            sampling_table_size,
            skip_first_ngram_calls,
            debug_mode,
        )
        config.validate()
        self.ngram_len = ngram_len
        self.keys = torch.tensor(keys, dtype=torch.int64, device=device)
        self.context_history_size = context_history_size
        self.device = torch.device(device)
        self.skip_first_ngram_calls = skip_first_ngram_calls
        self.debug_mode = debug_mode
        generator = torch.Generator(device=device).manual_seed(sampling_table_seed)
        self.sampling_table = torch.randint(
            0, 2, (sampling_table_size,), generator=generator, dtype=torch.int64, device=device
        )
        self.prompt_length: int | None = None
        self._state: _State | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Watermark the scores.

        Args:
            input_ids: Tokens so far, int64 [B, T]; after the first call only the last one of a
                row is new.
            scores: [B, V].

        Returns:
            Log-probabilities, [B, V]; impossible tokens have the least finite value.

        Raises:
            InvalidRequestError: The ids do not have two dimensions.
        """
        self._check_input_ids_shape(input_ids)
        if self.debug_mode:
            scores = torch.ones_like(scores)
        state = self._advance(input_ids)
        if self.skip_first_ngram_calls and state.num_calls < self.ngram_len:
            return scores
        context_hash = self._hash(state.context)  # [B]
        watermarked = self._tournament(scores, context_hash)
        used = (state.history == context_hash[:, None]).any(dim=1, keepdim=True)
        self._remember(context_hash)
        return torch.where(used, scores, watermarked)

    def _advance(self, input_ids: Tensor) -> _State:
        """Take the token of the last call in."""
        batch, device = input_ids.shape[0], input_ids.device
        state = self._state
        if state is None:
            state = self._state = _State(
                torch.zeros(batch, self.ngram_len - 1, dtype=torch.int64, device=device),
                torch.zeros(batch, self.context_history_size, dtype=torch.int64, device=device),
            )
            length = input_ids.shape[1]
            end = min(self.prompt_length or length, length)
            # What is older is forgotten; a context is whole once its tokens were taken.
            begin = max(end, length - self.context_history_size - self.ngram_len)
            state.num_calls = begin - end
            for place in range(begin, length):
                state.num_calls += 1
                if not self.skip_first_ngram_calls or state.num_calls >= self.ngram_len:
                    self._remember(self._hash(state.context))
                state.take(input_ids[:, place : place + 1])
        else:
            state.take(input_ids[:, -1:])
        state.num_calls += 1
        return state

    def _remember(self, context_hash: Tensor) -> None:
        """Take note of a context that was used, by its hash, int64 [B]."""
        assert self._state is not None
        history = torch.cat((context_hash[:, None], self._state.history), dim=1)
        self._state.history = history[:, : self.context_history_size]

    def _tournament(self, scores: Tensor, context_hash: Tensor) -> Tensor:
        """Play all layers over the whole vocabulary; log-probabilities [B, V]."""
        tokens = torch.arange(scores.shape[-1], dtype=torch.int64, device=scores.device)
        ngram_hash = extend_hash(context_hash[:, None], tokens)  # [B, V]
        probabilities = scores.softmax(dim=1)
        for key in self.keys.to(scores.device):
            probabilities = tournament_layer(
                probabilities, self.sample_g_values(extend_hash(ngram_hash, key))
            )
        logs = probabilities.log()
        # Rounding makes impossible tokens slightly negative, whose logarithm is NaN. A probability
        # that is NaN itself comes of bad scores, and stays.
        possible = logs.isfinite() | probabilities.isnan()
        return torch.where(possible, logs, torch.finfo(logs.dtype).min)

    # What a detector needs: the same values for text that is already there.

    def accumulate_hash(
        self,
        current_hash: Tensor,
        data: Tensor,
        multiplier: int = _MULTIPLIER,
        increment: int = _INCREMENT,
    ) -> Tensor:
        """Hash several values, one after the other.

        Args:
            current_hash: Hash so far, int64 [...].
            data: Values, int64 [..., N].
            multiplier: Of the linear congruential generator.
            increment: Of the same.

        Returns:
            The new hash, int64 [...].
        """
        for value in data.unbind(-1):
            current_hash = (current_hash + value) * multiplier + increment
        return current_hash

    def compute_ngram_keys(self, ngrams: Tensor) -> Tensor:
        """Hash n-grams with every key.

        Args:
            ngrams: int64 [B, N, ngram_len].

        Returns:
            int64 [B, N, depth].

        Raises:
            InvalidRequestError: The n-grams have another length.
        """
        if ngrams.dim() != 3 or ngrams.shape[2] != self.ngram_len:
            allowed = f"must be [B, N, {self.ngram_len}]; the last dimension is `ngram_len`"
            raise InvalidRequestError("ngrams", tuple(ngrams.shape), allowed)
        hashed = self._hash(ngrams)  # [B, N]
        return extend_hash(hashed[..., None], self.keys.to(ngrams.device))

    def sample_g_values(self, ngram_keys: Tensor) -> Tensor:
        """Look the g-values of keys up.

        Args:
            ngram_keys: int64 [...].

        Returns:
            0 or 1, int64 [...].
        """
        table = self.sampling_table.to(ngram_keys.device)
        return table[ngram_keys % table.shape[0]]

    def compute_g_values(self, input_ids: Tensor) -> Tensor:
        """Find the g-values of every n-gram of a text.

        Args:
            input_ids: int64 [B, T].

        Returns:
            int64 [B, T - ngram_len + 1, depth].
        """
        self._check_input_ids_shape(input_ids)
        return self.sample_g_values(self.compute_ngram_keys(input_ids.unfold(1, self.ngram_len, 1)))

    def compute_context_repetition_mask(self, input_ids: Tensor) -> Tensor:
        """Tell which n-grams of a text have a context that did not occur before.

        Args:
            input_ids: int64 [B, T].

        Returns:
            Bool [B, T - ngram_len + 1]; False where the context is one of the last
            ``context_history_size`` ones.
        """
        self._check_input_ids_shape(input_ids)
        contexts = input_ids[:, :-1].unfold(1, self.ngram_len - 1, 1)  # [B, N, ngram_len - 1]
        hashes = self._hash(contexts)  # [B, N]
        size, length = self.context_history_size, hashes.shape[1]
        # The history begins as zeros, so a context that hashes to zero counts as seen.
        history = torch.cat((hashes.new_zeros(hashes.shape[0], size), hashes), dim=1)
        if size == 0:
            return torch.ones_like(hashes, dtype=torch.bool)
        earlier = history.unfold(1, size, 1)[:, :length]  # [B, N, size]
        return ~(earlier == hashes[..., None]).any(-1)

    def compute_eos_token_mask(self, input_ids: Tensor, eos_token_id: int) -> Tensor:
        """Tell which tokens of a text come before its end.

        Args:
            input_ids: int64 [B, T].
            eos_token_id: The token that ends a text.

        Returns:
            int64 [B, T]: 1 before the first end token, 0 from there on.
        """
        self._check_input_ids_shape(input_ids)
        return ((input_ids == eos_token_id).cumsum(dim=1) == 0).long()

    def expected_mean_g_value(self, vocab_size: int, coinflip_prob: float = 0.5) -> float:
        """Expect this mean g-value of one layer if the model's distribution were uniform.

        Args:
            vocab_size: Tokens of the model.
            coinflip_prob: Probability that a g-value is 1.
        """
        return coinflip_prob + coinflip_prob * (1 - coinflip_prob) * (1 - 1 / vocab_size)

    def _hash(self, data: Tensor) -> Tensor:
        """Hash the last dimension from the beginning, int64 [...]."""
        return self.accumulate_hash(data.new_ones(data.shape[:-1]), data)

    def _check_input_ids_shape(self, input_ids: Tensor) -> None:
        if input_ids.dim() != 2:
            raise InvalidRequestError("input_ids", tuple(input_ids.shape), "must be [B, T]")
