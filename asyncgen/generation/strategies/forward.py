"""The model as a strategy sees it: ids in, logits of the last position out, cache growing.

Positions and padding are worked out here, once, so that no strategy repeats them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

import torch

from asyncgen.models.attention import DenseAttention

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.cache import Cache
    from asyncgen.generation.strategies.step import Plan
    from asyncgen.models.attention import AttentionContext
    from asyncgen.models.config import ModelConfig

__all__ = ["Decoder", "Forward", "LayeredDecoder"]


class Decoder(Protocol):
    """What a strategy needs of a model module."""

    config: ModelConfig

    def decode(self, input_ids: Tensor, positions: Tensor, attention: AttentionContext) -> Tensor:
        """Logits ``[B, V]`` of the last position of ids ``[B, S]`` at positions ``[1 or B, S]``."""


class LayeredDecoder(Decoder, Protocol):
    """What strategies need that look at more than the last logits."""

    def embed(self, input_ids: Tensor) -> Tensor:
        """Embeddings ``[B, S, E]`` of ids ``[B, S]``."""

    def hidden(
        self,
        embeddings: Tensor,
        positions: Tensor,
        attention: AttentionContext,
        collect: list[Tensor] | None = None,
        depth: int | None = None,
    ) -> Tensor:
        """Normalised output ``[B, S, E]`` of the first ``depth`` layers, ``None`` for all.

        ``collect`` gets the embeddings and the output of each layer, the last one normalised.
        """

    def project(self, hidden: Tensor) -> Tensor:
        """Logits ``[..., V]`` of hidden states ``[..., E]``."""


class Forward:
    """Runs the model over the rows of a plan, position after position.

    Attributes:
        length: Positions that are in the cache, padding included.
    """

    def __init__(self, plan: Plan) -> None:
        """Begin where the plan's cache ends."""
        self._begin(plan.core, plan.cache, plan.attention_mask)

    @classmethod
    def over(cls, core: Decoder, cache: Cache, attention_mask: Tensor | None = None) -> Forward:
        """Run another model, or on another cache, than a plan's."""
        forward = cls.__new__(cls)
        forward._begin(core, cache, attention_mask)
        return forward

    def _begin(self, core: Decoder, cache: Cache, attention_mask: Tensor | None) -> None:
        self.length = cache.get_seq_length()
        self._core = core
        self._cache = cache
        self._decode = core.decode
        self._attention = DenseAttention(core.config, cache, attention_mask)
        self._padding: Tensor | None = None
        if attention_mask is not None:
            # Left padding shifts the positions of a row; real tokens count from 0.
            self._padding = (~attention_mask).sum(dim=1, keepdim=True)

    def __call__(self, input_ids: Tensor) -> Tensor:
        """Append ids ``[B, S]`` to the rows; return the logits ``[B, V]`` after the last one."""
        return self._decode(input_ids, self._advance(input_ids), self._attention)

    def hidden(
        self, input_ids: Tensor, collect: list[Tensor] | None = None, depth: int | None = None
    ) -> Tensor:
        """Append ids ``[B, S]``; return the hidden states ``[B, S, E]``, ready for `project`.

        Args:
            input_ids: The ids.
            collect: Gets the output of every layer, the embeddings first.
            depth: Layers to run; ``None`` for all.
        """
        core = cast("LayeredDecoder", self._core)
        positions = self._advance(input_ids)
        return core.hidden(core.embed(input_ids), positions, self._attention, collect, depth)

    def project(self, hidden: Tensor) -> Tensor:
        """Logits ``[..., V]`` of hidden states ``[..., E]``."""
        return cast("LayeredDecoder", self._core).project(hidden)

    def crop(self, length: int) -> None:
        """Forget the positions from ``length`` on."""
        if length < self.length:
            self._cache.crop(length)
            self.length = length

    def _advance(self, input_ids: Tensor) -> Tensor:
        """Positions ``[1 or B, S]`` of the ids that come next."""
        start, self.length = self.length, self.length + input_ids.shape[1]
        positions = torch.arange(start, self.length, device=input_ids.device)[None]
        if self._padding is not None:
            positions = (positions - self._padding).clamp_(min=0)
        return positions
