"""The loop that greedy decoding and sampling share: one forward, one token a row, per step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.generation.strategies.forward import Forward
from asyncgen.generation.strategies.step import Outcome, Plan, Step, Steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["token_by_token"]


@torch.no_grad()
def token_by_token(
    plan: Plan,
    pick: Callable[[Tensor, int], Tensor],
    *,
    forward: Callable[[Tensor], Tensor] | None = None,
    rework: Callable[[Tensor], Tensor] | None = None,
) -> Steps:
    """Prefill in chunks, then settle one token a row and step until every row has ended.

    Args:
        plan: What to decode.
        pick: (processed scores float32 ``[B, V]``, position) -> ids int64 ``[B]``.
        forward: Appends ids ``[B, S]`` and gives the logits ``[B, V]`` after them; ``None`` is the
            model's own.
        rework: Makes other scores of raw logits, before all processors.

    Yields:
        A :class:`Step` without ids for each prompt chunk but the last, then one per token.

    Returns:
        Prompt and continuation of every row.
    """
    batch, length = plan.input_ids.shape
    forward = forward or Forward(plan)
    ids = _sequence_buffer(plan)
    live = [True] * batch
    prompt = plan.input_ids[:, plan.cache.get_seq_length() :]
    chunk = plan.prefill_chunk or prompt.shape[1]
    while prompt.shape[1] > chunk:
        forward(prompt[:, :chunk])
        prompt = prompt[:, chunk:]
        yield Step([[] for _ in range(batch)])
    raw = forward(prompt)
    while True:
        logits = raw.float()
        # Processors that users wrote may write in place; the raw logits are still wanted after.
        scores = logits if rework is None else rework(logits)
        if plan.processors:
            scores = plan.processors(ids[:, :length], scores.clone() if rework is None else scores)
        tokens = pick(scores, length)
        if not all(live):
            mask = torch.tensor(live, device=tokens.device)
            tokens = torch.where(mask, tokens, plan.pad_token_id)
        if length == ids.shape[1]:
            ids = torch.cat((ids, torch.empty_like(ids)), dim=1)
        ids[:, length] = tokens
        length += 1
        chosen: list[int] = tokens.tolist()  # the one device-to-host sync of a step
        reasons = plan.ends.reasons(chosen, live, length, ids[:, :length], scores)
        settled = [[token] if alive else [] for token, alive in zip(chosen, live, strict=True)]
        live = [alive and reason is None for alive, reason in zip(live, reasons, strict=True)]
        yield Step(settled, reasons, tokens, logits, scores)
        if not any(live):
            return Outcome(ids[:, :length].clone())
        raw = forward(tokens[:, None])


def _sequence_buffer(plan: Plan) -> Tensor:
    """Room for prompt and new tokens, so that appending one does not copy all."""
    batch, length = plan.input_ids.shape
    room = plan.ends.max_length or 0
    # A context of a million tokens is not reserved up front; the buffer doubles when full.
    ids = plan.input_ids.new_empty(batch, max(length, min(room, length + 1024)))
    ids[:, :length] = plan.input_ids
    return ids
