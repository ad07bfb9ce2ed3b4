"""Tracers and profilers for all threads that raise: nobody waits for a thread that they end."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import asyncgen
from asyncgen.errors import EngineDiedError, OverloadedError
from asyncgen.reference.exporting import _outside
from asyncgen.runtime import thread_state
from tests.cases import for_each
from tests.doubles.engine import no_thread_left
from tests.doubles.models import TableModel, byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from asyncgen.types import Prompt

__all__ = ["no_thread_left"]

SETTERS: dict[str, Callable[[Any], object]] = {
    "settrace": threading.settrace,
    "setprofile": threading.setprofile,
}
# What raises in a destructor or a callback of a weak reference is told, not raised.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PREPARE, DECODE, LIST = "asyncgen-prepare", "asyncgen-decode", "asyncgen-list"


class Tracer:
    """Raises from its n-th event of a thread on; the interpreter turns it off by that."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number, self.count = name, number, 0

    def __call__(self, *_: object) -> Tracer:
        # `threading.current_thread` would call this for its own lines.
        thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
        if thread is not None and thread.name == self.name:
            self.count += 1
            if self.count >= self.number:
                raise ArithmeticError(f"event {self.number}")
        return self


@contextmanager
def traced(setter: str, name: str, number: int = 1) -> Iterator[Tracer]:
    """Meet all new threads of a name with a tracer that raises."""
    tracer, hook = Tracer(name, number), threading.excepthook
    threading.excepthook = lambda args: None
    try:
        SETTERS[setter](tracer)
        yield tracer
    finally:
        SETTERS[setter](None)
        threading.excepthook = hook


def engine(seconds: float = 10.0) -> asyncgen.LLM:
    """One that is not opened."""
    return asyncgen.LLM(TableModel(), tokenizer=byte_tokenizer(), prepare_seconds=seconds)


ASKS: dict[str, Callable[[asyncgen.LLM, Prompt], object]] = {
    "generate": lambda llm, prompt: llm.generate(prompt, max_new_tokens=3, seed=1).token_ids,
    "list": lambda llm, prompt: [
        each.token_ids for each in llm.generate([prompt, prompt], max_new_tokens=3, seed=1)
    ],
    "stream": lambda llm, prompt: list(llm.stream(prompt, max_new_tokens=3, seed=1)),
    "tokenize": lambda llm, prompt: list(llm.tokenize(prompt)),
}


@for_each("setter", SETTERS)
def test_an_engine_whose_thread_never_begins_is_not_waited_for(setter: str) -> None:
    llm = engine()
    with (
        traced(setter, DECODE),
        pytest.raises(EngineDiedError, match=f"before its first line.*threading.{setter}"),
        llm,
    ):
        raise AssertionError
    llm.close()
    with pytest.raises(EngineDiedError, match="before its first line"):
        llm.start()
    with engine() as other:
        assert other.is_healthy


@pytest.mark.anyio
@for_each("setter", SETTERS)
async def test_a_task_does_not_wait_for_it_either(setter: str) -> None:
    llm = asyncgen.AsyncLLM(TableModel(), tokenizer=byte_tokenizer())
    with traced(setter, DECODE), pytest.raises(EngineDiedError, match="before its first line"):
        await llm.start()
    await llm.aclose()


@for_each("setter", SETTERS)
@for_each("ask", ASKS)
def test_a_request_without_a_thread_is_refused_and_the_engine_goes_on(
    setter: str, ask: str
) -> None:
    with engine() as llm:
        with traced(setter, PREPARE):
            for _ in range(2):
                with pytest.raises(OverloadedError, match=f"threading.{setter}"):
                    ASKS[ask](llm, "ab")
        assert ASKS[ask](llm, "ab")
        assert not llm.is_degraded


@pytest.mark.anyio
async def test_a_task_without_a_thread_is_refused_and_keeps_no_place() -> None:
    async with asyncgen.AsyncLLM(TableModel(), tokenizer=byte_tokenizer()) as llm:
        for _ in range(20):  # more than there are places
            with traced("settrace", PREPARE), pytest.raises(OverloadedError, match="settrace"):
                await llm.generate("ab", max_new_tokens=1)
        assert await llm.generate("ab", max_new_tokens=1)


def test_a_list_that_no_thread_starts_is_refused() -> None:
    with engine() as llm:
        for number in (1, 5, 9, 13):
            with (
                traced("setprofile", LIST, number),
                pytest.raises((OverloadedError, ArithmeticError)),
            ):
                ASKS["list"](llm, "ab")
        assert ASKS["list"](llm, "ab")


@pytest.mark.gate
@for_each("setter", SETTERS)
def test_a_tracer_that_raises_at_any_event_of_a_preparing_thread_fails_requests_alone(
    setter: str,
) -> None:
    with engine() as llm:
        expected = ASKS["generate"](llm, "ab")
    for number in range(2, 120, 3):
        with engine() as llm:
            with traced(setter, PREPARE, number):
                for _ in range(3):
                    with suppress(OverloadedError, ArithmeticError):
                        assert ASKS["generate"](llm, "ab") == expected
            for _ in range(100):  # a thread that met the tracer ends a request when it ends itself
                with suppress(OverloadedError):
                    assert ASKS["generate"](llm, "ab") == expected
                    break
            else:
                raise AssertionError("no request was answered")
            crew = llm._preparing._for_threads
            assert not crew._tasks and not crew.abandoned
            assert crew._counted == crew._free and all(each.is_alive() for each in crew._free)


@pytest.mark.gate
@for_each("setter", SETTERS)
def test_a_tracer_that_raises_at_any_event_of_the_decode_thread_ends_all_waits(setter: str) -> None:
    """The number of events until it serves is counted; half of the numbers lie behind that."""
    with traced(setter, DECODE, 10**9) as counted, engine() as llm:
        expected = ASKS["generate"](llm, "ab")
    for number in range(1, counted.count, counted.count // 40 + 1):
        llm = engine()
        with traced(setter, DECODE, number), suppress(EngineDiedError, ArithmeticError):
            llm.start()
            for _ in range(3):
                with suppress(ArithmeticError, ValueError):  # it ended one request alone
                    assert ASKS["generate"](llm, "ab") == expected
        if llm.is_healthy:
            assert ASKS["generate"](llm, "ab") == expected
        llm.close()


def test_what_needs_a_thread_of_its_own_is_met_by_no_tracer() -> None:
    with traced("settrace", "Thread-", 1):
        assert thread_state._read_fresh() == thread_state._fresh
        assert _outside(partial(int, "7")) == 7
