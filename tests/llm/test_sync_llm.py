"""`LLM`: what `AsyncLLM` does, for threads that block."""

from __future__ import annotations

import copy
import gc
import inspect
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from asyncgen.errors import (
    ContextLengthError,
    EngineClosedError,
    EngineDiedError,
    InvalidRequestError,
    OverloadedError,
)
from asyncgen.llm import together
from asyncgen.llm.llm import LLM, AsyncLLM
from asyncgen.reference import model_loader
from asyncgen.runtime.progress import Progress
from asyncgen.text import tokenizer_files, tokenizer_state
from tests.cases import for_each
from tests.doubles.engine import (
    decode_threads,
    greedy_ids,
    join_decode_threads,
    no_thread_left,
    sampled_ids,
)
from tests.doubles.models import PATIENCE, Gate, TableModel, byte_tokenizer
from tests.llm.test_llm import run_python
from tests.llm.test_preparing import Hang

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from asyncgen.llm.stream import SyncTextStream

__all__ = ["no_thread_left"]

PROMPT = "abc"
PROMPT_IDS = list(PROMPT.encode())
LONG = 1_000_000
"""A context in which nothing ends by itself."""


def make(model: Any, **options: Any) -> LLM:
    """An `LLM` over a model object."""
    return LLM(model, tokenizer=byte_tokenizer(), **options)


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    """Threads beside the one of the test."""
    with ThreadPoolExecutor(12) as pool:
        yield pool


def test_sync_and_async_llm_have_the_same_methods() -> None:
    def doors(face: type) -> set[str]:
        return {name for name in dir(face) if not name.startswith("_")}

    assert doors(AsyncLLM) - doors(LLM) == {"aclose", "measure"}
    assert doors(LLM) - doors(AsyncLLM) == {"close"}
    assert inspect.signature(LLM) == inspect.signature(AsyncLLM)


def test_text_events_and_result() -> None:
    model = TableModel()
    expected = greedy_ids(model, PROMPT_IDS, 20)
    with make(model) as llm:
        stream = llm.stream(PROMPT, max_new_tokens=20)
        assert repr(stream) == "<SyncTextStream not started: prompt of 3 characters, 0 tokens read>"
        text = "".join(stream)
        assert list(stream) == []
        assert text == stream.result.text == bytes(expected).decode(errors="replace")
        events = list(llm.stream(PROMPT, max_new_tokens=20).events())
        completion = llm.generate(PROMPT, max_new_tokens=20)
    ids = [each for event in events for each in event.token_ids]
    assert ids == expected == list(completion.token_ids)
    assert events[-1].usage == completion.usage


def test_entering_starts_and_leaving_cancels() -> None:
    gate = Gate()
    with make(TableModel(hook=gate, context_length=LONG)) as llm:
        with llm.stream(PROMPT) as stream:
            gate.wait_arrived(1)
            with pytest.raises(RuntimeError, match="no result yet"):
                _ = stream.result
        gate.open()
        assert stream.result.finish_reason == "cancelled"


def test_several_samples_and_batches() -> None:
    with make(TableModel(script="abcdefgh" * 5, prompt_length=1)) as llm:
        events = list(llm.stream([1], n=3, do_sample=True, max_new_tokens=4).events())
        assert {event.index for event in events} == {0, 1, 2}
        with pytest.raises(InvalidRequestError, match=r"read through `events\(\)`"):
            next(llm.stream([1], n=2, do_sample=True, max_new_tokens=4))
        stream = llm.stream([1])
        pieces = list(stream.batches(interval=PATIENCE))
        assert "".join(pieces) == "abcdefgh" * 5 == stream.result.text
        assert len(pieces) <= 2
        with pytest.raises(InvalidRequestError, match="seconds between two pieces"):
            llm.stream([1]).batches(interval=-1)


@for_each(
    ("prompt", "params", "error"),
    [
        (PROMPT, {"temprature": 1.0}, InvalidRequestError),
        (PROMPT, {"temperature": -1.0}, InvalidRequestError),
        (PROMPT, {"max_new_tokens": 10**9}, ContextLengthError),
        ("", {}, InvalidRequestError),
        ([], {}, InvalidRequestError),
        (["abc", ""], {}, InvalidRequestError),
        ([[1], [-1]], {}, InvalidRequestError),
        ([{"role": "user"}], {"chat_template_kwargs": {"messages": 1}}, InvalidRequestError),
    ],
)
def test_errors_are_those_of_the_other_face(prompt: Any, params: Any, error: type) -> None:
    async def ask() -> str:
        async with AsyncLLM(TableModel(), tokenizer=byte_tokenizer()) as llm:
            with pytest.raises(error) as caught:
                await llm.generate(prompt, **params)
        return str(caught.value)

    with make(TableModel()) as llm:
        with pytest.raises(error) as caught:
            llm.generate(prompt, **params)
        if not (isinstance(prompt, list) and isinstance(prompt[:1], str | list)):
            assert str(caught.value) == anyio.run(ask)
        assert llm.generate(PROMPT, max_new_tokens=2).token_ids  # nobody else is harmed


def test_error_of_a_request_reaches_its_reader() -> None:
    def fail(*_: object) -> None:
        raise StopIteration("not the end")

    with make(TableModel()) as llm:
        with pytest.raises(RuntimeError, match="not the end"):
            list(llm.stream(PROMPT, logits_processor=[fail]))
        assert len(list(llm.stream(PROMPT, max_new_tokens=2).events())) >= 2


# Leaving.


def leave_by_break(stream: SyncTextStream) -> None:
    for _ in stream:
        break


def leave_by_dropping_a_reader(stream: SyncTextStream) -> None:
    events = stream.events()
    next(events)
    del events
    gc.collect()


def leave_by_an_error(stream: SyncTextStream) -> None:
    with suppress(ZeroDivisionError):
        for _ in stream:
            raise ZeroDivisionError


def leave_by_closing(stream: SyncTextStream) -> None:
    next(stream)
    stream.close()


def leave_by_closing_elsewhere(stream: SyncTextStream) -> None:
    closer = threading.Timer(0.05, stream.close)
    closer.start()
    assert list(stream) == [] or stream.result.text  # a reader that waits is woken
    closer.join(PATIENCE)


def leave_by_cancelling_elsewhere(stream: SyncTextStream) -> None:
    next(stream)
    canceller = threading.Timer(0.05, stream.cancel)
    canceller.start()
    list(stream)
    canceller.join(PATIENCE)


@for_each(
    "leave",
    [
        leave_by_break,
        leave_by_dropping_a_reader,
        leave_by_an_error,
        leave_by_closing,
        leave_by_closing_elsewhere,
        leave_by_cancelling_elsewhere,
    ],
)
def test_leaving_cancels(leave: Callable[[SyncTextStream], None]) -> None:
    model = TableModel(context_length=LONG)
    with make(model) as llm:
        stream = llm.stream(PROMPT)
        leave(stream)
        assert stream.result.finish_reason == "cancelled"
        before = model.num_forwards
        llm.generate([1], max_new_tokens=8)
        # One pass may have been under way when the stream was left.
        assert model.num_forwards - before <= 8 + 1


def test_closing_in_the_midst_of_a_read_keeps_the_text_in_order(
    beside: ThreadPoolExecutor,
) -> None:
    script = "abcdefghijklmnopqrstuvwxyz" * 40
    model = TableModel(script=script, prompt_length=1, context_length=len(script) + 10)
    with make(model) as llm:
        for read_before in range(0, 120, 3):
            stream = llm.stream([1])
            events = stream.events()
            for _ in range(read_before % 7 + 1):
                next(events)
            closing = beside.submit(stream.close)
            with suppress(StopIteration):
                while True:
                    next(events)
            closing.result(PATIENCE)
            assert script.startswith(stream.result.text), stream.result.text


def test_a_dropped_stream_cancels_in_any_thread(beside: ThreadPoolExecutor) -> None:
    model = TableModel(context_length=LONG)
    with make(model) as llm:
        held = [llm.stream(PROMPT)]
        next(held[0])
        beside.submit(held.clear).result(PATIENCE)
        gc.collect()
        before = model.num_forwards
        llm.generate([1], max_new_tokens=8)
        assert model.num_forwards - before <= 8 + 1


@pytest.mark.gate
def test_ctrl_c_cancels_what_is_waited_for() -> None:
    code = """
        import signal, time
        from asyncgen.llm.llm import LLM
        from tests.doubles.models import Gate

        # A shell that starts pytest in the background has it ignored, and so its children.
        signal.signal(signal.SIGINT, signal.default_int_handler)

        def interrupt_when(arrived):
            gate.wait_arrived(arrived)
            time.sleep(0.1)  # the main thread is about to wait
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        for wait in (
            lambda: list(llm.stream("abc")),
            lambda: llm.generate("abc"),
            lambda: llm.generate(["abc", "abd", "abe"]),
        ):
            gate = Gate()
            model = TableModel(hook=gate, context_length=1_000_000)
            with LLM(model, tokenizer=byte_tokenizer()) as llm:
                interrupter = threading.Thread(target=interrupt_when, args=(1,))
                interrupter.start()
                try:
                    wait()
                except KeyboardInterrupt:
                    print("interrupted")
                gate.open()
                llm.generate([1], max_new_tokens=3)  # which nothing runs beside
                while llm.metrics().requests_running:  # counted behind the last event
                    time.sleep(0.01)
            interrupter.join()
    """
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["interrupted"] * 3


# Company.


def test_threads_share_the_batch(beside: ThreadPoolExecutor) -> None:
    model = TableModel(eos_bias=1.0)

    def ask(seed: int) -> tuple[int, ...]:
        params: Any = {"seed": seed, "do_sample": True, "top_k": 0, "max_new_tokens": 30}
        return llm.generate([seed, 1, 2], **params).token_ids

    with make(model) as llm:
        found = list(beside.map(ask, range(12)))
    assert found == [tuple(sampled_ids(model, [seed, 1, 2], 30, seed=seed)) for seed in range(12)]


def test_a_stream_is_read_by_one_thread(beside: ThreadPoolExecutor) -> None:
    gate = Gate()
    with make(TableModel(hook=gate)) as llm:
        stream = llm.stream(PROMPT, max_new_tokens=3)
        text = beside.submit(lambda: "".join(stream))
        gate.wait_arrived(1)
        with pytest.raises(anyio.BusyResourceError):
            next(stream)
        gate.open()
        text.result(PATIENCE)
        assert stream.result.finish_reason == "length"


@pytest.mark.anyio
async def test_a_loop_in_the_same_thread_is_fine() -> None:
    model = TableModel()
    expected = tuple(greedy_ids(model, PROMPT_IDS, 10))
    with make(model) as llm:
        async with AsyncLLM(model, tokenizer=byte_tokenizer()) as other:
            assert llm.generate(PROMPT, max_new_tokens=10).token_ids == expected
            stream = llm.stream(PROMPT, max_new_tokens=10)
            assert "".join(stream) == stream.result.text
            assert (await other.generate(PROMPT, max_new_tokens=10)).token_ids == expected
        with pytest.raises(TypeError, match=r"plain `for`.*AsyncLLM"):
            async for _ in llm.stream(PROMPT):  # type: ignore[attr-defined]
                pass


def test_the_other_faces_stream_names_this_one() -> None:
    async def main() -> None:
        async with AsyncLLM(TableModel(), tokenizer=byte_tokenizer()) as llm:
            with pytest.raises(TypeError, match=r"asyncgen\.LLM"):
                list(llm.stream(PROMPT))  # type: ignore[call-overload]

    anyio.run(main)


# Lists.


def test_a_list_shares_the_batch_and_keeps_its_order() -> None:
    model = TableModel()
    prompts = [[seed, 1] for seed in range(20)]
    with make(model, max_running=4) as llm:
        passes: list[int] = []
        # 20 prompts of 6 tokens, four at a time, and not 120 passes. More are needed where prompts
        # become ready more slowly than they are answered.
        while min(passes, default=120) > 60 and len(passes) < 20:
            before = model.core.num_packed
            found = llm.generate(prompts, max_new_tokens=6)
            passes.append(model.core.num_packed - before)
        assert min(passes) <= 60, passes
        assert llm.generate(["abc"], max_new_tokens=1)[0].text
        messages = [{"role": "user", "content": "a"}]
        one, two = llm.generate([messages, messages], max_new_tokens=1)
        assert one.token_ids == two.token_ids
        assert isinstance(llm.generate(messages, max_new_tokens=1).text, str)
    expected = [tuple(greedy_ids(model, prompt, 6)) for prompt in prompts]
    assert [each.token_ids for each in found] == expected


def test_a_list_waits_for_places_in_a_short_queue() -> None:
    with make(TableModel(), max_running=2, max_queue_size=1) as llm:
        assert len(llm.generate([[seed] for seed in range(12)], max_new_tokens=3)) == 12


def test_a_list_is_refused_where_others_fill_the_queue() -> None:
    gate = Gate()
    with make(TableModel(hook=gate), max_running=1, max_queue_size=1) as llm:
        with llm.stream(PROMPT), llm.stream(PROMPT):
            with pytest.raises(OverloadedError):
                llm.generate([PROMPT, PROMPT])
        gate.open()


def test_one_that_fails_is_named_and_ends_the_others() -> None:
    model = TableModel(context_length=LONG)

    with make(model) as llm:
        with pytest.raises(InvalidRequestError, match="token ids are from 0") as caught:
            llm.generate([[1], [2], [10**6]])
        assert caught.value.__notes__ == ["it is prompt 2 of the list (from 0)"]
        before = model.num_forwards
        llm.generate([1], max_new_tokens=8)
        # Each of the other two takes passes of its own here, and one of each may have been under
        # way: a step of both had begun.
        assert model.num_forwards - before <= 8 + 2
        with pytest.raises(InvalidRequestError) as caught:
            llm.generate(["abc", 5])  # type: ignore[arg-type]
        assert caught.value.__notes__ == ["it is prompt 1 of the list (from 0)"]


def test_a_list_counts_on_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[Any] = []

    class Bar(Progress):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            bars.append((args, self))

    monkeypatch.setattr(together, "Progress", Bar)
    with make(TableModel()) as llm:
        llm.generate([[1], [2], [3]], max_new_tokens=2)
    ((args, bar),) = bars
    assert args == (3, "answering prompts")
    assert bar._done == 3


# Ends.


def test_it_loads_at_first_use_and_ends_with_close(beside: ThreadPoolExecutor) -> None:
    gate = Gate()
    llm = make(TableModel(hook=gate))
    with pytest.raises(EngineClosedError, match="no model is loaded"):
        _ = llm.tokenizer
    stream = llm.stream(PROMPT)
    text = beside.submit(lambda: "".join(stream))
    gate.wait_arrived(1)
    assert llm.is_healthy and llm.count_tokens(PROMPT) == 3 and not llm.is_degraded
    closing = beside.submit(llm.close)
    gate.open()
    closing.result(PATIENCE)
    text.result(PATIENCE)
    assert stream.result.finish_reason in ("aborted", "length")
    llm.close()
    assert not decode_threads()
    for use in (llm.start, lambda: llm.stream(PROMPT), lambda: llm.generate([PROMPT])):
        with pytest.raises(EngineClosedError):
            use()


@for_each("stage", ["weights", "tokenizer"])
def test_closing_ends_what_loads_between_two_stages(
    stage: str, beside: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name = {
        "weights": (model_loader, "load_weights"),
        "tokenizer": (tokenizer_state, "check_state"),
    }[stage]
    arrived, gate, later = threading.Event(), threading.Event(), []

    def held(*given: Any, **more: Any) -> Any:
        arrived.set()
        assert gate.wait(PATIENCE)
        return works(*given, **more)

    works = getattr(module, name)
    monkeypatch.setattr(module, name, held)
    monkeypatch.setattr(tokenizer_files, "_add_tokens", lambda *given: later.append(given))
    llm = LLM("demo", device="cpu", progress=False)
    starting = beside.submit(llm.start)
    assert arrived.wait(PATIENCE)
    closing = beside.submit(llm.close)
    while not llm._thread.is_stopping:
        time.sleep(0.001)
    gate.set()
    closing.result(PATIENCE)
    with pytest.raises(EngineClosedError, match="was closed"):
        starting.result(PATIENCE)
    assert not later and llm._thread.death is None and not decode_threads()


def test_one_that_is_dropped_ends_its_thread() -> None:
    llm = make(TableModel(context_length=LONG))
    stream = llm.stream(PROMPT)
    next(stream)
    del llm, stream
    gc.collect()
    join_decode_threads()


def test_the_death_of_the_engine_reaches_every_thread(
    beside: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from asyncgen.engine.core import Engine

    gate = Gate()

    def die(self: Engine) -> None:
        gate(None, None)  # type: ignore[arg-type]
        raise MemoryError("gone")

    with make(TableModel()) as llm:
        monkeypatch.setattr(Engine, "step", die)
        asked: list[Future[Any]] = [beside.submit(llm.generate, PROMPT) for _ in range(3)]
        asked.append(beside.submit(llm.generate, [PROMPT, PROMPT]))
        gate.wait_arrived(1)
        gate.open()
        for each in asked:
            with pytest.raises(EngineDiedError, match="gone"):
                each.result(PATIENCE)
        assert not llm.is_healthy


def test_a_text_that_takes_for_ever_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    hang = Hang()
    with make(TableModel(), prepare_seconds=0.05) as llm:
        llm.generate(PROMPT, max_new_tokens=1)
        monkeypatch.setattr("asyncgen.llm.answer.Answer.prepare", lambda *_: hang())
        with pytest.raises(InvalidRequestError, match="not tokenized within 0.05 s"):
            llm.generate(PROMPT)
        assert llm.metrics().threads_abandoned == 1
        hang.release.set()


@pytest.mark.gate
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_gets_an_error() -> None:
    code = """
        from asyncgen.llm.llm import LLM

        llm = LLM(TableModel(context_length=1_000_000), tokenizer=byte_tokenizer())
        stream = llm.stream("abc")
        next(stream)
        child = os.fork()
        if child == 0:
            assert not llm.is_healthy
            stream._unread.clear(), stream._mailbox.drain()  # what came before the fork is read
            for use in (
                llm.start, lambda: llm.generate("abc"), lambda: llm.generate(["abc"]),
                lambda: llm.stream("abc"), lambda: next(stream),
                lambda: llm.tokenize("abc"), lambda: llm.count_tokens("abc"),
                lambda: llm.apply_chat_template([{"role": "user", "content": "abc"}]),
            ):
                try:
                    use()
                except EngineClosedError as error:
                    assert "fork" in str(error)
                else:
                    raise AssertionError
            stream.close()
            llm.close()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert llm.is_healthy and next(stream)
        llm.close()
    """
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_old_names_still_work() -> None:
    with LLM("demo") as llm, llm.stream(PROMPT, max_new_tokens=2) as stream:
        for thing, old, new in (
            (llm, "healthy", "is_healthy"),
            (llm, "degraded", "is_degraded"),
            (stream, "exact", "is_exact"),
            (stream, "separates", "is_separated"),
        ):
            with pytest.warns(DeprecationWarning, match=f"read `{new}`"):
                assert getattr(thing, old) == getattr(thing, new)


def test_representations_are_short() -> None:
    llm = LLM("demo")
    assert repr(llm) == "<LLM 'demo': not loaded>"
    with llm:
        assert repr(llm) == "<LLM 'demo': loaded>"
        found = repr(llm.generate(PROMPT, max_new_tokens=200, temperature=0))
    assert repr(llm) == "<LLM 'demo': closed>"
    assert found.startswith("Completion(text=") and len(found) < 150 and "tokens" in found


@for_each("take", [copy.copy, copy.deepcopy, pickle.dumps])
def test_engines_and_streams_are_not_copied(take: Callable[[Any], Any]) -> None:
    with make(TableModel(script="abcd")) as llm:
        with pytest.raises(TypeError, match=r"an engine cannot be copied.*as in LLM\(TableModel\)"):
            take(llm)
        with pytest.raises(TypeError, match=r"same source, as in AsyncLLM\('demo'\)"):
            take(AsyncLLM("demo"))
        stream = llm.stream(PROMPT, max_new_tokens=2)
        with pytest.raises(TypeError, match="SyncTextStream cannot be copied.*its `result`"):
            take(stream)
        assert "".join(stream) == stream.result.text
        take(stream.result)


def test_an_error_that_takes_no_note_is_raised_all_the_same() -> None:
    class Odd(Exception):
        __notes__: Any = 5

    def fail(*_: Any) -> Any:
        raise Odd("mine")

    with make(TableModel()) as llm, pytest.raises(Odd):
        llm.generate([PROMPT, PROMPT], max_new_tokens=2, logits_processor=[fail])
