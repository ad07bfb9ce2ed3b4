"""Beam search, and beam search that draws its candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.generation.strategies.beam_pool import BeamPool, BeamRules, Candidates
from asyncgen.generation.strategies.beam_rows import BeamRows
from asyncgen.generation.strategies.beam_scorers.base import id_list
from asyncgen.generation.strategies.beam_stream import BeamStream, Result, common_length, stream_of
from asyncgen.generation.strategies.step import Outcome
from asyncgen.generation.strategies.token_by_token import require_finite

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from asyncgen.generation.strategies.step import Plan, Steps


def beam_search(plan: Plan) -> Steps:
    """Keep the `num_beams` most probable beginnings; return the best ends.

    Raises:
        FloatingPointError: The scores of a prompt hold NaN, or ban every token of every beam.
    """
    return _search(plan, _most_probable)


def beam_sample(plan: Plan) -> Steps:
    """Beam search whose candidates are drawn, without replacement, by ``plan.draw.several``.

    Raises:
        FloatingPointError: As for :func:`beam_search`.
    """
    return _search(plan, plan.draw.several)


def beam_rules(plan: Plan) -> BeamRules:
    """Read the rules of a search out of the plan's configuration."""
    config = plan.config
    ends = id_list(config.eos_token_id)
    # As the reference fills: an id of 0 is no padding id to it.
    filler = config.pad_token_id or next(iter(ends), plan.pad_token_id)
    return BeamRules(
        num_beams=config.num_beams or 1,
        early_stopping=config.early_stopping or False,
        length_penalty=1.0 if config.length_penalty is None else float(config.length_penalty),
        max_length=plan.ends.max_length,
        filler=filler,
        num_ends=len(ends),
    )


def _most_probable(total: Tensor, count: int, position: int) -> Tensor:
    return torch.topk(total, count).indices


@torch.no_grad()
def _search(plan: Plan, choose: Callable[[Tensor, int, int], Tensor]) -> Steps:
    """The loop of both: one forward of all beams a step.

    Yields:
        A step without ids for each prompt chunk but the last, then one a forward.

    Returns:
        The best sequences of each prompt, and what is documented about them.
    """
    rules = beam_rules(plan)
    pool = BeamPool(plan.input_ids, rules)
    rows = BeamRows(plan, rules.num_beams)
    stream = stream_of(plan)
    raw = yield from rows.prefill()
    while True:
        logits = raw.float()
        stream.keep(pool.length - pool.prompt_length, logits)
        scores = torch.log_softmax(logits, dim=-1)
        if plan.processors:
            scores = plan.processors(pool.rows, scores)
        found = _candidates(pool, scores, choose)
        hits, reason = _hits(plan, pool, found, scores)
        agreed = min(pool.agreed)
        chosen = pool.advance(found, hits)
        is_over = bool(hits.all()) or bool(pool.is_closed.all())
        _hand_on(plan, pool, stream, is_over, reason)
        yield stream.step(logits, scores)
        parents = (found.parents.gather(1, chosen) + pool.first_row).flatten()
        rows.arrange(parents, agreed)
        if is_over:
            return _outcome(pool, stream.returned)
        raw = rows.advance(found.tokens.gather(1, chosen).flatten())


def _candidates(
    pool: BeamPool, scores: Tensor, choose: Callable[[Tensor, int, int], Tensor]
) -> Candidates:
    """Choose the continuations to look at."""
    total = pool.total(scores)
    require_finite(total.amax(dim=1), pool.length)
    which = choose(total, min(pool.rules.num_candidates, total.shape[1]), pool.length)
    size = scores.shape[-1]
    return Candidates(which // size, which % size, total.gather(1, which))


def _hits(
    plan: Plan, pool: BeamPool, found: Candidates, scores: Tensor
) -> tuple[Tensor, str | None]:
    """Which candidates end, bool ``[B, K]``, and the reason that is common to all, if any."""

    def seen() -> tuple[Tensor, Tensor]:
        ids = pool.continued(found).ids[:, :, : pool.length + 1].flatten(0, 1)
        return ids, scores[(found.parents + pool.first_row).flatten()]

    hits, reason = plan.ends.hits(found.tokens.flatten(), pool.length + 1, seen)
    return hits.view_as(found.tokens), reason


def _hand_on(
    plan: Plan, pool: BeamPool, stream: BeamStream, is_over: bool, reason: str | None
) -> None:
    """Tell the stream what this step settled of each prompt."""
    closed: list[bool] = pool.is_closed.tolist()
    some_complete: list[bool] = pool.is_complete[:, 0].tolist()
    for prompt, done in enumerate(closed):
        if stream.is_done[prompt]:
            continue
        if done or is_over:
            stream.finish(prompt, _results(plan, pool, prompt, stream.returned, reason))
            continue
        ids, end = pool.live.ids[prompt, 0], pool.agreed[prompt]
        if some_complete[prompt]:
            both = torch.stack((ids, pool.complete.ids[prompt, 0]))
            end = min(end, int(pool.complete.lengths[prompt, 0]))
            end = common_length(both, stream.sent[prompt], end)
        stream.settle(prompt, ids, end, pool.live.origins[prompt, 0])


def _results(
    plan: Plan, pool: BeamPool, prompt: int, returned: int, reason: str | None
) -> list[Result]:
    """The returned sequences of a prompt, each with the reason of its end."""
    found = []
    lengths: list[int] = pool.complete.lengths[prompt, :returned].tolist()
    for place, length in enumerate(lengths):
        ids = pool.complete.ids[prompt, place, :length]
        ended: str = "stop"
        if int(ids[-1]) not in plan.ends.eos_token_ids and length == pool.length:
            ended = reason or "stop"
        if reason == "cancelled":
            ended = reason
        found.append(Result(ids, pool.complete.origins[prompt, place], ended))
    return found


def _outcome(pool: BeamPool, returned: int) -> Outcome:
    """The documented tensors, cut to the longest returned sequence."""
    best = pool.complete
    length = int(best.lengths[:, :returned].max())
    return Outcome(
        best.ids[:, :returned, :length].flatten(0, 1).clone(),
        {
            "sequences_scores": best.scores[:, :returned].flatten(),
            "beam_indices": best.origins[:, :returned, : length - pool.prompt_length]
            .flatten(0, 1)
            .clone(),
        },
    )
