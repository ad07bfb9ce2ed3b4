"""Ctrl-C at any moment leaves an engine that works: no place, lock or thread is lost."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from asyncgen.llm.llm import LLM, AsyncLLM
from asyncgen.llm.stream import SyncTextStream, TextStream
from streamers import Reader, TextIteratorStreamer, ThreadReader
from tests.cases import for_each
from tests.doubles.interrupts import Interrupter
from tests.doubles.models import PATIENCE, TableModel, byte_tokenizer
from tests.llm.test_llm import run_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROMPT = "abc"
GREEDY: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False}


def generate(llm: LLM) -> object:
    return llm.generate(PROMPT, **GREEDY).text


def chat(llm: LLM) -> object:
    return llm.generate([{"role": "user", "content": PROMPT}], **GREEDY).text


def read(llm: LLM) -> object:
    return "".join(llm.stream(PROMPT, **GREEDY))


def read_batches(llm: LLM) -> object:
    return "".join(llm.stream(PROMPT, **GREEDY).batches(interval=0))


def leave(llm: LLM) -> object:
    for _ in llm.stream(PROMPT, max_new_tokens=200, do_sample=False):
        break
    return None


def generate_list(llm: LLM) -> object:
    return [each.text for each in llm.generate([PROMPT, "b", "cd"], **GREEDY)]


def embed_list(llm: LLM) -> object:
    return [len(each.vector) for each in llm.embed([PROMPT, "b", "cd"])]


def count(llm: LLM) -> object:
    return llm.count_tokens(PROMPT)


def search(llm: LLM) -> object:
    return llm.generate(PROMPT, num_beams=2, **GREEDY).text


def hand_over(llm: LLM) -> object:
    streamer = TextIteratorStreamer(llm.tokenizer, skip_prompt=True)
    llm.generate(PROMPT, streamer=streamer, **GREEDY)
    return "".join(streamer)


def be_refused(llm: LLM) -> object:
    with contextlib.suppress(ValueError):
        llm.generate(PROMPT, temperature=-1.0)
    return None


CALLS: tuple[Callable[[LLM], object], ...] = (
    *(generate, chat, read, read_batches, leave, generate_list, embed_list, count, search),
    *(hand_over, be_refused),
)


class Told:
    """What the interpreter prints of finalizers and threads; Ctrl-C in a finalizer is its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors: list[str] = []
        monkeypatch.setattr(sys, "unraisablehook", self._take)
        monkeypatch.setattr(threading, "excepthook", self._take)

    def _take(self, told: Any) -> None:
        if told.exc_type not in (KeyboardInterrupt, MemoryError):
            self.errors.append(f"{told.exc_type.__name__}: {told.exc_value}")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for each in messages %}{{ each.content }}{% endfor %}"
    with LLM("demo") as made:
        yield made


def settle(llm: LLM | AsyncLLM) -> None:
    """Wait until nothing waits and nothing runs."""
    admission, deadline = llm._admission, time.monotonic() + PATIENCE
    while admission.num_waiting or admission.num_running or llm.metrics().requests_running:
        assert time.monotonic() < deadline, (admission.num_waiting, admission.num_running)
        time.sleep(0.0005)


def interrupt(
    llm: LLM, call: Callable[[LLM], object], told: Told, *, step: int, error: type[BaseException]
) -> int:
    """Interrupt a call at each of so many places; return how many were."""
    for _ in range(2):  # imports
        expected = call(llm)
    counter = Interrupter(0)
    with counter.armed():
        call(llm)
    assert counter.num_places > 20
    num_interrupted = 0
    for place in range(1, counter.num_places, step):
        interrupter = Interrupter(place, error)
        try:
            with interrupter.armed():
                call(llm)
        except error:
            num_interrupted += 1
        settle(llm)
        assert not told.errors, interrupter.where
    assert call(llm) == expected
    return num_interrupted


@for_each("call", CALLS)
def test_an_interrupted_call_leaves_nothing(
    llm: LLM, call: Callable[[LLM], object], told: Told
) -> None:
    assert interrupt(llm, call, told, step=61, error=KeyboardInterrupt)


@pytest.mark.gate
@for_each("error", [KeyboardInterrupt, MemoryError])
@for_each("call", CALLS)
def test_a_call_that_is_interrupted_anywhere_leaves_nothing(
    llm: LLM, call: Callable[[LLM], object], error: type[BaseException], told: Told
) -> None:
    assert interrupt(llm, call, told, step=29, error=error)


@pytest.mark.gate
def test_an_engine_that_is_opened_and_closed_under_interrupts(told: Told) -> None:
    model, tokenizer = TableModel(), byte_tokenizer()

    def live() -> str:
        with LLM(model, tokenizer=tokenizer) as llm:
            return llm.generate(PROMPT, **GREEDY).text

    expected, counter = live(), Interrupter(0)
    with counter.armed():
        live()
    before = set(threading.enumerate())
    for place in range(1, counter.num_places, 37):
        interrupter = Interrupter(place)
        with contextlib.suppress(KeyboardInterrupt), interrupter.armed():
            live()
        assert not told.errors, interrupter.where
    assert live() == expected
    deadline = time.monotonic() + PATIENCE
    while set(threading.enumerate()) - before:
        gc.collect()
        assert time.monotonic() < deadline, threading.enumerate()
        time.sleep(0.001)


@pytest.mark.gate
@for_each("backend", ["asyncio", "trio"])
def test_a_loop_that_is_interrupted_leaves_nothing(
    backend: str, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    llm = AsyncLLM(TableModel(), tokenizer=byte_tokenizer())

    async def main(interrupter: Interrupter) -> str:
        with interrupter.armed():
            async for _ in llm.stream(PROMPT, **GREEDY):
                pass
            return (await llm.generate(PROMPT, **GREEDY)).text

    def run(interrupter: Interrupter) -> str:
        return anyio.run(main, interrupter, backend=backend)

    try:
        counter = Interrupter(0, in_loop=True)
        run(counter), run(counter)
        expected, num_places = run(counter), counter.num_places // 3
        for place in range(1, num_places, 53):
            with contextlib.suppress(KeyboardInterrupt):
                run(Interrupter(place, in_loop=True))
            settle(llm)
            # Python drops a coroutine that is interrupted before its first step: none of it ran.
            assert not [each for each in told.errors if "was never awaited" not in each], place
        assert run(counter) == expected
        anyio.run(llm.aclose, backend=backend)
    finally:
        signal.signal(signal.SIGINT, before)


@for_each("kind", [SyncTextStream, TextStream, Reader, ThreadReader])
def test_an_object_that_was_not_made_is_dropped_in_silence(kind: type[Any], told: Told) -> None:
    half = object.__new__(kind)
    del half
    assert not told.errors


SOAK = """
    import signal, sys, threading, time, random
    from asyncgen.llm.llm import LLM

    signal.signal(signal.SIGINT, signal.default_int_handler)
    told = []
    sys.unraisablehook = lambda each: told.append(each.exc_type)
    threading.excepthook = lambda each: told.append(each.exc_type)
    rng, wanted = random.Random(7), COUNT
    greedy = dict(max_new_tokens=2, do_sample=False)
    with LLM("demo", max_queue_size=4) as llm:
        expected = llm.generate("Once", **greedy).text
        num_interrupts = num_calls = 0
        while num_interrupts < wanted:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, signal.default_int_handler)
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 8e-3))
                while True:
                    num_calls += 1
                    kind = num_calls % 4
                    if kind == 0:
                        llm.generate("Once", **greedy)
                    elif kind == 1:
                        "".join(llm.stream("Once", **greedy))
                    elif kind == 2:
                        llm.count_tokens("Once")
                    else:
                        for _ in llm.stream("Once", max_new_tokens=50):
                            break
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 8e-3))
            except KeyboardInterrupt:
                num_interrupts += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        deadline = time.monotonic() + 60
        admission = llm._admission
        while admission.num_waiting or admission.num_running or llm.metrics().requests_running:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert llm.generate("Once", **greedy).text == expected
        assert not llm.is_degraded and llm._preparing.num_abandoned == 0
    assert set(told) <= {KeyboardInterrupt}, set(told)
    print(num_interrupts, num_calls, len(told))
"""


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_twenty_thousand_interrupts() -> None:
    done = run_python(SOAK.replace("COUNT", "20_000"), timeout=800)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "20000"
