"""What code of a user leaves behind on a shared thread is put back; elsewhere it is left alone."""

from __future__ import annotations

import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from asyncgen.runtime.thread_state import read_state, restore_thread
from asyncgen.runtime.user_code import UserGenerator, run_user_code, share_thread
from tests.cases import for_each
from tests.doubles.models import PATIENCE
from tests.left_behind import LEFT, RAISED, enter, number, seen

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.left_behind import Leave

LOST = ("tracer", "profiler", "recursion limit", "rounding", "vmap")
ONLY_ONCE = [LEFT[name] for name in LOST]
"""What a generator has lost when it goes on."""

TOLD = {name: leave for name, leave in LEFT.items() if name != "nothing"}


def on_a_thread(function: Callable[[], object], *, is_shared: bool = True) -> None:
    """Call a function on a thread of its own; raise what it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            if is_shared:
                share_thread()
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


@for_each("leave", TOLD.values())
def test_call(leave: Leave) -> None:
    def leave_and_tell(told: list[Any]) -> None:
        leave()
        told.append(seen())

    def run() -> None:
        before = seen()
        for _ in range(2):
            told: list[Any] = []
            run_user_code(leave_and_tell, told)
            assert told[0] != before, "the row changes nothing"
            assert seen() == before

    on_a_thread(run)


@for_each("leave", TOLD.values())
def test_generator_finds_its_own_state(leave: Leave) -> None:
    def method() -> Generator[Any, None, None]:
        leave()
        for _ in range(3):
            yield seen()

    def run() -> None:
        before = seen()
        one, other = UserGenerator(method()), UserGenerator(method())
        found = {one: next(one), other: next(other)}
        assert before not in found.values()
        for each in (one, other, one, other):
            assert seen() == before
            own = next(each)
            assert leave in ONLY_ONCE or own == found[each]
        one.close()
        other.close()
        assert seen() == before

    on_a_thread(run)


@for_each("fail", RAISED.values())
def test_call_that_raises(fail: Leave) -> None:
    def leave() -> None:
        LEFT["inference mode"]()
        LEFT["function mode"]()
        fail()

    def run() -> None:
        before = seen()
        with pytest.raises(BaseException):  # noqa: B017
            run_user_code(leave)
        assert seen() == before
        run_user_code(LEFT["autocast"])
        assert seen() == before

    on_a_thread(run)


def test_modes_of_torch_itself() -> None:
    def run() -> None:
        before = seen()
        run_user_code(enter, FakeTensorMode)
        run_user_code(enter, lambda: torch.device("meta"))
        run_user_code(torch.set_default_device, "meta")
        run_user_code(LEFT["function mode"])
        assert seen() == before
        assert torch.ones(2).sum().item() == 2
        run_user_code(torch.set_default_device, None)
        assert seen() == before

    on_a_thread(run)


def test_calls_within_a_call_are_part_of_it() -> None:
    def run() -> None:
        def outer() -> None:
            run_user_code(number.set, 3)
            run_user_code(LEFT["gradients"])
            assert number.get() == 3
            assert torch.is_grad_enabled()

        with torch.no_grad():
            run_user_code(outer)
            assert not torch.is_grad_enabled()
        assert number.get() == 0

    on_a_thread(run)


def test_settings_of_the_process_are_right_behind_calls_that_overlap() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        torch.set_default_dtype(torch.float64)
        begun.set()
        assert may_end.wait(PATIENCE)

    def second() -> None:
        assert torch.get_default_dtype() == torch.float64
        may_end.set()
        assert ended.wait(PATIENCE)
        assert torch.get_default_dtype() == torch.float32

    def run_first() -> None:
        try:
            run_user_code(first)
        finally:
            ended.set()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(on_a_thread, run_first)
        assert begun.wait(PATIENCE)
        on_a_thread(partial(run_user_code, second))
        running.result()
    assert torch.get_default_dtype() == torch.float32


def test_limit_of_recursion_is_right_behind_calls_that_overlap() -> None:
    limit, begun, ended = sys.getrecursionlimit(), threading.Event(), threading.Event()

    def first() -> None:
        LEFT["recursion limit"]()
        begun.set()
        assert may_end.wait(PATIENCE)

    def second() -> None:
        may_end.set()
        assert ended.wait(PATIENCE)

    def run_first() -> None:
        try:
            run_user_code(first)
        finally:
            ended.set()

    may_end = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(on_a_thread, run_first)
        assert begun.wait(PATIENCE)
        on_a_thread(partial(run_user_code, second))
        running.result()
    assert sys.getrecursionlimit() == limit


def test_thread_of_a_user_keeps_what_its_code_left() -> None:
    def run() -> None:
        run_user_code(partial(torch.set_grad_enabled, False))
        assert not torch.is_grad_enabled()
        run_user_code(number.set, 3)
        assert number.get() == 3

    on_a_thread(run, is_shared=False)


def test_thread_is_made_fresh_again() -> None:
    def run() -> None:
        before = seen()
        for name in ("inference mode", "function mode", "autocast", "dispatch mode", "vmap"):
            LEFT[name]()
        restore_thread()
        assert seen() == before

    on_a_thread(run)


def test_inference_modes_that_alternate_keep_few_objects() -> None:
    def method() -> Generator[None, None, None]:
        with torch.inference_mode():
            while True:
                assert torch.is_inference_mode_enabled()
                yield

    def run() -> None:
        generator, before = UserGenerator(method()), read_state()
        for _ in range(1500):
            next(generator)
            assert not torch.is_inference_mode_enabled()
        generator.close()
        assert read_state() == before

    on_a_thread(run)


def test_a_destructor_that_enters_a_mode_ends_with_its_collection() -> None:
    """The collector runs it wherever something is made: in the midst of a step of all."""

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            FakeTensorMode().__enter__()

    def run() -> None:
        gc.collect()
        run_user_code(Cycle)
        with torch.no_grad():
            before = read_state()
            gc.collect()
            assert read_state() == before
            assert not torch.is_grad_enabled()

    on_a_thread(run)
