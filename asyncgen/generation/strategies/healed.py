"""Chooses the last token of every prompt again, then hands over to a strategy.

See :mod:`asyncgen.generation.strategies.healing`; this is the part that runs the model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from asyncgen.cache import DynamicCache
from asyncgen.generation.strategies.forward import Forward
from asyncgen.generation.strategies.step import Plan, Step, Steps, Strategy

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["healed"]


@torch.no_grad()
def healed(plan: Plan, *, strategy: Strategy, bias: Tensor) -> Steps:
    """Heal the prompts of a plan and decode what follows.

    Args:
        plan: What to decode; its prompts change.
        strategy: How.
        bias: Added to the scores of the last token of each row, float32 ``[B, V]``.

    Yields:
        A :class:`Step` without ids for each prompt chunk, the last of them with the new prompts,
        then the steps of the strategy.

    Returns:
        What the strategy returns.
    """
    ids = plan.input_ids
    if ids.shape[1] > 1:
        # A cache of its own: strategies differ in what they expect to find in theirs.
        forward = Forward(replace(plan, cache=DynamicCache(), record=None))
        prompt, chunk = ids[:, :-1], plan.prefill_chunk or ids.shape[1]
        while prompt.shape[1] > chunk:
            forward(prompt[:, :chunk])
            prompt = prompt[:, chunk:]
            yield Step([[] for _ in range(len(ids) * plan.copies)])
        last = (forward(prompt).float() + bias.to(ids.device)).argmax(dim=-1, keepdim=True)
        plan.input_ids = ids = torch.cat((ids[:, :-1], last), dim=1)
    prompts = ids.repeat_interleave(plan.copies, dim=0)
    yield Step([[] for _ in range(len(prompts))], prompt=prompts)
    return (yield from strategy(plan))
