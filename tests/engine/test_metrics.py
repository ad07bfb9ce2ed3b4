"""Counts and times of an engine: what was told is what a snapshot says."""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left
from dataclasses import FrozenInstanceError, dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgen.engine.metrics import (
    SECONDS,
    TOKENS,
    EngineMetrics,
    Histogram,
    HistogramSnapshot,
    RequestProgress,
)


@dataclass(eq=False)
class FakeRequest:
    """As much of a request as is measured."""

    prompt_ids: list[int]
    accepted_at: float = 0.0
    progress: RequestProgress = field(default_factory=RequestProgress)


def start(metrics: EngineMetrics, request: FakeRequest, now: float) -> None:
    """The first turn of a request."""
    request.progress.started_at = now
    metrics.queue_time.observe(now - request.accepted_at)


def give(metrics: EngineMetrics, request: FakeRequest, count: int, now: float) -> None:
    """New tokens of a request."""
    metrics.tokens(request, count, now)
    progress = request.progress
    progress.num_tokens += count
    progress.last_token_at = now
    progress.first_token_at = now if progress.first_token_at is None else progress.first_token_at


VALUES = st.lists(st.floats(0, 1000, allow_nan=False), min_size=1, max_size=50)


@given(VALUES)
def test_a_histogram_counts_each_value_below_the_first_bound_that_holds_it(
    values: list[float],
) -> None:
    histogram = Histogram(SECONDS)
    for value in values:
        histogram.observe(value)
    shot = histogram.snapshot()
    assert len(shot.counts) == len(shot.bounds) + 1
    assert shot.count == len(values)
    assert shot.sum == pytest.approx(sum(values))
    assert shot.mean == pytest.approx(sum(values) / len(values))
    for place, bound in enumerate(shot.bounds):
        assert sum(shot.counts[: place + 1]) == sum(value <= bound for value in values)


@given(VALUES, st.floats(0.01, 1))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], share: float) -> None:
    histogram = Histogram(SECONDS)
    for value in values:
        histogram.observe(value)
    estimate = histogram.snapshot().quantile(share)
    assert estimate is not None
    ordered = sorted(values)
    rank = share * len(values)
    true = next(value for count, value in enumerate(ordered, 1) if count >= rank)
    bucket = bisect_left(SECONDS, true)
    bounds = (0.0, *SECONDS, SECONDS[-1])
    assert bounds[bucket] <= estimate * (1 + 1e-9) and estimate <= bounds[bucket + 1] * (1 + 1e-9)


def test_an_empty_histogram_has_neither_mean_nor_quantile() -> None:
    shot = Histogram(TOKENS).snapshot()
    assert (shot.count, shot.mean, shot.quantile(0.5)) == (0, None, None)


def test_a_quantile_is_even_within_its_bucket() -> None:
    shot = HistogramSnapshot((10.0, 20.0), (0, 4, 1), 0.0)
    assert shot.quantile(0.4) == pytest.approx(15.0)
    assert shot.quantile(1.0) == 20.0  # beyond the last bound nothing is known


def test_bounds_ascend() -> None:
    for bounds in (SECONDS, TOKENS):
        assert list(bounds) == sorted(set(bounds))


def test_the_life_of_a_request() -> None:
    metrics = EngineMetrics()
    request = FakeRequest([1, 2, 3], accepted_at=10.0)
    start(metrics, request, 10.5)
    give(metrics, request, 1, 11.0)
    give(metrics, request, 1, 11.25)
    give(metrics, request, 3, 11.75)
    metrics.request_finished(request, "stop", 12.0)
    shot = metrics.snapshot()
    assert shot.queue_time.sum == pytest.approx(0.5)
    assert shot.time_to_first_token.sum == pytest.approx(1.0)
    assert shot.prefill_time.sum == pytest.approx(0.5)
    assert (shot.inter_token_latency.count, shot.inter_token_latency.sum) == (2, 0.75)
    assert shot.decode_time.sum == pytest.approx(0.75)
    assert shot.e2e_latency.sum == pytest.approx(2.0)
    assert (shot.prompt_tokens, shot.generation_tokens) == (3, 5)
    assert (shot.request_prompt_tokens.sum, shot.request_generation_tokens.sum) == (3, 5)
    assert dict(shot.finished) == {"stop": 1}


def test_samples_of_one_step_are_one_interval() -> None:
    metrics = EngineMetrics()
    request = FakeRequest([1])
    for now in (1.0, 1.0, 2.0, 2.0):
        give(metrics, request, 1, now)
    shot = metrics.snapshot()
    assert (shot.inter_token_latency.count, shot.generation_tokens) == (1, 4)
    assert shot.time_to_first_token.count == 1


def test_a_request_that_never_ran_has_only_an_end() -> None:
    metrics = EngineMetrics()
    queued = FakeRequest([1, 2])
    metrics.request_finished(queued, "cancelled", 3.0)
    shot = metrics.snapshot()
    assert dict(shot.finished) == {"cancelled": 1}
    assert (shot.prompt_tokens, shot.e2e_latency.count, shot.queue_time.count) == (0, 1, 0)


def test_a_recorder_keeps_no_request() -> None:
    metrics = EngineMetrics()
    request = FakeRequest([1])
    kept = weakref.ref(request)
    start(metrics, request, 0.5)
    give(metrics, request, 1, 1.0)
    del request
    assert kept() is None


def test_a_snapshot_has_the_figures_of_the_recorder() -> None:
    metrics = EngineMetrics()
    assert metrics.snapshot().cache_usage == 0
    assert metrics.snapshot().prefix_cache_hit_rate == 0
    metrics.requests_running, metrics.requests_waiting = 2, 1
    metrics.pages_used, metrics.pages_total = 5, 40
    metrics.step_tokens.observe(70)
    metrics.step_tokens.observe(2)
    metrics.prefix_cache_queries, metrics.prefix_cache_hits = 40, 20
    shot = metrics.snapshot()
    assert (shot.requests_running, shot.requests_waiting) == (2, 1)
    assert (shot.pages_used, shot.pages_total, shot.cache_usage) == (5, 40, 0.125)
    assert (shot.step_tokens.count, shot.step_tokens.sum) == (2, 72)
    assert (shot.prefix_cache_queries, shot.prefix_cache_hits) == (40, 20)
    assert shot.prefix_cache_hit_rate == 0.5


def test_a_snapshot_is_frozen() -> None:
    metrics = EngineMetrics()
    shot = metrics.snapshot()
    with pytest.raises(FrozenInstanceError):
        shot.preemptions = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        shot.finished["stop"] = 1  # type: ignore[index]
    metrics.request_finished(FakeRequest([1]), "stop", 0.0)
    assert not shot.finished


def test_snapshots_from_another_thread_never_go_back() -> None:
    metrics = EngineMetrics()
    done = threading.Event()
    counts: list[tuple[int, int]] = []

    def read() -> None:
        while not done.is_set():
            shot = metrics.snapshot()
            counts.append((shot.generation_tokens, sum(shot.finished.values())))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(3000):
        request = FakeRequest([1])
        give(metrics, request, 1, number)
        metrics.request_finished(request, f"reason-{number % 50}", number + 1)
    done.set()
    reader.join()
    assert counts == sorted(counts)
    assert metrics.snapshot().generation_tokens == 3000
