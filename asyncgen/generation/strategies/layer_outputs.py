"""Keep hidden states and attentions of a strategy's steps for the output object.

A forward pass adds to it; the caller that drains the strategy takes out what belongs to a step.
Most strategies know nothing of it: only those whose passes are over guesses or candidates say
which part of a pass is a token's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


Layers: TypeAlias = "tuple[Tensor, ...]"


@dataclass(slots=True)
class LayerOutputs:
    """One forward pass.

    Attributes:
        hidden_states: Per layer, the embeddings first, ``[B, S, E]``.
        attentions: Per layer, ``[B, H, S, T]``.
        cross_attentions: Per layer, weights to the encoder ``[B, H, S, T]``.
    """

    hidden_states: Layers = ()
    attentions: Layers = ()
    cross_attentions: Layers = ()

    def map(self, change: Callable[[Tensor], Tensor]) -> LayerOutputs:
        """The same with every tensor changed."""
        return LayerOutputs(*(tuple(map(change, each)) for each in self._all))

    def tokens(self, first: int, end: int) -> LayerOutputs:
        """Queries ``first`` to ``end`` of the pass, which attend to no key after them."""
        states, own, cross = self._all
        later = end - (own[0].shape[2] if own else 0)  # how many of the last keys are not seen
        keys = slice(None, later or None)
        return LayerOutputs(
            tuple(layer[:, first:end] for layer in states),
            tuple(layer[:, :, first:end, keys] for layer in own),
            tuple(layer[:, :, first:end] for layer in cross),
        )

    @classmethod
    def chosen(cls, passes: list[LayerOutputs], each: list[int]) -> LayerOutputs:
        """For every row the pass of the given number, of several passes over the same rows."""

        def pick(*layers: Tensor) -> Tensor:
            rows = (layers[number][row : row + 1] for row, number in enumerate(each))
            return torch.cat(tuple(rows))

        found = (
            zip(*parts, strict=True) for parts in zip(*(one._all for one in passes), strict=True)
        )
        return cls(*(tuple(pick(*layers) for layers in part) for part in found))

    @property
    def _all(self) -> tuple[Layers, Layers, Layers]:
        return self.hidden_states, self.attentions, self.cross_attentions


@dataclass(slots=True)
class LayerRecorder:
    """Requested layer outputs, and those of the steps so far.

    Attributes:
        wants_hidden_states: Whether hidden states are kept.
        wants_attentions: Whether attention weights are kept; costs the fused kernels.
        fresh: Passes that were not taken out yet.
        passes: Passes that belong to a step, in order.
        encoder: The pass of the encoder, where there is one.
    """

    wants_hidden_states: bool
    wants_attentions: bool
    fresh: list[LayerOutputs] = field(default_factory=list)
    passes: list[LayerOutputs] = field(default_factory=list)
    encoder: LayerOutputs | None = None

    def settle(self, *, is_step: bool) -> None:
        """Keep the passes since the last call, or drop them where they were no decode step."""
        if is_step:
            self.passes += self.fresh
        self.fresh.clear()

    def take(self) -> list[LayerOutputs]:
        """Take out the passes since the last call."""
        taken, self.fresh = self.fresh, []
        return taken

    def split(self, positions: int, guesses: int, settled: int) -> None:
        """Make one pass over guesses as many passes as it settled tokens.

        Args:
            positions: Positions of the pass.
            guesses: How many of them, the last ones, are guesses.
            settled: Tokens that stand; the first follows the positions before the guesses.
        """
        whole = self.fresh.pop()
        first = positions - guesses
        self.fresh.append(whole.tokens(0, first))
        self.fresh += [whole.tokens(end - 1, end) for end in range(first + 1, first + settled)]

    def per_step(self, name: str) -> tuple[Layers, ...]:
        """One of the attributes of `LayerOutputs`, for each pass that was kept."""
        return tuple(getattr(inside, name) for inside in self.passes)
