"""Assisted generation: a drafter guesses, one forward pass of the model checks all guesses.

The tokens are those of greedy decoding, and of sampling in distribution; only their number per
forward pass changes. One request is one row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.generation.strategies.forward import open_forward
from asyncgen.generation.strategies.step import Drafting, Outcome, Plan, Proposal, Step, Steps
from asyncgen.generation.strategies.verify import verify

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.generation.strategies.forward import Forward
    from asyncgen.generation.strategies.verify import Verification


_MOST_REPEATED = 16
"""Positions that are computed again beside guesses: more, and they get a pass of their own."""


@torch.no_grad()
def assisted(plan: Plan) -> Steps:
    """Draft, check, settle what stands and one token more; again.

    Args:
        plan: One row, with a drafter and a cache that can be cropped.

    Yields:
        A :class:`Step` without ids for each prompt chunk and each piece of a draft, then one with
        every settled id for each forward pass of the model.

    Returns:
        Prompt and continuation.

    Raises:
        FloatingPointError: Scores hold NaN or ban every token.
    """
    assert plan.drafter is not None
    plan.cache.activate_past_recording()
    forward, ids, offset = open_forward(plan), plan.input_ids, plan.offset
    length = ids.shape[1]
    prompt = plan.unread(forward.length)
    for chunk in torch.split(prompt, plan.prefill_chunk or prompt.shape[1], dim=1)[:-1]:
        forward(chunk)
        yield Step([[]])
    while True:
        is_embedded = plan.embeddings is not None and forward.length < plan.num_positions
        proposal = Proposal(ids[0, :0])
        if forward.mark() and not is_embedded and _recompute(plan, forward, ids[:, :length]):
            yield Step([[]])
        if not is_embedded:  # beside embeddings no guesses can be read, which are ids
            proposal = yield from _draft(plan, ids[:, :length])
        count = len(proposal.token_ids)
        ids = _grown(ids, length + count + 1)
        ids[0, length : length + count] = proposal.token_ids
        start = forward.length
        fresh = plan.unread(start) if is_embedded else ids[:, start - offset : length + count]
        positions = fresh.shape[1]
        logits = forward.logits(fresh, count + 1)[0].float()  # [n + 1, V]
        verdict = verify(plan, ids, length, logits, proposal)
        settled, reason = _settle(plan, ids, length, verdict)
        length += len(settled)
        if plan.record is not None:
            plan.record.split(positions, count, len(settled))
        # As after any other strategy, the last token is not in the cache.
        forward.crop(length - 1 + offset)
        if count:
            plan.drafter.update(min(verdict.accepted, len(settled)))
        count = len(settled)
        yield Step(
            [settled],
            [reason],
            ids[0, length - 1 : length].clone() if count == 1 else None,
            logits[:count],
            verdict.scores[:count],
            positions=count,
        )
        if reason is not None:
            return Outcome(ids[:, :length].clone())


def _recompute(plan: Plan, forward: Forward, ids: Tensor) -> bool:
    """Compute what stands and is not in the cache, where many guesses had to be taken back.

    A state goes back to where it was marked, and what was right behind it is computed again,
    beside the next guesses while it is little.

    Returns:
        Whether that was a pass of its own.
    """
    record, behind = plan.record, ids[:, forward.length - plan.offset : -1]
    if behind.shape[1] <= (0 if record is not None and forward.repeats else _MOST_REPEATED):
        return False
    if record is not None and not forward.repeats:
        return False  # a prompt, whose pass is one of those that are asked for
    forward(behind)
    if record is not None:
        record.fresh.pop()
    forward.mark()
    return True


def _draft(plan: Plan, ids: Tensor) -> Drafting:
    """Have the drafter make a proposal; an empty one where no guess is of use."""
    assert plan.drafter is not None
    longest = plan.stop_checks.max_length
    room = 1 << 30 if longest is None else longest - ids.shape[1] - 1
    if room < 1:
        return Proposal(ids.new_empty(0))
    return (yield from plan.drafter.propose(ids, room))


def _settle(
    plan: Plan, ids: Tensor, start: int, verdict: Verification
) -> tuple[list[int], str | None]:
    """Append the tokens of a verdict until one ends the sequence; return them and the reason."""
    for place, token_id in enumerate(verdict.token_ids):
        length = start + place + 1
        ids[0, length - 1] = token_id
        scores = verdict.scores[place : place + 1]
        (reason,) = plan.stop_checks.reasons([token_id], [True], length, ids[:, :length], scores)
        if reason is not None:
            return verdict.token_ids[: place + 1], reason
    return verdict.token_ids, None


def _grown(ids: Tensor, length: int) -> Tensor:
    """The ids ``[1, T]`` in a buffer of at least ``length``, which doubles when it is full."""
    if ids.shape[1] >= length:
        return ids
    grown = ids.new_empty(1, max(length, 2 * ids.shape[1], 256))
    grown[:, : ids.shape[1]] = ids
    return grown
