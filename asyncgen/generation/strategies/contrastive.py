"""Contrastive search: probable tokens that do not repeat what was said before.

Su et al. 2022, "A Contrastive Framework for Neural Text Generation" (arXiv 2202.06417), section
3.2: of the k most probable tokens the one with the best balance between its probability and its
likeness to the context, measured on the model's last hidden states, which one forward pass over
all candidates gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch
from torch.nn import functional as F

from asyncgen.cache.caches import Cache, DynamicCache
from asyncgen.cache.encoder_decoder import EncoderDecoderCache
from asyncgen.cache.quantized.quantized_cache import QuantizedCache
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.parameters import STATIC_CACHES
from asyncgen.generation.strategies.forward import Forward, read_prompt
from asyncgen.generation.strategies.layer_outputs import LayerOutputs
from asyncgen.generation.strategies.step import Outcome, Plan, Step, Steps
from asyncgen.generation.strategies.token_by_token import Sequences, require_finite
from asyncgen.runtime.transfer import host_range

if TYPE_CHECKING:
    from collections.abc import Generator

    from torch import Tensor

    from asyncgen.generation.config import GenerationConfig


LookAhead: TypeAlias = "tuple[Tensor, Tensor]"
"""Hidden states ``[B, k, E]`` of the candidates, and the logits ``[B, k, V]`` after them."""


def check_contrastive(config: GenerationConfig, vocab_size: int, cache: Cache | None) -> None:
    """Refuse what contrastive search cannot do.

    Args:
        config: Complete configuration.
        vocab_size: Tokens to choose from.
        cache: The cache to continue, if there is one.

    Raises:
        InvalidRequestError: Names the parameter.
    """
    if config.use_cache is False:
        raise InvalidRequestError("use_cache", False, "contrastive search needs the cache")
    if config.cache_implementation in (*STATIC_CACHES, "quantized"):
        raise InvalidRequestError(
            "cache_implementation",
            config.cache_implementation,
            "contrastive search tries candidates out, so the cache must be dynamic",
        )
    fits = isinstance(cache, DynamicCache) and not isinstance(cache, QuantizedCache)
    if cache is not None and (not fits or cache.get_seq_length()):
        raise InvalidRequestError(
            "past_key_values",
            repr(cache),
            "contrastive search compares with the hidden states of the whole prompt, which a cache "
            "does not have; give an empty `DynamicCache`",
        )
    alpha, width = _settings(config)
    if not 0 < alpha <= 1:
        raise InvalidRequestError("penalty_alpha", alpha, "above 0, at most 1")
    if width > vocab_size:
        raise InvalidRequestError("top_k", width, f"at most the {vocab_size} tokens there are")


@torch.no_grad()
def contrastive(plan: Plan) -> Steps:
    """Look at the k best tokens of every row, settle one of them; again.

    Yields:
        A :class:`Step` without ids for each prompt chunk (with ``low_memory`` also for each
        candidate but the last), then one with a token of every live row.

    Returns:
        Prompt and continuation of every row.

    Raises:
        FloatingPointError: Scores hold NaN or ban every token.
    """
    alpha, width = _settings(plan.config)
    rows = torch.arange(len(plan.input_ids), dtype=torch.int64, device=plan.input_ids.device)
    sequences = Sequences(plan)
    context = _Context(plan.attention_mask)
    hidden = yield from _read_prompt(plan, context)
    candidates: _AllCandidatesAtOnce | _CandidatesOneByOne
    candidates = (
        _CandidatesOneByOne(plan) if plan.config.low_memory else _AllCandidatesAtOnce(plan, width)
    )
    logits = candidates.project(hidden).float()
    record = plan.record
    # What belongs to a token is the pass that its logits come from, one look before.
    inside = [] if record is None else record.take()
    while True:
        scores = plan.processors(sequences.ids, logits.clone()) if plan.processors else logits
        require_finite(scores.max(dim=-1).values, sequences.length)
        chances, guesses = torch.softmax(scores, dim=-1).topk(width)  # [B, k]
        seen, after = yield from candidates.look_ahead(guesses)
        similarity = context.similarity(seen)
        best = ((1.0 - alpha) * chances - alpha * similarity).argmax(dim=-1)  # [B]
        step = sequences.settle(guesses[rows, best], scores)
        step.logits, step.scores = logits, scores
        is_over = not any(sequences.live)
        if is_over:
            candidates.finish()
        if record is not None:
            record.fresh, inside = inside, [candidates.layer_outputs(best)]
        yield step
        if is_over:
            return Outcome(sequences.ids.clone())
        candidates.keep(best)
        context.add(seen[rows, best][:, None])
        logits = after[rows, best].float()


def _settings(config: GenerationConfig) -> tuple[float, int]:
    """The degeneration penalty and the number of candidates, k."""
    assert config.penalty_alpha is not None and config.top_k is not None
    return config.penalty_alpha, config.top_k


def _read_prompt(plan: Plan, context: _Context) -> Generator[Step, None, Tensor]:
    """Run the prompt in chunks; return the hidden states ``[B, E]`` of its last position."""
    forward, prompt = Forward(plan), plan.unread(0)

    def run(ids: Tensor) -> Tensor:
        hidden = forward.hidden(ids)
        context.add(hidden)
        return hidden[:, -1].contiguous()

    return read_prompt(run, prompt, plan.prefill_chunk, len(prompt))


class _Context:
    """Directions of all hidden states so far, in a buffer that doubles when it is full."""

    def __init__(self, attention_mask: Tensor | None) -> None:
        """Begin empty; the mask ``[B, S]`` says which positions of the prompt are padding."""
        self._padding = None if attention_mask is None else ~attention_mask
        self._states: Tensor | None = None  # [B, capacity, E]
        self._length = 0

    def add(self, hidden: Tensor) -> None:
        """Take in hidden states ``[B, S, E]``."""
        end = self._length + hidden.shape[1]
        old = self._states
        if old is None or end > old.shape[1]:
            room = max(end, 2 * self._length, 64)
            grown = hidden.new_empty(len(hidden), room, hidden.shape[2], dtype=torch.float32)
            if old is not None:
                grown[:, : self._length] = old[:, : self._length]
            self._states = old = grown
        old[:, self._length : end] = F.normalize(hidden.float(), dim=-1)
        self._length = end

    def similarity(self, hidden: Tensor) -> Tensor:
        """Largest cosine ``[B, k]`` between hidden states ``[B, k, E]`` and any so far."""
        assert self._states is not None
        known = self._states[:, : self._length]
        cosines = F.normalize(hidden.float(), dim=-1) @ known.transpose(1, 2)  # [B, k, T]
        if self._padding is not None:
            width = self._padding.shape[1]
            cosines[:, :, :width].masked_fill_(self._padding[:, None], -torch.inf)
        return cosines.amax(dim=-1)


class _Candidates:
    """Tries candidates out; the cache goes on with the best ones."""

    def __init__(self, plan: Plan, width: int = 1) -> None:
        """Widen the cache of the prompt, to so many rows of each."""
        self._cache, self._width, self._record = plan.cache, width, plan.record
        self._cache.activate_past_recording()
        if width > 1:
            self._cache.batch_repeat_interleave(width)
            plan = plan.repeated(width)
        self._forward = Forward(plan)
        self.project = self._forward.project

    def finish(self) -> None:
        """Leave the cache with one row of each prompt, without the last token."""
        self._forward.crop(self._forward.length - 1)
        if self._width > 1:
            rows = _decoder_cache(self._cache)[0][0].shape[0]
            self._cache.batch_select_indices(host_range(0, rows, self._width))


class _AllCandidatesAtOnce(_Candidates):
    """Looks at all candidates in one forward pass of B · k rows."""

    def look_ahead(self, guesses: Tensor) -> Generator[Step, None, LookAhead]:
        """Run candidates ``[B, k]``."""
        hidden = self._forward.hidden(guesses.reshape(-1, 1))[:, 0]  # [B * k, E]
        logits = self.project(hidden.contiguous())
        shape = (*guesses.shape, -1)
        return hidden.view(shape), logits.view(shape)
        yield

    def keep(self, best: Tensor) -> None:
        """Give all rows the newest position of the best candidates ``[B]``."""
        rows = self._rows(best).repeat_interleave(self._width)
        newest = [
            (keys[rows, :, -1:], values[rows, :, -1:])
            for keys, values in _decoder_cache(self._cache)
        ]
        _replace_newest(self._forward, self._cache, newest)

    def layer_outputs(self, best: Tensor) -> LayerOutputs:
        """Return the outputs of the last look-ahead for the best candidates ``[B]``."""
        assert self._record is not None
        (whole,) = self._record.take()
        rows = self._rows(best)
        return whole.map(lambda layer: layer[rows])

    def _rows(self, best: Tensor) -> Tensor:
        return torch.arange(len(best), dtype=torch.int64, device=best.device) * self._width + best


class _CandidatesOneByOne(_Candidates):
    """Looks at one candidate of every row after the other, in the memory of B rows."""

    def look_ahead(self, guesses: Tensor) -> Generator[Step, None, LookAhead]:
        """Run candidates ``[B, k]``, one column a piece of work."""
        length = self._forward.length
        states, logits = [], []
        self._newest: list[list[tuple[Tensor, Tensor]]] = []
        self._layer_outputs: list[LayerOutputs] = []
        for place in range(guesses.shape[1]):
            if place:
                yield Step([[] for _ in range(len(guesses))])
            self._forward.crop(length)
            hidden = self._forward.hidden(guesses[:, place : place + 1])[:, 0]
            states.append(hidden)
            logits.append(self.project(hidden.contiguous()))
            pairs = [
                (keys[:, :, -1:], values[:, :, -1:]) for keys, values in _decoder_cache(self._cache)
            ]
            self._newest.append([(keys.clone(), values.clone()) for keys, values in pairs])
            if self._record is not None:
                self._layer_outputs += self._record.take()
        return torch.stack(states, dim=1), torch.stack(logits, dim=1)

    def keep(self, best: Tensor) -> None:
        """Give every row the newest position of its best candidate ``[B]``."""
        rows = torch.arange(len(best), dtype=torch.int64, device=best.device)
        newest = []
        for pairs in zip(*self._newest, strict=True):
            keys, values = (torch.stack(each) for each in zip(*pairs, strict=True))
            newest.append((keys[best, rows], values[best, rows]))
        _replace_newest(self._forward, self._cache, newest)

    def layer_outputs(self, best: Tensor) -> LayerOutputs:
        """Return the outputs of the last look-ahead for the best candidates ``[B]``."""
        return LayerOutputs.chosen(self._layer_outputs, best.tolist())


def _decoder_cache(cache: Cache) -> Cache:
    """The cache of the decoder's own positions."""
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def _replace_newest(forward: Forward, cache: Cache, newest: list[tuple[Tensor, Tensor]]) -> None:
    """Put other keys and values ``[B, K, 1, D]`` in the place of the last position's."""
    forward.crop(forward.length - 1)
    for index, (keys, values) in enumerate(newest):
        _decoder_cache(cache).update(keys, values, index)
    forward.length += 1
