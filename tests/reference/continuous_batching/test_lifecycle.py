"""Managers pause, warm up, are kept and are destroyed; results reach handlers in event loops."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import torch

from asyncgen.engine.scheduling.scheduler import Scheduler
from asyncgen.engine.scheduling.state import RequestStatus
from asyncgen.errors import EngineClosedError, EngineDiedError, InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.reference.continuous_batching.batching_config import ContinuousBatchingConfig
from asyncgen.reference.continuous_batching.lifecycle import KEPT
from asyncgen.reference.continuous_batching.manager import ContinuousBatchingManager
from asyncgen.reference.load_model import load_model
from tests.cases import for_each
from tests.doubles.checkpoints import save_checkpoint
from tests.doubles.engine import greedy_ids, no_thread_left
from tests.doubles.models import PATIENCE, Gate, TableModel
from tests.engine.sync_calls import PROMPTS, BatchModel, Idle, finished, running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from asyncgen.engine.scheduling.state import ScheduledRow

__all__ = ["no_thread_left"]

LONG = list(range(96))
"""A prompt of three pages."""


def change(model: TableModel) -> None:
    """Give a model other weights."""
    model.core.table = model.core.table.roll(1, dims=1)


def in_thread(function: Callable[[], object]) -> threading.Thread:
    """Run a function on a thread of its own."""
    thread = threading.Thread(target=function)
    thread.start()
    return thread


# Pauses.


def test_a_running_request_goes_on_with_changed_weights() -> None:
    model, length = TableModel(context_length=4096), 2000  # some of it, whenever the pause comes
    manager = running(model)
    manager.add_request([1, 2], "it", length, streaming=True)
    first = manager.get_result("it", timeout=PATIENCE)
    assert first is not None
    with manager.pause():
        count = model.num_forwards
        time.sleep(0.02)
        assert model.num_forwards == count
        before = first.generated_tokens
        while (output := manager.get_result("it", timeout=0)) is not None:
            before = output.generated_tokens
        assert before == greedy_ids(model, [1, 2], len(before))
        change(model)
    *_, last = manager.request_id_iter("it")
    after = greedy_ids(model, [1, 2, *before], length - len(before))
    assert last.generated_tokens == before + after and len(before) < length
    manager.stop()


@for_each("changed", [False, True])
def test_pages_of_old_weights_are_not_shared(changed: bool) -> None:
    model = TableModel()
    manager = running(model)
    computed = []
    for _ in range(3):
        begun = sum(length for _, length in model.core.forwards)
        manager.add_request(LONG, "it", 2)
        finished(manager, 1)
        computed.append(sum(length for _, length in model.core.forwards) - begun)
        if changed:
            with manager.pause():
                pass
    assert computed[0] > 96
    assert computed[1:] == ([computed[0]] * 2 if changed else [computed[1]] * 2)
    assert changed or computed[1] < 96
    manager.stop()


def test_a_request_that_waits_shares_no_old_pages(gate: Gate) -> None:
    model = TableModel(hook=gate)
    manager = running(model, max_running=1)
    manager.add_request(LONG, "first", 3)
    gate.wait_arrived(1)
    manager.add_request(LONG, "second", 3)  # it would find the pages of the first
    paused = threading.Event()

    def pause() -> None:
        with manager.pause():
            paused.set()

    thread = in_thread(pause)
    while not paused.wait(0.001):
        gate.allow(1)
    thread.join(PATIENCE)
    gate.open()
    found = finished(manager, 2)
    assert found["second"].generated_tokens == greedy_ids(model, LONG, 3)
    assert sum(length for _, length in model.core.forwards) >= 2 * 96
    manager.stop()


def test_several_threads_pause_at_the_same_time() -> None:
    model = TableModel()
    manager = running(model)
    inside, leave = threading.Barrier(3), threading.Event()

    def hold() -> None:
        with manager.pause(), manager.pause():
            inside.wait(PATIENCE)
            leave.wait(PATIENCE)

    threads = [in_thread(hold) for _ in range(2)]
    inside.wait(PATIENCE)
    manager.add_request([1], "it", 3)
    assert manager.get_result("it", timeout=0.02) is None and model.num_forwards == 0
    leave.set()
    output = manager.get_result("it", timeout=PATIENCE)
    assert output is not None and output.generated_tokens == greedy_ids(model, [1], 3)
    for thread in threads:
        thread.join(PATIENCE)
    manager.stop()


def test_a_pause_that_cannot_be_is_refused() -> None:
    manager = ContinuousBatchingManager(TableModel())
    for _ in range(2):
        with pytest.raises(EngineClosedError, match="does not run"), manager.pause():
            pass
        manager.start()
        with manager.pause(), pytest.raises(RuntimeError, match="waits for this `pause`"):
            manager.stop()
        assert manager.is_running()
        manager.stop()

    def pauses(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        with manager.pause():
            return scores

    manager.start()
    manager.add_request([1], "it", 2, logits_processor=[pauses])
    output = manager.get_result("it", timeout=PATIENCE)
    assert output is not None and "cannot wait for itself" in str(output.error)
    manager.stop()


def test_a_pause_of_a_thread_that_dies_ends() -> None:
    arrived, go = threading.Event(), threading.Event()

    class Dies(Scheduler):
        """Raises once it may."""

        def schedule_batch(self, token_budget: int, cache_budget: int) -> list[ScheduledRow]:
            arrived.set()
            go.wait(PATIENCE)
            raise ZeroDivisionError

    manager = running(scheduler=Dies)
    manager.add_request([1])
    arrived.wait(PATIENCE)
    errors: list[BaseException] = []

    def pause() -> None:
        try:
            with manager.pause():
                pass
        except EngineDiedError as error:
            errors.append(error)

    thread = in_thread(pause)
    assert manager._thread is not None
    pauses = manager._thread._shared.pauses
    while not pauses._holders:
        time.sleep(0.001)
    go.set()
    thread.join(PATIENCE)
    assert isinstance(errors[0].__cause__, ZeroDivisionError) and not pauses._holders
    manager.join(PATIENCE)


def test_a_stop_waits_for_the_end_of_a_pause() -> None:
    model = TableModel()
    manager = running(model)
    with manager.pause():
        manager.add_request([1], "it", 3)
        thread = in_thread(manager.stop)
        thread.join(0.02)
        assert thread.is_alive() and model.num_forwards == 0
    thread.join(PATIENCE)
    output = manager.get_result("it")
    assert output is not None and output.status is RequestStatus.FINISHED


def test_embeddings_may_be_written_to_in_a_pause(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, eos_token_id=None)
    model = load_model(tmp_path, device="cpu")
    with model.continuous_batching_context_manager(GenerationConfig(max_new_tokens=6)) as manager:
        before = manager.add_request(PROMPTS[0])
        first = manager.get_result(before, timeout=PATIENCE)
        with pytest.raises(InvalidRequestError, match="or `pause` its manager"):
            model.get_input_embeddings().weight.data.neg_()
        with manager.pause():
            with pytest.raises(InvalidRequestError, match="an engine runs"):
                model.to(torch.float64)
            model.get_input_embeddings().weight.data.neg_()
        name = manager.add_request(PROMPTS[0])
        output = manager.get_result(name, timeout=PATIENCE)
    assert first is not None and output is not None
    ids = model.generate(torch.tensor([PROMPTS[0]]), max_new_tokens=6, do_sample=False)
    assert isinstance(ids, torch.Tensor)
    assert output.generated_tokens == ids[0, len(PROMPTS[0]) :].tolist()
    assert output.generated_tokens != first.generated_tokens


# Kept and destroyed.


def test_a_kept_engine_shares_its_pages_with_the_next_call() -> None:
    model = BatchModel()
    computed = []
    for keeps in (True, True, False, False):
        begun = sum(length for _, length in model.core.forwards)
        outputs = model.generate_batch([LONG], max_new_tokens=3, persistent_manager=keeps)
        assert outputs["req_0"].generated_tokens == greedy_ids(model, LONG, 3)
        computed.append(sum(length for _, length in model.core.forwards) - begun)
        assert hasattr(model, KEPT) is keeps
    assert computed[0] == computed[3] > 96 and computed[1] == computed[2] < 96


def test_a_kept_manager_is_returned_until_it_is_destroyed() -> None:
    model = BatchModel()
    config = GenerationConfig(max_new_tokens=3)
    batching = ContinuousBatchingConfig(page_size=16)
    with model.continuous_batching_context_manager(
        config, persistent_manager=True, continuous_batching_config=batching
    ) as kept:
        kept.add_request(LONG, "one")
    assert not kept.is_running() and kept.warmed_up
    begun = sum(length for _, length in model.core.forwards)
    same: dict[str, Any] = {"continuous_batching_config": ContinuousBatchingConfig(page_size=16)}
    for given in ({}, same):
        assert model.init_continuous_batching(GenerationConfig(max_new_tokens=5), **given) is kept
    kept.start()
    kept.add_request(LONG, "two")
    found = finished(kept, 2)
    assert [len(found[name].generated_tokens) for name in ("one", "two")] == [3, 5]
    assert sum(length for _, length in model.core.forwards) - begun < 96
    kept.stop(True, None, True)
    other = model.init_continuous_batching(config, page_size=32)
    assert other is not kept and kept.is_destroyed
    other.start()
    other.stop(keep_for_next_session=True)
    assert model.init_continuous_batching() is other
    model.destroy_cached_continuous_batching_manager()
    model.destroy_cached_continuous_batching_manager()
    assert other.is_destroyed and not hasattr(model, KEPT)
    assert model.init_continuous_batching() is not other


def test_a_destroyed_manager_serves_no_more() -> None:
    manager = running()
    manager.add_request([1], "it", 3)
    manager.destroy()
    manager.destroy()
    assert not manager.is_running()
    output = manager.get_result("it")
    assert output is not None and output.status is RequestStatus.FINISHED
    for call in (manager.start, manager.warmup, partial(manager.add_request, [1])):
        with pytest.raises(EngineClosedError, match="was destroyed"):
            call()


def test_a_manager_that_died_is_not_used_again() -> None:
    model = BatchModel()
    manager = model.init_continuous_batching(scheduler=Idle)
    manager.add_request([1])
    manager.start()
    manager.stop(keep_for_next_session=True)
    assert model.init_continuous_batching() is not manager
    unstarted = model.init_continuous_batching()
    unstarted.stop(keep_for_next_session=True)
    assert not hasattr(model, KEPT)


def test_memory_of_a_stopped_manager_is_free(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, eos_token_id=None)
    model = load_model(tmp_path, device="cpu")
    manager = model.init_continuous_batching()
    manager.warmup()
    assert manager.warmed_up
    with pytest.raises(InvalidRequestError, match="an engine runs"):
        model.resize_token_embeddings(11)
    manager.start()
    manager.stop()
    model.generate_batch(PROMPTS[1:2], max_new_tokens=2, persistent_manager=True)
    with pytest.raises(InvalidRequestError, match="an engine runs"):
        model.resize_token_embeddings(11)
    model.destroy_cached_continuous_batching_manager()
    assert model.resize_token_embeddings(11).num_embeddings == 11


def test_a_join_takes_a_timeout_with_or_without_the_time_of_the_stop(gate: Gate) -> None:
    manager = running(TableModel(hook=gate))
    manager.add_request([1], max_new_tokens=3)
    manager.stop(block=False)
    begun = time.perf_counter()
    for wait in (
        partial(manager.join, 0.001),
        partial(manager.join, timeout=0.001),
        partial(manager.join, begun, 0.001),
        partial(manager.join, begun, timeout=0.001),
        partial(manager.join, stop_trigger_time=begun, timeout=0.001),
    ):
        wait()
        assert manager.is_running() and time.perf_counter() - begun < PATIENCE
    with pytest.raises(TypeError):
        manager.join(1.0, 2.0, 3.0)
    gate.open()
    manager.join(begun, None)
    assert not manager.is_running()


# Handlers of results.


@for_each("backend", ["asyncio", "trio"])
def test_a_handler_gets_the_results_in_its_loop(backend: str) -> None:
    model = BatchModel()
    manager = running(model)
    manager.add_request([5], "early", 2)
    while not manager.frontend.results.is_known("early"):
        pass
    found: dict[str, list[Any]] = {"loud": [], "quiet": [], "early": []}

    async def main() -> None:
        here, done = threading.get_ident(), anyio.Event()

        def take(name: str, output: Any) -> None:
            assert threading.get_ident() == here and output.request_id == name
            found[name].append(output)
            if all(outputs and outputs[-1].is_finished() for outputs in found.values()):
                done.set()

        for name in found:
            manager.register_result_handler(name, partial(take, name))
        manager.add_request([1], "loud", 5, streaming=True)
        manager.add_request([2], "quiet", 5)
        manager.add_request([3], "other", 5)
        with anyio.fail_after(PATIENCE):
            await done.wait()

    anyio.run(main, backend=backend)
    loud = greedy_ids(model, [1], 5)
    assert [output.generated_tokens for output in found["loud"]] == [
        loud[:count] for count in range(1, 6)
    ]
    assert [output.generated_tokens for output in found["quiet"]] == [greedy_ids(model, [2], 5)]
    assert [output.generated_tokens for output in found["early"]] == [greedy_ids(model, [5], 2)]
    other = manager.get_result(timeout=PATIENCE)
    assert other is not None and other.request_id == "other"
    assert manager.get_result("loud") is None and not manager.frontend.results._handlers
    manager.stop()
    assert [*manager] == []


def test_a_handler_that_raises_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    model = BatchModel()
    manager = running(model)

    async def main() -> None:
        done = anyio.Event()

        def breaks(output: Any) -> None:
            if output.is_finished():
                done.set()
            raise ZeroDivisionError

        manager.register_result_handler("it", breaks)
        manager.add_request([1], "it", 3, streaming=True)
        with anyio.fail_after(PATIENCE):
            await done.wait()

    anyio.run(main)
    assert caplog.text.count("the result handler of request it raised") == 3
    manager.add_request([1], "it", 3)
    assert [*finished(manager, 1)] == ["it"]
    manager.stop()


def test_results_for_a_loop_that_has_ended_are_kept(gate: Gate) -> None:
    manager = running(TableModel(hook=gate))

    async def main() -> None:
        manager.register_result_handler("it", lambda output: None)
        manager.add_request([1], "it", 3)
        gate.wait_arrived(1)

    anyio.run(main)
    gate.open()
    assert [*finished(manager, 1)] == ["it"]
    with pytest.raises(RuntimeError):
        manager.register_result_handler("it", lambda output: None)
    with pytest.raises(InvalidRequestError, match="callback"):
        manager.register_result_handler("it", None)  # type: ignore[arg-type]
    manager.stop()
