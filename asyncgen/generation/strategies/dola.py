"""DoLa: what the last layer has learnt beyond an earlier one.

Chuang et al. 2023, "DoLa: Decoding by Contrasting Layers Improves Factuality in Large Language
Models" (arXiv 2309.03883): the early layer whose prediction differs most from the final one's
(section 2.2), the difference of both as scores, among tokens that are probable enough to begin
with (section 2.3).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, TypeGuard

import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.strategies.forward import open_forward
from asyncgen.generation.strategies.token_by_token import most_probable, token_by_token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from asyncgen.generation.strategies.step import Plan, Steps


_SHARE: Final = 0.1
"""Least probability of a token, as a share of the most probable one's; the paper's alpha."""

_DEEP: Final = 40
"""Models of more layers contrast a fixed number of them."""

_DEEP_REACH: Final = 20


def early_layers(wanted: str | Sequence[int] | None, layers: int, *, tied: bool) -> list[int]:
    """The layers that the last one is contrasted with.

    Args:
        wanted: ``"low"``, ``"high"``, or the layers themselves; 0 is the embeddings.
        layers: Layers of the model.
        tied: Whether the output head is the embedding table, which makes the prediction of the
            embeddings the input itself: ``"low"`` begins with layer 2.

    Returns:
        Candidates in ascending order, at least one, all below ``layers``.

    Raises:
        InvalidRequestError: There is no such layer, or none is left.
    """
    half = layers // 2
    if wanted == "low":
        first = min(2, layers - 1) if tied else 0
        end = _DEEP_REACH if layers > _DEEP else half
        found = [first] if first == half else list(range(first, end, 2))
    elif wanted == "high":
        found = list(range(layers - _DEEP_REACH if layers > _DEEP else half, layers, 2))
    elif not _are_layers(wanted, layers):
        raise InvalidRequestError(
            "dola_layers", wanted, f"`low`, `high` or a list of layers from 0 to {layers - 1}"
        )
    else:
        found = sorted(set(wanted))
    if not found:
        raise InvalidRequestError(
            "dola_layers", wanted, f"leaves no layer of a model of {layers}; give a list of layers"
        )
    return found


def dola(plan: Plan) -> Steps:
    """Decode by contrasting layers, greedily or sampled.

    Of several candidates the layer is chosen for all rows of a batch together, as the reference
    does: rows of one batch may choose otherwise than each alone.

    Raises:
        FloatingPointError: A row of scores holds NaN, or bans every token.
    """
    config = plan.core.config
    layers = early_layers(
        plan.config.dola_layers, config.num_hidden_layers, tied=config.tie_word_embeddings
    )
    contrast = _ContrastForward(plan, layers)
    pick = plan.draw if plan.config.do_sample else most_probable
    return token_by_token(plan, pick, forward=contrast, rework=contrast.scores)


class _ContrastForward:
    """A forward that remembers what the early layers would have said."""

    def __init__(self, plan: Plan, layers: list[int]) -> None:
        self._forward = open_forward(plan)
        self._layers = layers
        self._is_recorded = plan.record is not None
        self._early: Tensor | None = None  # [number of layers, B, V]

    def __call__(self, input_ids: Tensor) -> Tensor:
        """Append ids ``[B, S]``; return the final logits ``[B, V]`` after the last one."""
        if input_ids.shape[1] > 1 and not self._is_recorded:
            # The states of all layers are kept for the last position alone.
            self._forward(input_ids[:, :-1])
            input_ids = input_ids[:, -1:]
        states: list[Tensor] = []
        final = self._forward.hidden(input_ids, states)
        early = torch.stack([states[layer][:, -1] for layer in self._layers])
        self._early = self._forward.project(early)
        return self._forward.project(final[:, -1].contiguous())

    def scores(self, logits: Tensor) -> Tensor:
        """Contrasted scores ``[B, V]`` from the final logits, ``-inf`` for improbable tokens."""
        assert self._early is not None
        final = torch.log_softmax(logits, dim=-1)
        early = torch.log_softmax(self._early.float(), dim=-1)
        chosen = early[_most_different(final, early)]
        least = final.amax(dim=-1, keepdim=True) + math.log(_SHARE)
        return (final - chosen).masked_fill(final < least, -torch.inf)


def _most_different(final: Tensor, early: Tensor) -> int:
    """The candidate ``[n, B, V]`` that diverges most from the final prediction ``[B, V]``.

    Both are log-probabilities. The divergence is Jensen and Shannon's with the mean as the first
    argument of its two halves, averaged over rows.
    """
    if len(early) == 1:
        return 0
    mean = 0.5 * (final.exp() + early.exp())
    divergence = (mean * (2 * mean.log() - final - early)).nansum(dim=-1)  # [n, B]
    return int(divergence.mean(dim=-1).argmax())


def _are_layers(wanted: object, layers: int) -> TypeGuard[Sequence[int]]:
    return (
        isinstance(wanted, list | tuple)
        and len(wanted) > 0
        and all(isinstance(layer, int) and not isinstance(layer, bool) for layer in wanted)
        and all(0 <= layer < layers for layer in wanted)
    )
