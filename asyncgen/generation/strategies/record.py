"""What goes on inside the model while a strategy runs, kept for the output object.

A forward pass adds to it; whoever drains the strategy takes out what belongs to a step. Strategies
know nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Inside", "Record"]

Layers: TypeAlias = "tuple[Tensor, ...]"


@dataclass(slots=True)
class Inside:
    """One forward pass.

    Attributes:
        hidden_states: Per layer, the embeddings first, ``[B, S, E]``.
        attentions: Per layer, ``[B, H, S, T]``.
        cross_attentions: Per layer, weights to the encoder ``[B, H, S, T]``.
    """

    hidden_states: Layers = ()
    attentions: Layers = ()
    cross_attentions: Layers = ()


@dataclass(slots=True)
class Record:
    """What was asked for, and what came.

    Attributes:
        wants_hidden_states: Whether hidden states are kept.
        wants_attentions: Whether attention weights are kept; costs the fused kernels.
        fresh: Passes since somebody looked.
        passes: Passes that belong to a step, in order.
        encoder: The pass of the encoder, where there is one.
    """

    wants_hidden_states: bool
    wants_attentions: bool
    fresh: list[Inside] = field(default_factory=list)
    passes: list[Inside] = field(default_factory=list)
    encoder: Inside | None = None

    def settle(self, *, is_step: bool) -> None:
        """Keep the passes since the last call, or drop them where they were no decode step."""
        if is_step:
            self.passes += self.fresh
        self.fresh.clear()

    def per_step(self, name: str) -> tuple[Layers, ...]:
        """One of the attributes of `Inside`, for each pass that was kept."""
        return tuple(getattr(inside, name) for inside in self.passes)
