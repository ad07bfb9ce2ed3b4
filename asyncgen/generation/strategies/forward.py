"""The model as a strategy sees it: ids in, logits of the last position out, cache growing.

Positions and padding are worked out here, once, so that no strategy repeats them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

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
        self._core = plan.core
        self._cache = plan.cache
        self.length = plan.cache.get_seq_length()
        self._mask = plan.attention_mask
        self._offset: Tensor | None = None
        if self._mask is not None:
            # Left padding shifts the positions of a row; real tokens count from 0.
            self._offset = (~self._mask).sum(dim=1, keepdim=True)
        self._attention = DenseAttention(plan.core.config, plan.cache)

    def __call__(self, input_ids: Tensor) -> Tensor:
        """Append ids ``[B, S]`` to the rows; return the logits ``[B, V]`` after the last one."""
        start, self.length = self.length, self.length + input_ids.shape[1]
        positions = torch.arange(start, self.length, device=input_ids.device)[None]
        if self._mask is None or self._offset is None:
            return self._core.decode(input_ids, positions, self._attention)
        positions = (positions - self._offset).clamp_(min=0)
        missing = self.length - self._mask.shape[1]
        if missing > 0:
            self._mask = torch.nn.functional.pad(self._mask, (0, missing), value=True)
        attention = DenseAttention(self._core.config, self._cache, self._mask[:, : self.length])
        return self._core.decode(input_ids, positions, attention)
