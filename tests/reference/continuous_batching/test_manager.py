"""The synchronous doors: what they give, what they refuse, and that nothing hangs or stays."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen.engine.scheduling.scheduler import Scheduler
from asyncgen.engine.scheduling.state import GenerationOutput, RequestStatus, ScheduledRow
from asyncgen.errors import (
    EngineClosedError,
    EngineDiedError,
    InvalidRequestError,
    OverloadedError,
)
from asyncgen.generation.config import GenerationConfig
from asyncgen.reference.continuous_batching.manager import ContinuousBatchingManager
from tests.cases import for_each
from tests.doubles.engine import decode_threads, greedy_ids, no_thread_left, sampled_ids
from tests.doubles.models import PATIENCE, Gate, TableModel
from tests.engine.sync_calls import PROMPTS, BatchModel, Breaks, Idle, finished, running

if TYPE_CHECKING:
    import torch

    from asyncgen.engine.core import Engine

__all__ = ["no_thread_left"]


def engine_of(manager: ContinuousBatchingManager) -> Engine:
    """Return the engine of its thread."""
    assert manager._thread is not None
    engine = manager._thread.loaded
    assert engine is not None
    return engine


def in_time(condition: Any) -> None:
    """Wait for something that the decode thread does between two steps."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# The manager: results.


def test_results_come_in_the_order_of_their_ends() -> None:
    manager = ContinuousBatchingManager(TableModel())
    names = [manager.add_request(PROMPTS[0], max_new_tokens=count) for count in (9, 2, 5)]
    manager.start()
    assert names == ["req_0", "req_1", "req_2"]
    assert [*finished(manager, 3)] == ["req_1", "req_2", "req_0"]
    manager.stop()


def test_requests_may_come_before_the_start() -> None:
    model = TableModel()
    manager = ContinuousBatchingManager(model, GenerationConfig(max_new_tokens=3))
    assert not manager.is_running() and not decode_threads()
    names = manager.add_requests(PROMPTS)
    assert manager.get_result() is None and manager.get_result(names[0]) is None
    assert [*manager] == []
    manager.stop()
    manager.join()
    manager.start()
    assert manager.is_running()
    for name, prompt in zip(names, PROMPTS, strict=True):
        output = manager.get_result(name, timeout=PATIENCE)
        assert output is not None
        assert output.generated_tokens == greedy_ids(model, prompt, 3)
    manager.stop()
    assert not manager.is_running()


def test_streamed_results_hold_all_tokens_so_far() -> None:
    model = TableModel()
    manager = running(model)
    manager.add_request([1, 2], "quiet", 6)
    manager.add_request(PROMPTS[0], "loud", 6, streaming=True, record_timestamps=True)
    expected = greedy_ids(model, PROMPTS[0], 6)
    outputs = [*manager.request_id_iter("loud")]
    assert [output.generated_tokens for output in outputs] == [
        expected[:count] for count in range(1, 7)
    ]
    assert [output.is_finished() for output in outputs] == [False] * 5 + [True]
    assert {output.status for output in outputs[:-1]} == {RequestStatus.DECODING}
    for count, output in enumerate(outputs, 1):
        assert output.timestamps is not None and len(output.timestamps) == count
    assert [*manager.request_id_iter("loud")] == []
    quiet = manager.get_result(timeout=PATIENCE)
    assert quiet is not None and quiet.request_id == "quiet"
    manager.stop()


def test_iteration_ends_when_it_is_stopped_and_all_is_read() -> None:
    manager = running()
    names = manager.add_requests(PROMPTS, max_new_tokens=5)
    seen = []
    for output in manager:
        seen.append(output.request_id)
        if len(seen) == 2:
            manager.stop(block=False)
    assert sorted(seen) == sorted(names)
    manager.join(PATIENCE)
    assert not manager.is_running() and manager.get_result() is None


def test_a_timeout_and_a_reader_that_waits_for_the_end() -> None:
    manager = running()
    begun = time.monotonic()
    assert manager.get_result(timeout=0.05) is None
    assert time.monotonic() - begun >= 0.05
    assert manager.get_result("unknown") is None
    assert [*manager.request_id_iter("unknown")] == []
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.append(manager.get_result()))
    reader.start()
    manager.stop()
    reader.join(PATIENCE)
    assert found == [None]


def test_requests_have_parameters_of_their_own() -> None:
    model = TableModel()
    manager = running(model)
    manager.add_request([1], "greedy", 8)
    manager.add_request([1], "drawn", 8, do_sample=True, top_k=0, seed=5)
    manager.add_request([1], "biased", 8, suppress_tokens=[greedy_ids(model, [1], 1)[0]])
    manager.add_request([1], "broken", 8, logits_processor=[Breaks(1)])
    found = finished(manager, 4)
    assert found["greedy"].generated_tokens == greedy_ids(model, [1], 8)
    assert found["drawn"].generated_tokens == sampled_ids(model, [1], 8, seed=5)
    assert found["biased"].generated_tokens[0] != found["greedy"].generated_tokens[0]
    assert found["broken"].error == "ZeroDivisionError: by the processor"
    manager.stop()


def test_a_name_is_used_once_at_a_time() -> None:
    manager = running()
    manager.add_request([1], "req_0", 2)
    assert manager.add_request([1], max_new_tokens=2) == "req_1"
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="in use"):
            manager.add_request([1], "req_0", 2)
    finished(manager, 2)
    manager.add_request([1], "req_0", 2)
    for name in ("", 7):
        with pytest.raises(InvalidRequestError) as caught:
            manager.add_request([1], name, 2)  # type: ignore[arg-type]
        assert caught.value.parameter == "request_id"
    finished(manager, 1)
    manager.stop()


def test_several_are_added_all_or_none() -> None:
    manager = running(max_queue_size=8, max_running=1)
    for inputs, error in (([[1]] * 20, OverloadedError), ([[1], [999]], InvalidRequestError)):
        with pytest.raises(error):
            manager.add_requests(inputs, max_new_tokens=2)
    assert manager.get_result(timeout=0) is None
    names = manager.add_requests([[1]] * 8, max_new_tokens=2)
    assert {*finished(manager, 8)} == {*names}
    manager.stop()


def test_many_threads() -> None:
    model = TableModel()
    manager = running(model, max_running=8)
    found: dict[str, list[int]] = {}

    def add(first: int) -> None:
        for number in range(20):
            name = manager.add_request([first, number], f"{first}-{number}", 3)
            output = manager.get_result(name, timeout=PATIENCE)
            assert output is not None
            found[name] = output.generated_tokens

    threads = [threading.Thread(target=add, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    manager.stop()
    assert found == {
        f"{first}-{number}": greedy_ids(model, [first, number], 3)
        for first in range(4)
        for number in range(20)
    }


# The manager: cancelling, stopping, dying.


def test_cancel_at_any_time(gate: Gate) -> None:
    model = TableModel(hook=gate)
    manager = ContinuousBatchingManager(model, max_running=1)
    manager.add_request([1], "early", 5)
    manager.cancel_request("early")
    manager.start()
    manager.add_request([1], "runs", 100, streaming=True)
    manager.add_request([1], "waits", 100)
    manager.add_request([2], "stays", 4)
    gate.allow(3)
    for _ in range(3):
        assert manager.get_result("runs", timeout=PATIENCE) is not None
    gate.wait_arrived(4)
    manager.cancel_request("waits")
    manager.cancel_request("runs")
    manager.cancel_request("unknown")
    gate.open()
    found = finished(manager, 4)
    assert {name for name, output in found.items() if output.error} == {"early", "runs", "waits"}
    for name in ("early", "runs", "waits"):
        assert found[name].error == "the request was cancelled"
        assert found[name].status is RequestStatus.FAILED
    assert 3 <= len(found["runs"].generated_tokens) <= 5
    assert found["waits"].generated_tokens == []
    assert found["stays"].generated_tokens == greedy_ids(model, [2], 4)
    manager.cancel_request("stays")
    manager.stop()


def test_a_cancelled_request_ends_its_iteration(gate: Gate) -> None:
    manager = running(TableModel(hook=gate))
    gate.allow(2)
    manager.add_request([1], "it", streaming=True)
    seen = []
    for output in manager.request_id_iter("it"):
        seen.append(output)
        if len(seen) == 2:
            manager.cancel_request("it")
            gate.open()
    assert seen[-1].error == "the request was cancelled"
    manager.stop()


def test_random_cancels_leave_nothing() -> None:
    model, choose = TableModel(), random.Random(7)
    manager = running(model, max_running=4)
    engine = engine_of(manager)
    for number in range(60):
        prompt = [number % 5, number]
        name = manager.add_request(prompt, max_new_tokens=choose.randrange(1, 40))
        if choose.random() < 0.5:
            manager.cancel_request(name)
    found = finished(manager, 60)
    for output in found.values():
        tokens = output.generated_tokens
        assert tokens == greedy_ids(model, output.prompt_ids, len(tokens))
        assert tokens or output.error
    pool = engine._pool
    assert pool is not None
    in_time(lambda: not engine.has_work)
    in_time(lambda: pool.num_used == 0)
    manager.stop()
    assert not manager.frontend.results._expected and not manager.frontend.results._of_name
    admission = manager.frontend.admission
    assert (admission.num_waiting, admission.num_running) == (0, 0)


def test_a_stop_lets_requests_end(gate: Gate) -> None:
    model = TableModel(hook=gate)
    manager = running(model, max_running=1)
    names = manager.add_requests(PROMPTS[:3], max_new_tokens=4)
    gate.wait_arrived(1)
    manager.stop(timeout=0.02)
    assert manager.is_running()
    with pytest.raises(EngineClosedError):
        manager.add_request([1])
    with pytest.raises(EngineClosedError, match="still stopping"):
        manager.start()
    gate.open()
    manager.join(PATIENCE)
    assert not manager.is_running()
    for name, prompt in zip(names, PROMPTS, strict=False):
        output = manager.get_result(name)
        assert output is not None
        assert output.generated_tokens == greedy_ids(model, prompt, 4)


def test_a_hard_stop_cuts_requests_off(gate: Gate) -> None:
    manager = running(TableModel(hook=gate), max_running=1)
    names = manager.add_requests(PROMPTS[:3], max_new_tokens=50)
    gate.allow(2)
    gate.wait_arrived(3)
    manager.stop(block=False)
    manager.stop(block=False, hard_stop=True)
    gate.open()
    found = {output.request_id: output for output in manager}
    assert {*found} == {*names}
    for output in found.values():
        assert output.status is RequestStatus.FAILED
        assert output.error == "the manager was stopped before the request was done"
    assert 0 < len(found[names[0]].generated_tokens) < 50
    manager.stop()
    assert not manager.is_running()


def test_it_can_be_started_anew(caplog: pytest.LogCaptureFixture) -> None:
    model = TableModel()
    manager = running(model)
    manager.start()
    assert "runs already" in caplog.text
    for _ in range(2):
        manager.add_request([1], "it", 3)
        manager.stop()
        with pytest.raises(EngineClosedError):
            manager.add_request([1])
        manager.start()
        output = manager.get_result("it")
        assert output is not None and output.generated_tokens == greedy_ids(model, [1], 3)
    manager.stop()
    manager.stop()


def test_a_stop_from_the_decode_thread() -> None:
    manager: ContinuousBatchingManager

    def stops(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        manager.stop()
        return scores

    manager = running()
    manager.add_request([1], "it", 3, logits_processor=[stops])
    output = manager.get_result("it", timeout=PATIENCE)
    assert output is not None and output.error is None
    manager.join(PATIENCE)
    assert not manager.is_running()


def test_the_death_of_the_thread_reaches_everybody() -> None:
    manager = ContinuousBatchingManager(TableModel(), scheduler=Idle)
    names = manager.add_requests(PROMPTS)
    manager.start()
    found: list[GenerationOutput] = []
    with pytest.raises(EngineDiedError) as caught:
        found.extend(manager)  # keeps what came before the error
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert sorted(output.request_id for output in found) == sorted(names)
    assert all("schedule_batch" in str(output.error) for output in found)
    for call in (manager.get_result, lambda: manager.add_request([1])):
        with pytest.raises(EngineDiedError):
            call()
    manager.join(PATIENCE)
    assert not manager.is_running()
    manager.stop()


def test_a_start_that_fails() -> None:
    manager = ContinuousBatchingManager(TableModel(), scheduler=dict)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="scheduler"):
            manager.start()
        assert not manager.is_running()


def test_dropped_it_ends_its_thread(gate: Gate) -> None:
    manager = running(TableModel(hook=gate))
    manager.add_request([1])
    gate.wait_arrived(1)
    (thread,) = decode_threads()
    del manager
    gc.collect()
    gate.open()
    thread.join(PATIENCE)
    assert not thread.is_alive()


EXIT = """
from asyncgen.reference.continuous_batching.manager import ContinuousBatchingManager
from tests.doubles.models import TableModel
from tests.engine.sync_calls import PROMPTS, finished, running, BatchModel, Breaks, Idle
from tests.ids import readable

manager = ContinuousBatchingManager(TableModel(context_length=10**6))
manager.start()
manager.add_request([1], streaming=True)
print(manager.get_result().generated_tokens)
"""


@pytest.mark.gate
def test_the_interpreter_leaves_while_it_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.startswith("[") and done.stderr == ""


def test_the_context_manager(gate: Gate) -> None:
    model = BatchModel()
    with model.continuous_batching_context_manager(GenerationConfig(max_new_tokens=3)) as manager:
        names = manager.add_requests(PROMPTS)
    assert not manager.is_running()
    assert {output.request_id for output in manager} == {*names}
    with (
        pytest.raises(ZeroDivisionError),
        # So long that it cannot end by itself, however late the manager is left.
        BatchModel(hook=gate, context_length=10**6).continuous_batching_context_manager(
            max_running=1
        ) as manager,
    ):
        manager.add_request([1])
        gate.allow(2)
        gate.wait_arrived(3)
        threading.Timer(0.01, gate.open).start()
        raise ZeroDivisionError
    output = manager.get_result()
    assert output is not None and output.status is RequestStatus.FAILED


# The manager: memory, queue, order.


def test_pages_stay_until_they_are_evicted() -> None:
    model = TableModel()
    manager = running(model, manual_eviction=True, page_size=4)
    pool = engine_of(manager)._pool
    assert pool is not None
    prompt = list(range(10))
    first = manager.add_request(prompt, "turn", 6, n=2, do_sample=True)
    found = finished(manager, 2)
    in_time(lambda: not engine_of(manager).has_work)
    held = pool.num_used
    assert held >= 4
    manager.evict_request_from_cache(first)
    in_time(lambda: pool.num_used < held)
    assert pool.num_used > 0
    manager.evict_request_from_cache(f"{first}__child#0")
    in_time(lambda: pool.num_used == 0)
    manager.evict_request_from_cache("unknown")
    assert len(found) == 2
    manager.stop()


def test_request_of_the_same_id_reuses_its_blocks() -> None:
    model = TableModel()
    manager = running(model, manual_eviction=True, allow_block_sharing=False)
    prompt = list(range(21))
    manager.add_request(prompt, "turn", 8)
    answer = finished(manager, 1)["turn"].generated_tokens
    before = sum(length for _, length in model.core.forwards)
    longer = [*prompt, *answer, 99]
    manager.add_request(longer, "turn", 1)
    assert finished(manager, 1)["turn"].generated_tokens == greedy_ids(model, longer, 1)
    assert sum(length for _, length in model.core.forwards) - before == 2
    manager.stop()


def test_kept_pages_go_when_their_space_is_needed() -> None:
    model = TableModel()
    manager = running(model, manual_eviction=True, page_size=4, kv_cache_memory=10 * 4 * 16)
    for number in range(8):
        prompt = [number] * 13
        manager.add_request(prompt, f"{number}", 6)
        output = finished(manager, 1)[f"{number}"]
        assert output.generated_tokens == greedy_ids(model, prompt, 6)
    # Also for somebody beside the batch, who reserves all that he may come to need.
    manager.add_request([1] * 13, "beside", 6, penalty_alpha=0.6, top_k=2)
    assert len(finished(manager, 1)["beside"].generated_tokens) == 6
    manager.stop()


@pytest.mark.parametrize("end", ["cancel before", "cancel during", "fail"])
def test_a_request_that_did_not_end_well_keeps_no_pages(end: str, gate: Gate) -> None:
    manager = running(TableModel(hook=gate), manual_eviction=True)
    pool = engine_of(manager)._pool
    assert pool is not None
    processors = [Breaks(1)] if end == "fail" else []
    manager.add_request([1, 2], "it", 400, logits_processor=processors)
    if end == "cancel during":
        gate.allow(2)
        gate.wait_arrived(3)
    if end != "fail":
        manager.cancel_request("it")
    gate.open()
    assert finished(manager, 1)["it"].error
    in_time(lambda: pool.num_used == 0)
    manager.stop()


def test_only_a_finished_request_is_evicted(gate: Gate) -> None:
    manager = running(TableModel(hook=gate), manual_eviction=True)
    manager.add_request([1], "it", 2)
    with pytest.raises(InvalidRequestError, match="is not finished"):
        manager.evict_request_from_cache("it")
    gate.open()
    finished(manager, 1)
    manager.evict_request_from_cache("it")
    manager.stop()
    manager.evict_request_from_cache("it")


def test_the_queue_is_bounded(gate: Gate) -> None:
    manager = running(TableModel(hook=gate), max_running=1, max_queue_size=2)
    manager.add_request([1], max_new_tokens=2)
    gate.wait_arrived(1)
    for _ in range(2):
        manager.add_request([1], max_new_tokens=2)
    with pytest.raises(OverloadedError) as caught:
        manager.add_request([1], "over", 2)
    assert caught.value.retry_after > 0
    gate.open()
    finished(manager, 3)
    manager.add_request([1], "over", 2)
    finished(manager, 1)
    manager.stop()


@for_each(
    ("options", "name"),
    [
        ({"max_queue_size": -1}, "max_queue_size"),
        ({"max_queue_size": True}, "max_queue_size"),
        ({"manual_eviction": 1}, "manual_eviction"),
        ({"num_q_padding_intervals": 1.5}, "num_q_padding_intervals"),
        ({"generation_config": 3}, "generation_config"),
    ],
)
def test_options_are_checked_at_the_call(options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        BatchModel().init_continuous_batching(**options)
    assert caught.value.parameter == name


class LastInFirstOut(Scheduler):
    """The youngest first, running or waiting."""

    def schedule_batch(self, token_budget: int, cache_budget: int) -> list[ScheduledRow]:
        candidates = sorted(
            [*self.running(), *self.waiting()], key=lambda state: state.arrival, reverse=True
        )
        return self.schedule(candidates, token_budget, cache_budget)


@pytest.mark.parametrize("scheduler", [LastInFirstOut, "fifo", "prefill_first"])
def test_the_scheduler_is_chosen(scheduler: Any) -> None:
    model = TableModel()
    manager = ContinuousBatchingManager(model, scheduler=scheduler, max_running=1)
    names = manager.add_requests(PROMPTS, max_new_tokens=4)
    manager.start()
    found = finished(manager, 4)
    order = names[::-1] if scheduler is LastInFirstOut else names
    assert [*found] == order
    for name, prompt in zip(names, PROMPTS, strict=True):
        assert found[name].generated_tokens == greedy_ids(model, prompt, 4)
    manager.stop()
