"""Greedy decoding and multinomial sampling: one forward pass, one token a row, per step.

Greedy decoding takes the most probable token, every time; sampling draws one from the processed
distribution. Both refuse scores that no token can be picked from.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from asyncgen.generation.strategies.forward import open_forward, read_prompt
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


class Sequences:
    """Rows in progress, which grow by a token at a time.

    Attributes:
        live: Which of them go on.
        length: Tokens of each, prompt and padding included.
    """

    def __init__(self, plan: Plan) -> None:
        """Begin with the prompts of a plan."""
        batch, self.length = plan.input_ids.shape
        self.live = [True] * batch if plan.live is None else list(plan.live)
        self._plan = plan
        room = plan.stop_checks.max_length or 0
        # A context of a million tokens is not reserved up front; the buffer doubles when full.
        room = max(self.length, min(room, self.length + 1024), 1)
        self._buffer = plan.input_ids.new_empty(batch, room)
        self._buffer[:, : self.length] = plan.input_ids

    @property
    def ids(self) -> Tensor:
        """All of them, int64 ``[B, length]``; a view of a buffer."""
        return self._buffer[:, : self.length]

    def settle(self, tokens: Tensor, scores: Tensor) -> Step:
        """Append a token to each row, padding where it had ended, and tell which end with it.

        Args:
            tokens: Int64 ``[B]``.
            scores: What they were picked from, float32 ``[B, V]``.

        Returns:
            The step, without logits and scores.
        """
        if not all(self.live):
            mask = torch.tensor(self.live, dtype=torch.bool, device=tokens.device)
            tokens = torch.where(mask, tokens, self._plan.pad_token_id)
        if self.length == self._buffer.shape[1]:
            self._buffer = torch.cat((self._buffer, torch.empty_like(self._buffer)), dim=1)
        self._buffer[:, self.length] = tokens
        self.length += 1
        chosen: list[int] = tokens.tolist()  # the one device-to-host sync of a step
        live = self.live
        reasons = self._plan.stop_checks.reasons(chosen, live, self.length, self.ids, scores)
        settled = [[token] if alive else [] for token, alive in zip(chosen, live, strict=True)]
        self.live = [alive and reason is None for alive, reason in zip(live, reasons, strict=True)]
        return Step(settled, reasons, tokens)


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
    forward, rows = forward or open_forward(plan), Sequences(plan)
    prompt = plan.unread(plan.cache.text_length)
    raw = yield from read_prompt(forward, prompt, plan.prefill_chunk, len(prompt))
    while True:
        logits = raw.float()
        # Processors that users wrote may write in place; the raw logits are still wanted after.
        scores = logits if rework is None else rework(logits)
        if plan.processors:
            scores = plan.processors(rows.ids, scores.clone() if rework is None else scores)
        step = rows.settle(pick(scores, rows.length), scores)
        step.logits, step.scores = logits, scores
        yield step
        if not any(rows.live):
            return Outcome(rows.ids.clone())
        assert step.tokens is not None
        raw = forward(step.tokens[:, None])


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
        return torch.rand(count, dtype=torch.float32, device="cpu")

    def several(self, scores: Tensor, count: int, position: int) -> Tensor:
        """Draw indices ``[B, count]`` of float32 scores ``[B, M]``, none of them twice."""
        return torch.multinomial(torch.softmax(scores, dim=-1), num_samples=count)


multinomial_draw = TorchDraw()
"""The source of ``model.generate``."""
