"""The kernels' own threads: their number, and that nothing hangs or changes with them."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from asyncgen import native
from asyncgen.models.kernels.native_linear import NativeKernel
from asyncgen.models.kernels.threads import claim_thread, claimed_thread
from tests.models.build import random_config, random_model

pytestmark = pytest.mark.skipif(native.kernels is None, reason="our own kernels do not run here")

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def product(rows: int = 3) -> tuple[NativeKernel, torch.Tensor]:
    """A product of many pieces."""
    torch.manual_seed(1)
    return NativeKernel(torch.randn(1024, 96), None), torch.randn(rows, 96)


def members() -> int:
    """Count the threads of this process that are members of a team, beside the callers."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            names.append(task.joinpath("comm").read_text())
    return names.count("asyncgen-team\n")


def on_a_thread(work: object) -> list[object]:
    """Return the result of a function, or raise its error, on a thread of its own."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(work())  # type: ignore[operator]
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    return found


@on_linux
def test_a_team_ends_with_its_thread() -> None:
    assert native.kernels is not None
    kernel, x = product()
    before = members()

    def compute() -> int:
        native.kernels.begin_team(4)  # type: ignore[union-attr]
        kernel.product(x)
        return members() - before

    assert on_a_thread(compute) == [3]
    end = time.monotonic() + 60
    while members() != before:  # they end behind what Python sees of the thread
        assert time.monotonic() < end
        time.sleep(0.01)


def test_any_number_of_threads_computes_the_same() -> None:
    kernel, x = product(rows=700)
    expected = kernel.product(x)

    def compute(threads: int) -> bool:
        native.kernels.begin_team(threads)  # type: ignore[union-attr]
        return all(torch.equal(kernel.product(x), expected) for _ in range(20))

    for threads in (1, 2, 3, 8, 33):
        assert on_a_thread(lambda threads=threads: compute(threads)) == [True]


def test_more_threads_than_cores_do_not_hang() -> None:
    kernel, x = product(rows=1)
    expected = kernel.product(x)
    wrong: list[int] = []

    def compute() -> None:
        native.kernels.begin_team(6)  # type: ignore[union-attr]
        out = torch.empty_like(expected)
        found = (kernel.into(x, out.fill_(torch.nan)) for _ in range(2000))
        wrong.extend(1 for each in found if not torch.equal(each, expected))

    threads = [threading.Thread(target=compute) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not wrong


@on_linux
def test_fork_has_a_separate_thread_team() -> None:
    kernel, x = product()
    expected = kernel.product(x)  # this thread has a team now
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(torch.equal(kernel.product(x), expected)))
    child.start()
    assert receiver.poll(60)
    assert receiver.recv() is True
    child.join(60)
    assert child.exitcode == 0


def test_torch_keeps_to_one_thread_beside_a_team() -> None:
    core = random_model(random_config("llama"), seed=3, dtype=torch.float32)
    core.prepare()
    before = torch.get_num_threads()
    with claimed_thread(core):
        assert torch.get_num_threads() == 1
        with claimed_thread(core):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before

    def claim() -> tuple[int, int]:
        torch.set_num_threads(before)
        claim_thread(core)
        claim_thread(core)
        return torch.get_num_threads(), on_a_thread(torch.get_num_threads)[0]  # type: ignore[return-value]

    assert on_a_thread(claim) == [(1, before)]
    assert torch.get_num_threads() == before


def test_threads_that_compute_with_torch_are_unchanged() -> None:
    before = torch.get_num_threads()
    for other in (object(), torch.nn.Linear(2, 2)):
        with claimed_thread(other):
            assert torch.get_num_threads() == before


def test_wrong_sizes_are_refused() -> None:
    assert native.kernels is not None
    kernels = native.kernels

    def has_team_behind_refusals() -> bool:
        for threads in (0, -1, 513):
            with pytest.raises(ValueError, match=f"1 to 512 threads, not {threads}"):
                kernels.begin_team(threads)
        return kernels.has_team()

    assert on_a_thread(has_team_behind_refusals) == [False]
