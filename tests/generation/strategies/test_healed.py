"""The steps of token healing: bounded pieces, the new prompt, then the strategy's own steps."""

from __future__ import annotations

import torch

from asyncgen.generation.strategies.greedy import greedy
from asyncgen.generation.strategies.healed import healed
from tests.doubles.engine import greedy_ids, raw_logits
from tests.doubles.models import VOCABULARY, TableModel
from tests.generation.strategies.plans import plan_of


def test_the_best_biased_token_ends_the_prompt() -> None:
    model = TableModel()
    prompts = [[1, 2, 3, 4, 5], [9, 8, 7, 6, 5]]
    bias = torch.zeros(2, VOCABULARY)
    bias[0, [30, 31, 32]] = 50.0
    plan = plan_of(model, prompts, new_tokens=3, prefill_chunk=3)
    steps = list(healed(plan, strategy=greedy, bias=bias))
    told = [step.prompt for step in steps if step.prompt is not None]
    assert len(told) == 1
    best = [
        int((raw_logits(model, p[:-1]) + b).argmax()) for p, b in zip(prompts, bias, strict=True)
    ]
    assert told[0].tolist() == [[*p[:-1], token] for p, token in zip(prompts, best, strict=True)]
    assert best[0] in (30, 31, 32)
    for row, prompt in enumerate(told[0].tolist()):
        settled = [token for step in steps for token in step.token_ids[row]]
        assert settled == greedy_ids(model, prompt, 3)
    assert model.core.forwards[:2] == [(2, 3), (2, 1)]


def test_a_lone_token_stays() -> None:
    plan = plan_of(TableModel(), [[7]], new_tokens=2)
    steps = healed(plan, strategy=greedy, bias=torch.zeros(1, VOCABULARY))
    prompt = next(steps).prompt
    assert prompt is not None and prompt.tolist() == [[7]]
    assert torch.is_grad_enabled()
