"""The model as a strategy sees it: ids in, logits of the last position out, cache growing.

Positions and padding are worked out here, once, so that no strategy repeats them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from asyncgen.errors import ContextLengthError
from asyncgen.models.attention import DenseAttention

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.generation.strategies.step import Plan
    from asyncgen.models.attention import AttentionContext
    from asyncgen.models.config import ModelConfig

__all__ = ["Decoder", "Forward"]


class Decoder(Protocol):
    """What a strategy needs of a model module."""

    config: ModelConfig

    def decode(self, input_ids: Tensor, positions: Tensor, attention: AttentionContext) -> Tensor:
        """Logits ``[B, V]`` of the last position of ids ``[B, S]`` at positions ``[1 or B, S]``."""


class Forward:
    """Runs the model over the rows of a plan, position after position.

    Attributes:
        length: Positions that are in the cache, padding included.
    """

    def __init__(self, plan: Plan) -> None:
        """Begin where the plan's cache ends."""
        self.length = plan.cache.get_seq_length()
        self._decode = plan.core.decode
        self._attention = DenseAttention(plan.core.config, plan.cache, plan.attention_mask)
        self._padding: Tensor | None = None
        if plan.attention_mask is not None:
            # Left padding shifts the positions of a row; real tokens count from 0.
            self._padding = (~plan.attention_mask).sum(dim=1, keepdim=True)
        self._limit = self._last_length(plan)

    def __call__(self, input_ids: Tensor) -> Tensor:
        """Append ids ``[B, S]`` to the rows; return the logits ``[B, V]`` after the last one."""
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
        return self._decode(input_ids, positions, self._attention)

    def _last_length(self, plan: Plan) -> int | None:
        """Positions after which a model with a table of them has none left."""
        limit = plan.core.config.position_limit
        if limit is None or self._padding is None:
            return limit
        return limit + int(self._padding.min())
