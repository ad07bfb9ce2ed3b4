"""Calls in the order of the documents and in that of newer references: the type decides."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.reference.continuous_batching.batching_config import (
    ContinuousBatchingConfig,
    WorkloadHints,
)
from asyncgen.reference.continuous_batching.manager import ContinuousBatchingManager
from asyncgen.reference.continuous_batching.mixin import ContinuousMixin
from asyncgen.reference.continuous_batching.positions import takes_newer_positions
from tests.cases import for_each
from tests.doubles.engine import greedy_ids, no_thread_left
from tests.engine.sync_calls import PROMPTS, BatchModel

__all__ = ["no_thread_left"]

NEWER = {
    "generate_batch": [
        "inputs",
        "generation_config",
        "continuous_batching_config",
        "record_timestamps",
        "progress_bar",
        "persistent_manager",
        "warmup",
    ],
    "init_continuous_batching": [
        "generation_config",
        "continuous_batching_config",
        "workload_hints",
    ],
    "continuous_batching_context_manager": [
        "generation_config",
        "block",
        "timeout",
        "continuous_batching_config",
        "persistent_manager",
        "warmup",
        "workload_hints",
    ],
}
"""Positional parameters of transformers 5.23, in order."""


def test_the_newer_order_is_that_of_the_reference() -> None:
    module = importlib.import_module("transformers.generation.continuous_batching")
    for name, order in NEWER.items():
        theirs = inspect.signature(getattr(module.ContinuousMixin, name)).parameters
        assert [one for one in theirs if one not in ("self", "kwargs")] == order
        ours = inspect.signature(getattr(ContinuousMixin, name)).parameters
        assert ours.keys() >= {*order}
    theirs = inspect.signature(module.ContinuousBatchingManager.add_request).parameters
    ours = inspect.signature(ContinuousBatchingManager.add_request).parameters
    assert [*ours][:7] == [*theirs][:7]
    for name in ("stop", "add_requests", "warmup", "destroy", "pause", "register_result_handler"):
        theirs = inspect.signature(getattr(module.ContinuousBatchingManager, name)).parameters
        ours = inspect.signature(getattr(ContinuousBatchingManager, name)).parameters
        shared = [one for one in theirs if one != "logit_processor_kwargs"]
        assert [one for one in ours if one != "kwargs"] == shared
        assert [ours[one].default for one in shared] == [theirs[one].default for one in shared]


@for_each(
    ("positions", "has_times"),
    [
        ((), False),
        ((None,), False),
        ((None, True), True),
        ((ContinuousBatchingConfig(page_size=16), True, False, False, True), True),
        ((ContinuousBatchingConfig(), False, False, False, False), False),
        ((0, 0, True, True, False), True),
        ((2, 0, False, False), False),
    ],
)
def test_generate_batch_takes_both_orders(positions: tuple[Any, ...], has_times: bool) -> None:
    model: Any = BatchModel()
    outputs = model.generate_batch(PROMPTS, GenerationConfig(max_new_tokens=5), *positions)
    for prompt, output in zip(PROMPTS, outputs.values(), strict=True):
        assert output.generated_tokens == greedy_ids(model, prompt, 5)
        assert (output.timestamps is not None) is has_times


def test_managers_take_both_orders() -> None:
    model: Any = BatchModel()
    config, hints = GenerationConfig(max_new_tokens=5), WorkloadHints(num_requests=3)
    batching = ContinuousBatchingConfig(page_size=16, max_queue_size=4)
    doors = (
        lambda *given: ContinuousBatchingManager(model, *given),
        model.init_continuous_batching,
    )
    for door in doors:
        newer = door(config, batching, hints).frontend
        assert (newer.options.page_size, newer.options.max_running) == (16, 3)
        assert newer.max_queue_size == 4
        for given in ((config,), (config, None), (config, None, None)):
            plain = door(*given).frontend
            assert plain.options.page_size is None and not plain.options.manual_eviction
        older = door(config, True, 5, 2, 3, False).frontend
        assert older.options.manual_eviction and not older.options.page_sharing
        assert older.max_queue_size == 5
        assert older.options.num_q_padding_intervals == 2
    with model.continuous_batching_context_manager(
        config, True, 60.0, batching, False, False, hints
    ) as manager:
        assert manager.frontend.options.max_running == 3 and not manager.warmed_up
        name = manager.add_request([1, 2], None, 4, False, True, greedy_ids(model, [1, 2], 3)[2])
    output = manager.get_result(name)
    assert output.generated_tokens == greedy_ids(model, [1, 2], 3)
    assert len(output.timestamps) == 3


@for_each(
    ("given", "name"),
    [
        (([[1]], None, {"page_size": 4}), "continuous_batching_config"),
        (([[1]], None, "fast"), "continuous_batching_config"),
        (([[1]], None, 1.5), "continuous_batching_config"),
        (([[1]], None, None, 3), "record_timestamps"),
        (([[1]], None, None, False, False, "yes"), "persistent_manager"),
        (([[1]], None, None, False, False, False, None), "warmup"),
        (([[1]], None, True), "num_q_padding_intervals"),
    ],
)
def test_what_is_neither_is_refused_by_name(given: tuple[Any, ...], name: str) -> None:
    model: Any = BatchModel()
    with pytest.raises(InvalidRequestError) as caught:
        model.generate_batch(*given)
    assert caught.value.parameter == name
    assert model.num_forwards == 0


def test_arguments_given_twice_or_too_many_are_errors() -> None:
    model: Any = BatchModel()
    with pytest.raises(TypeError, match="two values for 'record_timestamps'"):
        model.generate_batch([[1]], None, None, True, record_timestamps=True)
    with pytest.raises(TypeError, match="at most 8 positional"):
        model.generate_batch([[1]], None, None, False, False, False, True, True)
    with pytest.raises(TypeError, match="at most 4 positional"):
        model.init_continuous_batching(None, None, None, 3)


def test_defaults_of_the_newer_order_are_its_own() -> None:
    @takes_newer_positions(1, "config", "bar", bar=False)
    def function(inputs: Any, number: Any = 0, *, config: Any = None, bar: bool = True) -> Any:
        return number, config, bar

    called: Any = function

    assert called([]) == called([], 0) == (0, None, True)
    assert called([], 3) == (3, None, True)
    assert called([], "c") == called([], config="c") == (0, "c", False)
    assert called([], "c", True) == called([], config="c", bar=True) == (0, "c", True)
    assert called([], None) == (0, None, False)


def test_hints_choose_what_was_not_chosen() -> None:
    model: Any = BatchModel()

    def rows(hints: Any, **options: Any) -> int:
        manager = model.init_continuous_batching(workload_hints=hints, **options)
        chosen: int = manager.frontend.options.max_running
        return chosen

    assert rows(None) == rows(WorkloadHints()) == rows(WorkloadHints(9, 9)) == 64
    assert rows(WorkloadHints(num_requests=5)) == rows(WorkloadHints(10, 20, 5)) == 5
    assert rows(WorkloadHints(num_requests=500)) == 64
    assert rows(WorkloadHints(num_requests=5), max_running=7) == 7
    batching = ContinuousBatchingConfig(max_requests_per_batch=7)
    assert rows(WorkloadHints(num_requests=5), continuous_batching_config=batching) == 7
    batching = ContinuousBatchingConfig(max_batch_tokens=8)
    assert rows(WorkloadHints(num_requests=5), continuous_batching_config=batching) == 4
    for hints, name in (
        (WorkloadHints(max_prompt_length=-1), "max_prompt_length"),
        (WorkloadHints(num_requests=1.5), "num_requests"),  # type: ignore[arg-type]
        ({"num_requests": 3}, "workload_hints"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            rows(hints)
        assert caught.value.parameter == name


def test_hints_have_the_fields_of_the_reference() -> None:
    utils = importlib.import_module("transformers.generation.continuous_batching.utils")
    ours, theirs = (inspect.signature(kind) for kind in (WorkloadHints, utils.WorkloadHints))
    assert [(one.name, one.default) for one in ours.parameters.values()] == [
        (one.name, one.default) for one in theirs.parameters.values()
    ]
