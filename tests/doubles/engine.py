"""Share probes, references and recording sinks among tests of the engine."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import pytest
import torch

from asyncgen.engine.lane.assistants import Assistants
from asyncgen.engine.sampling.random_draws import gumbel_noise, mix64
from tests.doubles.models import EOS, PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from asyncgen.llm.llm import AsyncLLM
    from tests.doubles.models import TableModel

THREAD = "asyncgen-decode"


def decode_threads() -> list[threading.Thread]:
    """The decode threads that live."""
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


def join_decode_threads() -> None:
    """Wait for every decode thread to end; a test fails if one does not."""
    for thread in decode_threads():
        thread.join(PATIENCE)
    assert not decode_threads()


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """No decode thread outlives a test."""
    yield
    if decode_threads():
        gc.collect()  # one that was only dropped
        join_decode_threads()


async def in_thread(call: Callable[[], object]) -> None:
    """Run a call that waits on a worker thread, so that the loop goes on."""
    await anyio.to_thread.run_sync(call)


async def probe(llm: AsyncLLM, model: TableModel, steps: int = 8) -> int:
    """Run a request of so many steps and return how many forward passes others had meanwhile.

    Requests take turns, so anything that still ran would show.
    """
    before = model.num_forwards
    await llm.generate([1], max_new_tokens=steps)
    return model.num_forwards - before - steps


def greedy_ids(model: TableModel, prompt_ids: list[int], count: int) -> list[int]:
    """Return the tokens of greedy decoding, by direct look-up."""
    ids = list(prompt_ids)
    while len(ids) < len(prompt_ids) + count:
        ids.append(int(_logits(model, ids).argmax()))
        if ids[-1] == EOS:
            break
    return ids[len(prompt_ids) :]


def sampled_ids(
    model: TableModel, prompt_ids: list[int], count: int, *, seed: int, row: int = 0
) -> list[int]:
    """Return the tokens of plain sampling (`top_k=0`, temperature 1): argmax of logits and
    noise.
    """
    ids = list(prompt_ids)
    while len(ids) < len(prompt_ids) + count:
        logits = _logits(model, ids)
        noise = gumbel_noise(mix64(seed, row, len(ids)), torch.arange(len(logits)))
        ids.append(int((logits + noise).argmax()))
        if ids[-1] == EOS:
            break
    return ids[len(prompt_ids) :]


def raw_logits(model: TableModel, ids: list[int]) -> torch.Tensor:
    """Logits ``[V]`` after these ids."""
    return _logits(model, ids)


def _logits(model: TableModel, ids: list[int]) -> torch.Tensor:
    return model.core.logits(torch.tensor(ids[-1:]), torch.tensor([len(ids) - 1]))[0]


def no_assistants() -> Assistants:
    """Draft models that cannot be loaded."""

    def load(source: object) -> Any:
        raise AssertionError(f"{source} was to be loaded")

    return Assistants(load, load)
