"""Greedy decoding and multinomial sampling: one forward pass, one token a row, per step.

Greedy decoding takes the most probable token, every time; sampling draws one from the processed
distribution. Both refuse scores that no token can be picked from.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from asyncgen.generation.strategies.forward import Forward, read_prompt
from asyncgen.generation.strategies.step import Outcome, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from asyncgen.generation.strategies.step import Plan, Steps


def require_finite(best: Tensor, position: int) -> None:
    """Check the winning scores of a step.

    Args:
        best: Highest score of each row, float32 ``[B]``; NaN where a row holds any.
        position: Position of the token, for the message.

    Raises:
        FloatingPointError: A row holds NaN, or bans every token.
    """
    if not all(map(math.isfinite, best.tolist())):
        raise FloatingPointError(
            f"the scores for position {position} hold NaN or ban every token; look at the logits "
            "processors of the request and at the model's weights"
        )


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
    raw = yield from read_prompt(forward, prompt, plan.prefill_chunk, batch)
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


def greedy(plan: Plan) -> Steps:
    """Decode with the highest score at every position.

    Raises:
        FloatingPointError: A row of scores holds NaN, or bans every token.
    """
    return token_by_token(plan, most_probable)


def most_probable(scores: Tensor, position: int) -> Tensor:
    """Ids ``[B]`` of the highest scores ``[B, V]``.

    Raises:
        FloatingPointError: A row holds NaN, or bans every token.
    """
    best, tokens = scores.max(dim=-1)
    require_finite(best, position)
    return tokens


def sample(plan: Plan) -> Steps:
    """Decode with a token drawn by ``plan.draw`` at every position."""
    return token_by_token(plan, plan.draw)


class TorchDraw:
    """A :class:`~asyncgen.generation.strategies.step.Draw` from torch's global generator.

    It asks for numbers in the order in which the reference does. Positions and streams mean
    nothing to it: the generator has its own place.
    """

    def __call__(self, scores: Tensor, position: int, stream: int = 0) -> Tensor:
        """Draw ids ``[B]`` from softmax of float32 scores ``[B, V]``.

        Raises:
            FloatingPointError: A row of scores holds NaN, or bans every token.
        """
        probabilities = torch.softmax(scores, dim=-1)
        # One bad score spoils its whole row; CUDA's multinomial would end the process over it.
        require_finite(probabilities[:, 0], position)
        return torch.multinomial(probabilities, num_samples=1).squeeze(1)

    def successive(self, scores: Tensor, position: int) -> Tensor:
        """Draw ids ``[S]`` for the positions of scores ``[S, V]``, all at once."""
        return self(scores, position)

    def uniform(self, position: int, count: int, stream: int = 0) -> Tensor:
        """Draw float32 ``[count]`` from [0, 1)."""
        return torch.rand(count)

    def several(self, scores: Tensor, count: int, position: int) -> Tensor:
        """Draw indices ``[B, count]`` of float32 scores ``[B, M]``, none of them twice."""
        return torch.multinomial(torch.softmax(scores, dim=-1), num_samples=count)


multinomial_draw = TorchDraw()
"""The source of ``model.generate``."""
