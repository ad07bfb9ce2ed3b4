"""Choose the experts of each token, and their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.families.plans.experts_plan import Routing


def choose(routing: Routing, logits: Tensor, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """Choose the experts of some tokens.

    Args:
        routing: Rules of the choice.
        logits: ``[N, experts]``, in float32 at least.
        correction: ``[experts]``, added to scores, or to logits, for the choice, but not to weights
            (DeepSeek-V3, section 2.1.2); ``None``: nothing is.

    Returns:
        Ids and weights ``[N, chosen]``, the best expert first.
    """
    if routing.scoring == "sparsemixer":
        return _choose_sparsely(routing, logits)
    is_softmax = routing.scoring == "softmax"
    scores = logits.softmax(-1) if is_softmax else logits.sigmoid()
    is_corrected = correction is not None and not routing.corrects_logits
    by_scores = is_corrected or routing.best_of_group > 1
    # Without a correction, logits tell more experts apart than their scores.
    ranks = scores if by_scores else logits
    if correction is not None:
        ranks = ranks + correction
    if routing.chosen_groups < routing.groups:
        ranks = _keep_best_groups(routing, ranks)
    ids = ranks.topk(routing.chosen, dim=-1).indices
    weights = scores.gather(1, ids)
    if routing.is_normalised:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return ids, weights * routing.scale


def _keep_best_groups(routing: Routing, ranks: Tensor) -> Tensor:
    """Set the ranks outside of the best groups to ``-inf``."""
    groups = ranks.view(len(ranks), routing.groups, -1)  # [N, G, experts / G]
    worths = groups.topk(min(routing.best_of_group, groups.shape[-1]), dim=-1).values.sum(-1)
    best = worths.topk(routing.chosen_groups, dim=-1).indices
    is_left_out = torch.ones_like(worths, dtype=torch.bool).scatter(1, best, False)
    return groups.masked_fill(is_left_out[..., None], -torch.inf).flatten(1)


def _choose_sparsely(routing: Routing, logits: Tensor) -> tuple[Tensor, Tensor]:
    ids, weights = [], []
    for _ in range(routing.chosen):
        top, best = logits.max(-1, keepdim=True)
        is_far = (top - logits) / logits.abs().maximum(top) > routing.tolerance
        scores = logits.masked_fill(is_far, -torch.inf).softmax(-1)
        ids.append(best)
        weights.append(scores.gather(1, best))
        logits = logits.scatter(1, best, -torch.inf)
    return torch.cat(ids, 1), torch.cat(weights, 1) * routing.scale
