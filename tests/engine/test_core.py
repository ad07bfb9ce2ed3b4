"""The engine joins the batch and the side lane, and counts what happens."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgen.engine.core import Engine
from asyncgen.engine.lane.lane import SideLane
from asyncgen.errors import ContextLengthError, EngineDiedError, InvalidRequestError
from asyncgen.generation.logits.base import LogitsProcessorList
from tests.doubles.engine import greedy_ids
from tests.doubles.models import TableModel
from tests.engine.batches import Bench, ids_of
from tests.engine.making import request_for


class FakeRun:
    """Ends at its first turn, in one way or the other."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def turn(self) -> bool:
        if self.fails:
            raise ValueError("turn")
        return False

    def end(self, reason: str) -> None:
        """Nothing to tell."""


def test_metrics_count_waiting_and_failed_requests() -> None:
    engine = Engine(SideLane(lambda request: FakeRun(True), max_running=1))
    (bad, _), (waiting, _), (dies, _) = (request_for() for _ in range(3))
    engine.add(bad)
    engine.add(waiting)
    shot = engine.metrics.snapshot()
    assert (shot.requests_running, shot.requests_waiting) == (0, 2)
    engine.step()
    shot = engine.metrics.snapshot()
    assert (shot.requests_running, shot.requests_waiting) == (0, 1)
    engine.abort(waiting)
    assert engine.metrics.snapshot().requests_waiting == 0
    engine.add(dies)
    engine.fail_all(EngineDiedError("dead"))
    assert not engine.has_work


def test_a_step_gives_both_lanes_their_turn() -> None:
    model = TableModel()
    bench = Bench(model)
    sinks = [bench.add([number, 1], max_new_tokens=6)[1] for number in range(2)]
    sinks += [
        bench.add([number, 1], max_new_tokens=6, use_cache=False)[1] for number in range(2, 4)
    ]
    for _ in range(4):
        bench.step()
    assert [len(ids_of(sink)) for sink in sinks] == [4, 4, 2, 2]
    shot = bench.engine.metrics.snapshot()
    assert (shot.requests_running, shot.requests_waiting) == (4, 0)
    bench.run()
    for number, sink in enumerate(sinks):
        assert ids_of(sink) == greedy_ids(model, [number, 1], 6)
    bench.require_empty()


@pytest.mark.parametrize("way", ["abort", "abort_all", "fail_all"])
def test_every_end_reaches_both_lanes(way: str) -> None:
    bench = Bench(max_running=1)
    added = [
        bench.add([number], max_new_tokens=9, **given)
        for number, given in enumerate([{}, {}, {"use_cache": False}, {"use_cache": False}])
    ]
    bench.step()
    if way == "abort":
        for request, _ in added:
            bench.engine.abort(request)
            bench.engine.abort(request)
    elif way == "abort_all":
        bench.engine.abort_all("aborted")
    else:
        bench.engine.fail_all(EngineDiedError("dead"))
        assert all(isinstance(sink.items[-1], EngineDiedError) for _, sink in added)
        assert not bench.engine.has_work
        return
    reason = "cancelled" if way == "abort" else "aborted"
    assert [sink.events[-1].finish_reason for _, sink in added] == [reason] * 4
    bench.require_empty()


def test_figures_of_pages_and_steps() -> None:
    bench = Bench(page_size=4)
    bench.add(list(range(8)), max_new_tokens=3)
    bench.step()
    shot = bench.engine.metrics.snapshot()
    assert (shot.pages_used, shot.pages_total) == (2, 64)
    assert shot.step_tokens.sum == 8 and shot.requests_running == 1
    bench.run()
    bench.add(list(range(8)), max_new_tokens=3)
    bench.run()
    shot = bench.engine.metrics.snapshot()
    assert (shot.prefix_cache_queries, shot.prefix_cache_hits) == (16, 4)
    assert dict(shot.finished) == {"length": 2} and shot.generation_tokens == 6


@pytest.mark.parametrize("given", [{}, {"use_cache": False}])
def test_requests_larger_than_an_empty_pool_are_refused(given: dict[str, Any]) -> None:
    bench = Bench(pages=5, page_size=4)
    with pytest.raises(ContextLengthError, match="kv_cache_memory") as caught:
        bench.add([1, 2, 3], max_new_tokens=18, **given)
    assert caught.value.parameter == "max_new_tokens"
    with pytest.raises(ContextLengthError):
        bench.add(list(range(20)), **given)
    with pytest.raises(InvalidRequestError):
        bench.add([1, 2, 3], min_new_tokens=18, **given)
    _, sink = bench.add([1, 2, 3], **given)  # no length was asked for: to the end of the memory
    _, exact = bench.add([1, 2, 3], max_new_tokens=17, **given)
    bench.run()
    assert len(ids_of(sink)) == len(ids_of(exact)) == 17
    bench.require_empty()


def test_an_error_is_counted_and_the_place_is_free() -> None:
    def bad(input_ids: Any, scores: Any) -> Any:
        raise ValueError("bad")

    bench = Bench()
    bench.add(logits_processor=LogitsProcessorList([bad]))
    bench.add(logits_processor=LogitsProcessorList([bad]), use_cache=False)
    bench.run()
    assert dict(bench.engine.metrics.snapshot().finished) == {"error": 2}
    bench.require_empty()
