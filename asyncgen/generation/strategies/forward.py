"""The model as a strategy sees it: ids in, logits of the last position out, cache growing.

Positions and padding are worked out here, once, so that no strategy repeats them; so is the
encoder of a model with two stacks, which runs before the first decoder position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from asyncgen.cache.encoder_decoder import EncoderDecoderCache
from asyncgen.errors import ContextLengthError
from asyncgen.generation.strategies.record import Inside
from asyncgen.generation.strategies.step import Step
from asyncgen.models.attention.cross import Encoded
from asyncgen.models.attention.dense import DenseAttention

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from torch import Tensor

    from asyncgen.cache.caches import Cache
    from asyncgen.generation.strategies.record import Record
    from asyncgen.generation.strategies.step import EncoderInput, Plan
    from asyncgen.models.arch.t5 import T5
    from asyncgen.models.attention.dense import AttentionContext
    from asyncgen.models.decoder import DecoderLM


class Forward:
    """Runs the model over the rows of a plan, position after position.

    Attributes:
        length: Positions that are in the cache, padding included.
    """

    def __init__(self, plan: Plan) -> None:
        """Begin where the plan's cache ends; an encoder that did not run yet runs now."""
        self.length = plan.cache.get_seq_length()
        self._core = plan.core
        self._cache = plan.cache
        self._decode = plan.core.decode
        self._record = plan.record
        self._weights = _wanted(plan.record, "attentions")
        self._cross_weights = _wanted(plan.record, "attentions")
        self._attention = self._context(plan)
        self._padding: Tensor | None = None
        if plan.attention_mask is not None:
            # Left padding shifts the positions of a row; real tokens count from 0.
            self._padding = (~plan.attention_mask).sum(dim=1, keepdim=True)
        self._limit = self._last_length(plan)

    def __call__(self, input_ids: Tensor) -> Tensor:
        """Append ids ``[B, S]`` to the rows; return the logits ``[B, V]`` after the last one.

        Raises:
            ContextLengthError: The model has a table of positions, and it is at its end.
        """
        if self._record is not None:
            return self.project(self.hidden(input_ids)[:, -1])
        return self._decode(input_ids, self._advance(input_ids), self._attention)

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
        record, core = self._record, cast("DecoderLM", self._core)
        states = _wanted(record, "hidden_states") if collect is None else collect
        positions = self._advance(input_ids)
        found = core.hidden(core.embed(input_ids), positions, self._attention, states, depth)
        if record is not None:
            kept = tuple(states or ()) if record.wants_hidden_states else ()
            weights, cross_weights = _taken(self._weights), _taken(self._cross_weights)
            record.fresh.append(Inside(kept, weights, cross_weights))
        return found

    def project(self, hidden: Tensor) -> Tensor:
        """Logits ``[..., V]`` of hidden states ``[..., E]``."""
        return cast("DecoderLM", self._core).project(hidden)

    def crop(self, length: int) -> None:
        """Forget the positions from ``length`` on."""
        if length < self.length:
            self._cache.crop(length)
            self.length = length

    def _advance(self, input_ids: Tensor) -> Tensor:
        """Positions ``[1 or B, S]`` of the ids that come next."""
        start, self.length = self.length, self.length + input_ids.shape[1]
        if self._limit is not None and self.length > self._limit:
            raise ContextLengthError(
                "max_length",
                self.length,
                f"the model has {self._limit} positions and no more; ask for fewer tokens",
            )
        positions = torch.arange(start, self.length, device=input_ids.device)[None]
        if self._padding is not None:
            positions = (positions - self._padding).clamp_(min=0)
        return positions

    def _context(self, plan: Plan) -> AttentionContext:
        """What does the attention."""
        if plan.encoder is None:
            return DenseAttention(
                plan.core.config,
                plan.cache,
                plan.attention_mask,
                collect_attentions=self._weights,
            )
        core = cast("T5", plan.core)
        if plan.encoder.encoded is None:
            plan.encoder.encoded = self._encode(core, plan, plan.encoder)
        return core.attention(
            plan.cache,
            plan.attention_mask,
            plan.encoder.encoded,
            collect_attentions=self._weights,
            collect_cross_attentions=self._cross_weights,
        )

    def _encode(self, core: T5, plan: Plan, given: EncoderInput) -> Encoded:
        """Run the encoder, unless a cache that is continued holds all that it would say."""
        record = plan.record
        if record is None and _holds_encoder(plan.cache):
            return Encoded(None, given.attention_mask)
        assert given.input_ids is not None
        states, weights = _wanted(record, "hidden_states"), _wanted(record, "attentions")
        encoded = core.encode(
            core.embed(given.input_ids),
            given.attention_mask,
            collect=states,
            collect_attentions=weights,
        )
        if record is not None:
            record.encoder = Inside(tuple(states or ()), tuple(weights or ()))
        return encoded

    def _last_length(self, plan: Plan) -> int | None:
        """Positions after which a model with a table of them has none left."""
        limit = plan.core.config.position_limit
        if limit is None or self._padding is None:
            return limit
        return limit + int(self._padding.min())


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


def _holds_encoder(cache: Cache) -> bool:
    """Whether a cache has the keys and values of the encoder's output."""
    return isinstance(cache, EncoderDecoderCache) and any(cache.is_updated.values())


def _wanted(record: Record | None, name: str) -> list[Tensor] | None:
    """A list to collect in; ``None`` where that was not asked for."""
    return [] if record is not None and getattr(record, f"wants_{name}") else None


def _taken(weights: list[Tensor] | None) -> tuple[Tensor, ...]:
    """The weights of a pass, leaving the list empty for the next."""
    taken = tuple(weights or ())
    if weights is not None:
        weights.clear()
    return taken
