"""Scores of the tokens that were selected, read out of the scores of all tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["transition_scores"]


def transition_scores(
    sequences: Tensor,
    scores: Sequence[Tensor],
    beam_indices: Tensor | None = None,
    normalize_logits: bool = False,
) -> Tensor:
    """Look up the score of every generated token.

    Args:
        sequences: Prompt and generated ids, int64 ``[R, T]``.
        scores: Of each step, float32 ``[rows, V]``.
        beam_indices: Row of ``scores`` that each generated token was picked from, ``[R, G]``, -1
            behind the end. ``None``: the row of its sequence.
        normalize_logits: Whether to take the log-softmax of the scores first.

    Returns:
        float32 ``[R, G]``; 0 where ``beam_indices`` is -1.
    """
    table = torch.stack(tuple(scores))  # [steps, rows, V]
    if normalize_logits:
        table = torch.log_softmax(table, dim=-1)
    if beam_indices is None:
        rows = torch.arange(table.shape[1], device=table.device)
        beam_indices = rows[:, None].expand(-1, table.shape[0])
    there = beam_indices >= 0
    size = int(there.sum(dim=1).max())
    there = there[:, :size]
    rows = beam_indices[:, :size].long().clamp(min=0)
    steps = torch.arange(size, device=table.device)
    tokens = sequences[:, sequences.shape[1] - size :]
    return table[steps, rows, tokens].masked_fill(~there, 0.0)
