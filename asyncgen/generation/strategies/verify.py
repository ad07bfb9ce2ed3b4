"""Checks a draft against the model that decides: which guesses stand, and what comes after them.

Exact by construction. Greedy: a guess stands where it is what the model would have taken. Sampled:
speculative sampling (Leviathan et al. 2023, arXiv 2211.17192, section 2.3 and appendix A.1; Chen et
al. 2023, arXiv 2302.01318, algorithm 2) leaves the model's distribution as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from asyncgen.generation.strategies.drafters.drafter import common_prefix_length
from asyncgen.generation.strategies.token_by_token import require_finite

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.generation.strategies.step import Plan, Proposal


@dataclass(frozen=True, slots=True)
class Verification:
    """Tokens that were settled.

    Attributes:
        token_ids: The accepted guesses and one token more.
        scores: Processed scores of each of them, float32 ``[len(token_ids), V]``.
    """

    token_ids: list[int]
    scores: Tensor

    @property
    def accepted(self) -> int:
        """Guesses that stand."""
        return len(self.token_ids) - 1


def verify(plan: Plan, ids: Tensor, start: int, logits: Tensor, proposal: Proposal) -> Verification:
    """Check a proposal of n guesses.

    Processors are asked position by position and only as far as guesses stand, so that one with a
    state sees the calls that it would see without a draft.

    Args:
        plan: Gives processors and randomness.
        ids: Settled ids and behind them the guesses, int64 ``[1, T]`` with T at least start + n.
        start: Number of settled ids.
        logits: Raw logits after the last settled id and after each guess, float32 ``[n + 1, V]``.
        proposal: The guesses.

    Raises:
        FloatingPointError: Scores hold NaN or ban every token.
    """
    guesses: list[int] = proposal.token_ids.tolist()
    if not plan.config.do_sample:
        return _greedy(plan, ids, start, logits, guesses)
    if proposal.scores is None:
        return _sampled(plan, ids, start, logits, guesses)
    return _speculative(plan, ids, start, logits, guesses, proposal.scores)


def _process(plan: Plan, ids: Tensor, length: int, logits: Tensor) -> Tensor:
    """Processed scores ``[1, V]`` for position ``length`` from raw logits ``[V]``."""
    return plan.processors(ids[:, :length], logits[None].clone())


def _greedy(
    plan: Plan, ids: Tensor, start: int, logits: Tensor, guesses: list[int]
) -> Verification:
    if not plan.processors:
        best, tokens = logits.max(dim=-1)
        chosen: list[int] = tokens.tolist()
        count = common_prefix_length(chosen, guesses) + 1
        require_finite(best[:count], start)
        return Verification(chosen[:count], logits[:count])
    settled, rows = [], []
    for place, guess in enumerate([*guesses, None]):
        rows.append(_process(plan, ids, start + place, logits[place]))
        best, token = rows[-1].max(dim=-1)
        require_finite(best, start + place)
        settled.append(int(token))
        if settled[-1] != guess:
            break
    return Verification(settled, torch.cat(rows))


def _sampled(
    plan: Plan, ids: Tensor, start: int, logits: Tensor, guesses: list[int]
) -> Verification:
    """Draw every token as if there were no guesses; they stand as far as they agree."""
    scores = logits
    if plan.processors:
        rows = [_process(plan, ids, start + place, row) for place, row in enumerate(logits)]
        scores = torch.cat(rows)
    chosen: list[int] = plan.draw.successive(scores, start).tolist()
    count = common_prefix_length(chosen, guesses) + 1
    return Verification(chosen[:count], scores[:count])


def _speculative(
    plan: Plan, ids: Tensor, start: int, logits: Tensor, guesses: list[int], drafted: Tensor
) -> Verification:
    # The stream is the round: guesses of another round have numbers of their own.
    chances = plan.draw.uniform(start, len(guesses), stream=start).tolist()
    rows: list[Tensor] = []
    for place, guess in enumerate(guesses):
        rows.append(_process(plan, ids, start + place, logits[place]))
        require_finite(rows[-1].max(dim=-1).values, start + place)
        target = torch.softmax(rows[-1][0], dim=-1)
        draft = torch.softmax(drafted[place].to(target.device), dim=-1)
        if chances[place] > float(target[guess] / draft[guess]):
            token = plan.draw(_residual(target, draft), start + place)
            return Verification([*guesses[:place], int(token)], torch.cat(rows))
    last = start + len(guesses)
    rows.append(_process(plan, ids, last, logits[-1]))
    return Verification([*guesses, int(plan.draw(rows[-1], last))], torch.cat(rows))


def _residual(target: Tensor, draft: Tensor) -> Tensor:
    """Scores ``[1, V]`` of what the target has more than the draft, after a refusal."""
    more = (target - draft).clamp(min=0.0)
    # Equal but for rounding: the refusal was rounding as well.
    return (more if bool(more.any()) else target).log()[None]
