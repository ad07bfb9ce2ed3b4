"""The schedulers have the methods that those of transformers have, and use names alike."""

from __future__ import annotations

import importlib
import inspect
from types import SimpleNamespace
from typing import Any

import pytest

import asyncgen
from asyncgen.engine.kv_cache.block_pool import BlockPool
from asyncgen.engine.scheduling.state import RequestState

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("name", ["Scheduler", "FIFOScheduler", "PrefillFirstScheduler"])
def test_methods_and_their_parameters(name: str) -> None:
    module = importlib.import_module("transformers.generation.continuous_batching.scheduler")
    ours: Any = getattr(asyncgen, name)
    theirs = getattr(module, name)
    for method_name, method in inspect.getmembers(theirs, inspect.isfunction):
        if (
            method_name.startswith("_") or method_name == "reset"
        ):  # `clear` here, and it tells who was there
            continue
        wanted = inspect.signature(method).parameters
        found = inspect.signature(getattr(ours, method_name)).parameters
        assert list(found)[: len(wanted)] == list(wanted), method_name
    assert next(iter(inspect.signature(ours).parameters)) == "cache"


@pytest.mark.parametrize("name", ["FIFOScheduler", "PrefillFirstScheduler"])
def test_requests_wait_and_are_cancelled_alike(name: str) -> None:
    folder = "transformers.generation.continuous_batching"
    kind = getattr(importlib.import_module(f"{folder}.scheduler"), name)
    state = importlib.import_module(f"{folder}.requests").RequestState
    pool = SimpleNamespace(num_blocks=8, block_size=4, free_blocks=lambda request_id: None)
    theirs: Any = kind(pool, 0.0, 8)
    ours: Any = getattr(asyncgen, name)(BlockPool(8, 4))

    def told(scheduler: Any) -> tuple[list[str], bool]:
        return list(scheduler.waiting_requests), scheduler.has_pending_requests()

    assert told(ours) == told(theirs) == ([], False)
    for request_id in "ab":
        ours.add_waiting_request(RequestState(request_id, [1, 2, 3]))
        theirs.add_waiting_request(state(request_id, [1, 2, 3]))
        assert told(ours) == told(theirs)
    for scheduler in (ours, theirs):
        scheduler.set_request_cancellation("a")
        assert scheduler.request_is_cancelled("a")
        assert not scheduler.request_is_cancelled("b")
        scheduler.clear_cancelled_requests()
    assert told(ours) == told(theirs) == (["b"], True)
