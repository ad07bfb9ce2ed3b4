"""The number of torch's threads is an engine's own only while it is open."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import pytest
import torch

from asyncgen import AsyncLLM
from asyncgen.errors import AsyncgenError
from asyncgen.reference.continuous_batching.manager import ContinuousBatchingManager
from asyncgen.runtime.cpu_threads import computing_threads, lower_threads
from tests.doubles.models import PATIENCE, TableModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

T = TypeVar("T")


def on_a_new_thread(function: Callable[[], T]) -> T:
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def here_and_elsewhere() -> tuple[int, int]:
    """Return the thread counts of this thread and of a new one."""
    return torch.get_num_threads(), on_a_new_thread(torch.get_num_threads)


@pytest.fixture(autouse=True)
def four() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.anyio
async def test_closed_engine_restores_the_thread_count() -> None:
    async with AsyncLLM("demo", num_threads=1) as llm:
        await llm.generate("Once", max_new_tokens=2)
        assert here_and_elsewhere() == (4, 1)
    assert here_and_elsewhere() == (4, 4)


@pytest.mark.anyio
async def test_also_after_a_load_that_failed(tmp_path: Path) -> None:
    llm = AsyncLLM(tmp_path, num_threads=1)
    with pytest.raises(AsyncgenError):
        await llm.start()
    await llm.aclose()
    assert here_and_elsewhere() == (4, 4)


@pytest.mark.anyio
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_of_two_engines_the_last_sets_it_back(order: tuple[int, int]) -> None:
    llms = [AsyncLLM("demo", num_threads=count) for count in (1, 2)]
    for llm in llms:
        await llm.start()
    first, last = (llms[place] for place in order)
    await first.aclose()
    assert here_and_elsewhere() == (4, {0: 2, 1: 1}[order[0]])
    await last.aclose()
    assert here_and_elsewhere() == (4, 4)


def test_a_manager_sets_back_what_its_steps_lowered() -> None:
    """Lower the threads, as slow steps do."""
    manager = ContinuousBatchingManager(TableModel(hook=lambda *_: lower_threads(1)))
    manager.start()
    manager.add_request([1, 2, 3], max_new_tokens=2)
    assert manager.get_result(timeout=PATIENCE) is not None
    assert here_and_elsewhere() == (4, 1)
    manager.stop()
    assert here_and_elsewhere() == (4, 4)


def test_thread_count_is_unchanged_by_default() -> None:
    def count() -> int:
        with computing_threads(None):
            torch.set_num_threads(3)
        return torch.get_num_threads()

    assert on_a_new_thread(count) == 3  # where nothing has been lowered before


@pytest.mark.parametrize("asked", [None, 4])
def test_fewer_for_a_while_are_set_back_at_the_end(asked: int | None) -> None:
    def check() -> int:
        with computing_threads(asked):
            most = torch.get_num_threads()
            for count in (2, 1, 2):
                lower_threads(count)
                assert torch.get_num_threads() == count
            lower_threads(most)
            assert torch.get_num_threads() == most
            lower_threads(1)
        return torch.get_num_threads()

    assert on_a_new_thread(check) == 4  # where nothing has been lowered before
