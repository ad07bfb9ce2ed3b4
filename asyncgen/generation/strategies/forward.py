"""The model as a strategy sees it: ids in, logits of the last position out, cache growing.

Positions and padding are worked out here, once, so that no strategy repeats them; so is the
encoder of a model with two stacks, which runs before the first decoder position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, cast

import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.encoder_decoder import EncoderDecoderCache
from asyncgen.cache.no_cache import NoCache
from asyncgen.cache.sink import SinkCache
from asyncgen.cache.states import largest_crop, mark_states
from asyncgen.errors import ContextLengthError, InvalidRequestError
from asyncgen.generation.strategies.layer_outputs import LayerOutputs
from asyncgen.generation.strategies.step import Step
from asyncgen.models.attention.cross import Encoded
from asyncgen.models.attention.sink_window import enter_window
from asyncgen.models.contexts import dense_context

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from torch import Tensor

    from asyncgen.cache.caches import Cache
    from asyncgen.generation.strategies.layer_outputs import LayerRecorder
    from asyncgen.generation.strategies.step import EncoderInput, Plan
    from asyncgen.models.attention.dense import AttentionContext
    from asyncgen.models.decoder import DecoderLM
    from asyncgen.models.encoder_decoder import T5


class Forward:
    """Runs the model over the rows of a plan, position after position.

    Attributes:
        length: Positions that are in the cache, padding included.
        repeats: How many positions before the last `crop` are to be computed again, because a
            state could not be taken back to there.
    """

    def __init__(self, plan: Plan) -> None:
        """Begin where the plan's cache ends; an encoder that did not run yet runs now."""
        self.length = plan.cache.text_length
        self.repeats = 0
        self._core = plan.core
        self._cache = plan.cache
        self._decode = plan.core.decode
        self._record = plan.record
        self._weights = _collector(plan.record, "attentions")
        self._cross_weights = _collector(plan.record, "attentions")
        if plan.encoder is not None and plan.encoder.encoded is None:
            plan.encoder.encoded = self._encode(cast("T5", plan.core), plan, plan.encoder)
        self._open(plan)
        self._padding: Tensor | None = None
        self._given_positions = _given_positions(plan)
        self._types = _position_lookup(
            plan, None if plan.inputs is None else plan.inputs.token_type_ids
        )
        if plan.attention_mask is not None:
            # Left padding shifts the positions of a row; real tokens count from 0.
            self._padding = (~plan.attention_mask).sum(dim=1, keepdim=True)
        self._limit = self._last_length(plan)
        self._stays_open = plan.record is not None or self._types is not None
        self._prompt_end = 0 if plan.embeddings is None else plan.num_positions
        self._is_open = self._stays_open or self.length < self._prompt_end

    def __call__(self, input_ids: Tensor) -> Tensor:
        """Append ids ``[B, S]`` to the rows; return the logits ``[B, V]`` after the last one.

        Args:
            input_ids: The ids; of a prompt also embeddings ``[B, S, E]``, here and below.

        Raises:
            ContextLengthError: The model has a table of positions, and it is at its end.
        """
        if self._is_open:
            logits = self.logits(input_ids, 1)[:, 0]
            self._is_open = self._stays_open or self.length < self._prompt_end
            return logits
        return self._decode(input_ids, self._advance(input_ids), self._attention)

    def logits(self, input_ids: Tensor, last: int) -> Tensor:
        """Append ids ``[B, S]``; return the logits ``[B, last, V]`` after as many of the last."""
        return self.project(self.hidden(input_ids)[:, -last:].contiguous())

    def hidden(
        self, input_ids: Tensor, collect: list[Tensor] | None = None, depth: int | None = None
    ) -> Tensor:
        """Append ids ``[B, S]``; return the hidden states ``[B, S, E]``, ready for `project`.

        Args:
            input_ids: The ids.
            collect: Gets the output of every layer, the embeddings first.
            depth: Layers to run; ``None`` for all.

        Raises:
            ContextLengthError: The model has a table of positions, and it is at its end.
        """
        record = self._record
        states = _collector(record, "hidden_states") if collect is None else collect
        found = self._run(self._embed(input_ids), states, depth)
        if record is not None:
            kept = tuple(states or ()) if record.wants_hidden_states else ()
            weights, cross_weights = (
                _take_weights(self._weights),
                _take_weights(self._cross_weights),
            )
            record.fresh.append(LayerOutputs(kept, weights, cross_weights))
        return found

    def project(self, hidden: Tensor) -> Tensor:
        """Logits ``[..., V]`` of hidden states ``[..., E]``."""
        return cast("DecoderLM", self._core).project(hidden)

    def crop(self, length: int) -> None:
        """Forget the positions from ``length`` on; with states, from where they were marked."""
        self.repeats = 0
        if length < self.length:
            self.length = largest_crop(self._cache, length)
            self._cache.truncate(self.length)
            self.repeats = length - self.length

    def mark(self) -> bool:
        """Let `crop` come back to here, where layers keep states; returns whether any do."""
        return mark_states(self._cache)

    def exchange_rows(self, rows: Tensor, first: int) -> None:
        """Let every row become another one: int64 ``[B]``, alike before position ``first``."""
        self._cache.exchange_rows(rows, first)

    def _embed(self, input_ids: Tensor) -> Tensor:
        """Embeddings ``[B, S, E]`` of what comes next."""
        core = cast("DecoderLM", self._core)
        found = input_ids if input_ids.is_floating_point() else core.embed(input_ids)
        if self._types is None:
            return found
        types, _ = self._types(self.length, self.length + found.shape[1])
        return found + core.embed(types)

    def _run(self, embeddings: Tensor, states: list[Tensor] | None, depth: int | None) -> Tensor:
        """Hidden states ``[B, S, E]`` of what comes next."""
        core, positions = cast("DecoderLM", self._core), self._advance(embeddings)
        return core.hidden(embeddings, positions, self._attention, states, depth)

    def _advance(self, input_ids: Tensor) -> Tensor:
        """Positions ``[1 or B, S]`` of the ids that come next."""
        start, self.length = self.length, self.length + input_ids.shape[1]
        if self._limit is not None and self.length > self._limit:
            raise ContextLengthError(
                "max_length",
                self.length,
                f"the model has {self._core.config.position_limit} positions and no more; ask for "
                "fewer tokens",
            )
        return self._positions(start, self.length, input_ids.device)

    def _positions(self, start: int, end: int, device: torch.device) -> Tensor:
        """Return the position ids of positions ``start`` to ``end``, ``[1 or B, S]``."""
        if self._given_positions is not None:
            given, beyond = self._given_positions(start, end)
            return given + beyond
        positions = torch.arange(start, end, dtype=torch.int64, device=device)[None]
        if self._padding is not None:
            positions = (positions - self._padding).clamp_(min=0)
        return positions

    def _open(self, plan: Plan) -> None:
        """Get ready to go on behind what the cache holds."""
        self._attention = self._context(plan, plan.cache)

    def _context(self, plan: Plan, cache: Cache) -> AttentionContext:
        """Return the attention context."""
        if plan.encoder is None:
            return dense_context(
                plan.core, cache, plan.attention_mask, collect_attentions=self._weights
            )
        assert plan.encoder.encoded is not None
        return cast("T5", plan.core).attention(
            cache,
            plan.attention_mask,
            plan.encoder.encoded,
            collect_attentions=self._weights,
            collect_cross_attentions=self._cross_weights,
        )

    def _encode(self, core: T5, plan: Plan, given: EncoderInput) -> Encoded:
        """Run the encoder, unless a cache that is continued holds all that it would say."""
        record = plan.record
        if record is None and _has_encoder_output(plan.cache):
            return Encoded(None, given.attention_mask)
        states, weights = _collector(record, "hidden_states"), _collector(record, "attentions")
        encoded = core.encode(
            encoder_embeddings(core, given),
            given.attention_mask,
            collect=states,
            collect_attentions=weights,
        )
        if record is not None:
            record.encoder = LayerOutputs(tuple(states or ()), tuple(weights or ()))
        return encoded

    def _last_length(self, plan: Plan) -> int | None:
        """Positions after which a model with a table of them has none left."""
        limit = plan.core.config.position_limit
        if limit is not None and self._given_positions is not None:
            last, _ = self._given_positions(plan.num_positions - 1, plan.num_positions)
            return plan.num_positions + limit - 1 - int(last.max())
        if limit is None or self._padding is None:
            return limit
        return limit + int(self._padding.min())


class UncachedForward(Forward):
    """Runs the model without a cache: every pass is over all that was read so far."""

    def _open(self, plan: Plan) -> None:
        self._plan = plan

    def __call__(self, input_ids: Tensor) -> Tensor:
        """See `Forward`."""
        return self.logits(input_ids, 1)[:, 0]

    def _run(self, embeddings: Tensor, states: list[Tensor] | None, depth: int | None) -> Tensor:
        assert isinstance(self._cache, NoCache)
        plan, whole = self._plan, self._cache.read(embeddings)
        fresh: Cache = DynamicCache()
        if plan.encoder is not None:
            fresh = EncoderDecoderCache(fresh, DynamicCache())
        self.length, self._attention = 0, self._context(plan, fresh)
        return super()._run(whole, states, depth)


class SinkForward(Forward):
    """Runs the model with a `SinkCache`, which drops positions before each pass."""

    def _open(self, plan: Plan) -> None:
        if plan.inputs is not None and plan.inputs.position_ids is not None:
            allowed = "positions are those in the `SinkCache`; leave it out"
            shape = tuple(plan.inputs.position_ids.shape)
            raise InvalidRequestError("position_ids", shape, allowed)
        self._plan = plan

    def __call__(self, input_ids: Tensor) -> Tensor:
        """See `Forward`."""
        return self.logits(input_ids, 1)[:, 0]

    def _run(self, embeddings: Tensor, states: list[Tensor] | None, depth: int | None) -> Tensor:
        cache, core = cast("SinkCache", self._cache), cast("DecoderLM", self._core)
        start, (rows, size) = self.length, embeddings.shape[:2]
        self._advance(embeddings)
        mask = torch.ones(rows, size, dtype=torch.bool, device=embeddings.device)
        if self._plan.attention_mask is not None:
            told = self._plan.attention_mask[:, start : start + size]
            mask[:, : told.shape[1]] = told
        seen, positions = enter_window(core, cache, mask)
        attention = dense_context(core, cache, seen, collect_attentions=self._weights)
        return core.hidden(embeddings, positions, attention, states, depth)


def open_forward(plan: Plan) -> Forward:
    """Run the model over the rows of a plan, from the end of its cache."""
    if plan.call is not None:
        return cast("Forward", plan.call(plan))
    if isinstance(plan.cache, SinkCache):
        return SinkForward(plan)
    return UncachedForward(plan) if isinstance(plan.cache, NoCache) else Forward(plan)


def encoder_embeddings(core: T5, given: EncoderInput) -> Tensor:
    """Embeddings for the encoder, ``[B, T, E]``."""
    if given.embeddings is not None:
        return given.embeddings
    assert given.input_ids is not None
    return core.embed(given.input_ids)


def read_prompt(
    run: Callable[[Tensor], Tensor], prompt: Tensor, chunk: int | None, rows: int
) -> Generator[Step, None, Tensor]:
    """Run a prompt in chunks.

    Args:
        run: Takes the ids of a chunk.
        prompt: Int64 ``[B, S]``.
        chunk: Most tokens of one; ``None`` is all at once.
        rows: Rows of the steps.

    Yields:
        A :class:`Step` without ids for each chunk but the last.

    Returns:
        What ``run`` gave for the last chunk.
    """
    *earlier, last = torch.split(prompt, chunk or prompt.shape[1], dim=1)
    for ids in earlier:
        run(ids)
        yield Step([[] for _ in range(rows)])
    return run(last)


PositionLookup: TypeAlias = "Callable[[int, int], tuple[Tensor, Tensor]]"
"""(first position, end) -> what was told of each, ``[B, S]``, the last of the prompt's behind its
end; and how far behind the end each is, ``[S]``."""


def _position_lookup(plan: Plan, table: Tensor | None) -> PositionLookup | None:
    """Look-up in what a caller said ``[B, n]`` of the last positions of the prompts."""
    if table is None:
        return None
    known = table.shape[1]
    shift = known - plan.num_positions

    def look_up(start: int, end: int) -> tuple[Tensor, Tensor]:
        places = torch.arange(start + shift, end + shift, dtype=torch.int64, device=table.device)
        return table[:, places.clamp(max=known - 1)], (places - (known - 1)).clamp_(min=0)

    return look_up


def _given_positions(plan: Plan) -> PositionLookup | None:
    """Look-up in what a caller said of positions, or what a mask says that is not left padding."""
    if plan.inputs is not None and plan.inputs.position_ids is not None:
        return _position_lookup(plan, plan.inputs.position_ids)
    mask = plan.attention_mask
    if mask is None or not bool((mask[:, 1:] < mask[:, :-1]).any()):
        return None
    return _position_lookup(plan, (mask.cumsum(dim=1) - 1).masked_fill(~mask, 0))


def _has_encoder_output(cache: Cache) -> bool:
    """Return whether a cache has the keys and values of the encoder's output."""
    return isinstance(cache, EncoderDecoderCache) and any(cache.is_updated.values())


def _collector(record: LayerRecorder | None, name: str) -> list[Tensor] | None:
    """A list to collect in; ``None`` where that was not asked for."""
    return [] if record is not None and getattr(record, f"wants_{name}") else None


def _take_weights(weights: list[Tensor] | None) -> tuple[Tensor, ...]:
    """The weights of a pass, leaving the list empty for the next."""
    taken = tuple(weights or ())
    if weights is not None:
        weights.clear()
    return taken
