"""Contrastive search: the tokens of the reference, alone or in batches, one pass a token."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.static import StaticCache
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.strategies.contrastive import check_contrastive, contrastive
from tests.cases import for_each
from tests.doubles.models import EOS, PAD, TableModel
from tests.generation.strategies.old import cases, check_inside, generate, model_of
from tests.generation.strategies.plans import plan_of

PROMPT = [[5, 9, 11, 4, 7]]
SEARCH: dict[str, Any] = {"penalty_alpha": 0.6, "top_k": 4}


@pytest.mark.gate
@for_each("case", cases("penalty_alpha"), ids=lambda case: str(case["call"]))
@for_each("chunk", [None, 2])
@for_each("low_memory", [False, True])
def test_tokens_and_scores_are_those_of_the_reference(
    case: dict[str, Any], chunk: int | None, low_memory: bool
) -> None:
    found = generate(case, prefill_chunk_size=chunk, low_memory=low_memory)
    assert found.sequences.tolist() == case["sequences"]
    for name in ("scores", "logits"):
        highest = [float(row.max()) for row in getattr(found, name)]
        assert highest == pytest.approx(case[f"highest_{name}"], abs=2e-4)


@pytest.mark.gate
@for_each("case", cases("penalty_alpha"), ids=lambda case: str(case["call"]))
@for_each("low_memory", [False, True])
def test_hidden_states_and_attentions_belong_to_chosen_tokens(
    case: dict[str, Any], low_memory: bool
) -> None:
    found = generate(case, low_memory=low_memory, output_hidden_states=True, output_attentions=True)
    assert found.sequences.tolist() == case["sequences"]
    check_inside(found, case)


def test_a_row_alone_is_the_row_in_a_batch() -> None:
    rows = [[0, 0, 7, 5, 3, 40], [5, 9, 11, 4, 7, 30]]
    ids = torch.tensor(rows)
    model = model_of(0)
    mask = (ids != 0).long()
    together = model.generate(ids, attention_mask=mask, max_new_tokens=12, **SEARCH)
    for row, found in zip(rows, together.tolist(), strict=True):
        alone = model.generate(torch.tensor([[t for t in row if t]]), max_new_tokens=12, **SEARCH)
        new = alone.shape[1] - sum(t != 0 for t in row)
        assert found[6 : 6 + new] == alone[0, -new:].tolist()


def test_hardly_any_penalty_is_greedy() -> None:
    ids = torch.tensor(PROMPT)
    found = model_of(1).generate(ids, penalty_alpha=1e-6, top_k=3, max_new_tokens=12)
    assert found.tolist() == model_of(1).generate(ids, max_new_tokens=12).tolist()


@pytest.mark.parametrize("low_memory", [False, True])
def test_the_returned_cache_is_continued_by_other_strategies(low_memory: bool) -> None:
    model, cache = model_of(0), DynamicCache()
    ids = torch.tensor([[7, 5, 3, 40], [9, 11, 4, 30]])
    options = {"max_new_tokens": 6, "eos_token_id": 96}
    first = model.generate(ids, past_key_values=cache, low_memory=low_memory, **SEARCH, **options)
    assert cache.get_seq_length() == first.shape[1] - 1
    found = model.generate(first, past_key_values=cache, **options)
    assert found.tolist() == model.generate(first, **options).tolist()


def steps_of(model: TableModel, **fields: Any) -> Any:
    plan = plan_of(model, [[1, 2, 3, 4, 5]], new_tokens=6, prefill_chunk=2)
    plan.config = GenerationConfig(pad_token_id=PAD, eos_token_id=EOS, **SEARCH, **fields)
    return contrastive(plan)


@pytest.mark.parametrize("low_memory", [False, True])
def test_no_more_than_one_forward_pass_between_steps(low_memory: bool) -> None:
    model = TableModel()
    passes = [0]
    settled = []
    for step in steps_of(model, low_memory=low_memory):
        settled.append(step.token_ids[0])
        passes.append(model.num_forwards)
    assert max(after - before for before, after in zip(passes, passes[1:], strict=False)) <= 2
    assert sum(map(len, settled)) == 6
    assert model.core.forwards[3:] == ([(1, 1)] * 24 if low_memory else [(4, 1)] * 6)


@pytest.mark.parametrize("low_memory", [False, True])
def test_closed_at_any_step_leaves_a_prefix(low_memory: bool) -> None:
    model = TableModel()
    whole = [step.token_ids[0] for step in steps_of(model, low_memory=low_memory)]
    for stop in range(len(whole)):
        steps = steps_of(model, low_memory=low_memory)
        assert [next(steps).token_ids[0] for _ in range(stop)] == whole[:stop]
        steps.close()
        assert torch.is_grad_enabled()


@for_each(
    ("name", "fields"),
    [
        ("use_cache", {"use_cache": False}),
        ("cache_implementation", {"cache_implementation": "static"}),
        ("cache_implementation", {"cache_implementation": "quantized"}),
        ("penalty_alpha", {"penalty_alpha": 1.5}),
        ("top_k", {"top_k": 98}),
    ],
)
def test_contrastive_search_refuses_wrong_options(name: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        model_of(0).generate(torch.tensor(PROMPT), **{**SEARCH, **fields})


def test_a_cache_that_is_not_empty_is_refused() -> None:
    model, config = model_of(0), GenerationConfig(**SEARCH)
    check_contrastive(config, 97, DynamicCache())
    used = DynamicCache()
    model(torch.tensor(PROMPT), past_key_values=used)
    for cache in (used, StaticCache(model.config, max_batch_size=1, max_cache_len=9)):
        with pytest.raises(InvalidRequestError, match="past_key_values"):
            check_contrastive(config, 97, cache)
