"""Test the sizes of a long prompt's chunks along its text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncgen.engine.scheduling.prefill_cost import LEAST, SLOWER, PrefillCost
from asyncgen.engine.setup.assembly import prefill_cost
from asyncgen.reference.pretrained_model import PreTrainedModel
from tests.doubles.models import TableModel
from tests.engine.batches import Bench
from tests.models.build import random_config, random_model

SHORT: dict[str, Any] = {"max_new_tokens": 2, "do_sample": False, "eos_token_id": []}


def test_a_chunk_takes_as_long_wherever_it_is() -> None:
    cost = PrefillCost(products=10_000, layers=[(10, None), (10, None)])
    assert cost.chunk(256, 0) == 256
    for depth in (100, 500, 3000):
        count = cost.chunk(256, depth)
        assert count * (10_000 + SLOWER * 20 * depth) == pytest.approx(256 * 10_000, rel=0.1)
    assert cost.chunk(256, 10**6) == LEAST
    assert cost.chunk(5, 10**6) == 5


def test_a_window_costs_no_more_than_its_keys() -> None:
    cost = PrefillCost(products=10_000, layers=[(10, 64)])
    assert cost.chunk(256, 10**6) == cost.chunk(256, 64) < 256


def test_a_network_is_counted_without_its_head() -> None:
    core = random_model(random_config("llama"), seed=1, dtype=torch.float32)
    config = core.config
    width = config.num_attention_heads * config.head_dim
    kept = 2 * config.num_key_value_heads * config.head_dim
    block = config.hidden_size * (2 * width + kept + 3 * config.intermediate_size)
    cost = prefill_cost(core)
    assert cost is not None and cost.products == config.num_hidden_layers * block
    assert list(cost.layers) == [(2 * width, None)] * config.num_hidden_layers
    assert prefill_cost(TableModel().core) is None


def test_chunks_shrink_only_beside_running_streams() -> None:
    core = random_model(random_config("llama", max_position_embeddings=4096), seed=1)
    model = PreTrainedModel(core, TableModel().generation_config, "random")

    def chunks(*, beside: bool) -> list[int]:
        bench = Bench(model, pages=400, page_size=8, position_bytes=10**4, prefill_chunk_size=64)
        if beside:
            bench.add([1, 2, 3], max_new_tokens=200, eos_token_id=[])
            bench.engine.step()
        state = bench.prepare(list(range(40)) * 20, max_new_tokens=1, eos_token_id=[])[0]
        bench.engine.add(state)
        found, before = [], 0
        while bench.batch.requests and before < 800:
            bench.engine.step()
            samples = bench.batch.requests.get(state)
            now = next(iter(samples)).num_computed if samples else 800
            found.append(now - before)
            before = now
        bench.engine.abort_all("cancelled")
        return found

    alone, beside = chunks(beside=False), chunks(beside=True)
    assert alone[:-1] == [64] * (len(alone) - 1)
    assert beside[0] == 64 and beside == sorted(beside, reverse=True) and min(beside) < 64
    assert sum(beside) == sum(alone) == 800
