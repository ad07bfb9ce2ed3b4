"""Test the number of replicas that the engines' metrics ask for."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, field
from typing import Any

import pytest

from asyncgen import AsyncLLM
from asyncgen_apps.ray_serve.autoscaling import PAGES, STREAMS, EngineScaling, scaling_metrics
from tests.cases import for_each
from tests.doubles.models import TableModel, byte_tokenizer


@dataclass
class Seen:
    running_replicas: list[str] = field(default_factory=lambda: ["a", "b"])
    aggregated_metrics: Any = None
    total_num_requests: float = 0.0
    total_queued_requests: float | None = None


@for_each(
    ("streams", "pages", "queued", "wanted"),
    [
        ({"a": 0, "b": 0}, {"a": 0, "b": 0}, 0, 0),
        ({"a": 10, "b": 6}, {}, 0, 1),
        ({"a": 16, "b": 16}, {"a": 0.1, "b": 0.1}, 0, 2),
        ({"a": 16, "b": 16}, {}, 17, 4),
        ({"a": 1, "b": 1}, {"a": 0.9, "b": 0.8}, 0, 3),  # few long ones fill the pages
        ({"a": 16, "gone": 99}, {"a": 0.2, "gone": 1.0}, 0, 1),
        ({"a": 16}, {"a": 0.2}, None, 1),  # the other has not reported yet
    ],
)
def test_streams_and_pages_are_at_their_targets(
    streams: dict[str, float], pages: dict[str, float], queued: float | None, wanted: int
) -> None:
    policy = pickle.loads(pickle.dumps(EngineScaling(16.0, 0.8)))
    seen = Seen(aggregated_metrics={STREAMS: streams, PAGES: pages}, total_queued_requests=queued)
    found, state = policy(seen)
    assert (math.ceil(found), state) == (wanted, {})


@pytest.mark.parametrize("metrics", [None, {}])
def test_without_figures_it_goes_by_what_serve_counts(metrics: Any) -> None:
    seen = Seen(aggregated_metrics=metrics, total_num_requests=40, total_queued_requests=8)
    assert EngineScaling(16.0, 0.8)(seen) == (2.5, {})


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_scaling_metrics_report_streams_and_blocks() -> None:
    model = TableModel(context_length=100_000)
    async with AsyncLLM(model, tokenizer=byte_tokenizer()) as llm:
        assert scaling_metrics(llm.metrics()) == {STREAMS: 0.0, PAGES: 0.0}
        async with llm.stream("x", max_new_tokens=90_000) as stream:
            await anext(stream.events())
            figures = scaling_metrics(llm.metrics())
            assert figures[STREAMS] == 1.0 and 0.0 <= figures[PAGES] <= 1.0
