"""Test that a hanging preparation fails its own request alone."""

from __future__ import annotations

import queue
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio import to_thread
from tokenizers import Regex, pre_tokenizers

from asyncgen.errors import (
    ContextLengthError,
    EngineClosedError,
    InvalidRequestError,
    OverloadedError,
)
from asyncgen.llm.llm import AsyncLLM
from asyncgen.llm.preparing import (
    LONG_TEXT,
    MOST_ABANDONED,
    MOST_AT_ONCE,
    PreparingThreads,
    _Task,
)
from asyncgen.runtime.wanted import is_wanted
from asyncgen.text.tokenizer import Tokenizer
from tests.doubles.engine import greedy_ids, no_thread_left
from tests.doubles.models import PATIENCE, TableModel, byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["no_thread_left"]

pytestmark = pytest.mark.anyio


class Hang:
    """A function that returns when it is allowed to, and how many run."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.num_running = 0
        self._lock = threading.Lock()

    def __call__(self) -> str:
        with self._lock:
            self.num_running += 1
        self.release.wait(PATIENCE)
        with self._lock:
            self.num_running -= 1
        return "late"


@pytest.fixture
def hang() -> Iterator[Hang]:
    made = Hang()
    yield made
    made.release.set()


def wait_for(condition: Callable[[], bool]) -> None:
    """As `until`, on a thread."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens on threads."""
    with anyio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.002)


async def test_hanging_preparations_fail_and_count_until_they_end(hang: Hang) -> None:
    threads = PreparingThreads(0.02)
    for count in range(MOST_ABANDONED):
        assert not threads.is_degraded
        with pytest.raises(InvalidRequestError, match=r"within 0.02 s \(`prepare_seconds`\)"):
            await threads.run(hang, length=LONG_TEXT)
        assert threads.num_abandoned == count + 1
    assert threads.is_degraded
    with pytest.raises(OverloadedError, match="more than 4096 characters") as caught:
        await threads.run(str, length=LONG_TEXT + 1)
    assert caught.value.is_degraded and caught.value.retry_after > 0
    assert await PreparingThreads(None).run(str, length=10**9) == ""
    hang.release.set()
    await until(lambda: threads.num_abandoned == 0)
    threads._seconds = PATIENCE  # on a busy machine this may take a while too
    assert await threads.run(partial(int, "7"), length=10**9) == 7
    threads.close()


async def test_short_texts_are_refused_only_when_very_many_hang(hang: Hang) -> None:
    threads = PreparingThreads(30)
    crew = threads._for_loops
    crew.abandoned = {_Task(str, str, None) for _ in range(16 * MOST_ABANDONED - 1)}
    assert await threads.run(str, length=LONG_TEXT) == ""
    crew.abandoned.add(_Task(str, str, None))
    with pytest.raises(OverloadedError):
        await threads.run(str, length=1)
    threads.close()


async def test_an_abandoned_task_keeps_its_place_until_it_ends(hang: Hang) -> None:
    """Texts that hang, of clients that leave at once, do not pile up threads."""
    threads = PreparingThreads(PATIENCE)
    async with anyio.create_task_group() as group:
        for name in "ab" * (MOST_AT_ONCE + 3):
            group.start_soon(partial(threads.run, hang, length=1, client=name))
        await until(lambda: hang.num_running == MOST_AT_ONCE)
        group.cancel_scope.cancel()
    assert hang.num_running == MOST_AT_ONCE and threads.num_abandoned == 0
    with anyio.move_on_after(0.02) as waiting:
        await threads.run(str, length=1)
    assert waiting.cancelled_caught
    hang.release.set()
    with anyio.fail_after(PATIENCE):
        assert await threads.run(str, length=1) == ""
    threads.close()


async def test_an_abandoned_task_is_counted_after_its_time(hang: Hang) -> None:
    threads = PreparingThreads(0.05)

    async def visit() -> None:
        with suppress(InvalidRequestError):  # on a busy machine the time is over before
            await threads.run(hang, length=1)

    async with anyio.create_task_group() as group:
        group.start_soon(visit)
        await until(lambda: hang.num_running == 1)
        group.cancel_scope.cancel()
    await until(lambda: threads.num_abandoned == 1)
    hang.release.set()
    await until(lambda: threads.num_abandoned == 0)
    threads.close()


async def test_clients_take_turns_at_places(hang: Hang) -> None:
    """One that has sent hundreds does not keep another waiting behind all of them."""
    threads, order = PreparingThreads(None), list[str]()
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            for _ in range(MOST_AT_ONCE):
                group.start_soon(partial(threads.run, hang, length=1, client="a"))
            await until(lambda: hang.num_running == MOST_AT_ONCE - 1)
            await anyio.wait_all_tasks_blocked()
            assert hang.num_running == MOST_AT_ONCE - 1
            assert await threads.run(str, length=1, client="b") == ""  # there is one for the next
            for name in [*["a"] * 200, "b", "b", ""]:
                ask = partial(threads.run, partial(order.append, name), length=1, client=name)
                group.start_soon(ask)
                await anyio.lowlevel.checkpoint()
            hang.release.set()
    assert order.index("b") < 20 and order.index("") < 20 and len(order) == 203
    places = threads._of_loop()
    await until(lambda: not places._doors and not places.own)  # a thread may keep the last task
    threads.close()


async def test_the_worker_threads_of_the_program_stay_free(hang: Hang) -> None:
    threads = PreparingThreads(PATIENCE)
    free = to_thread.current_default_thread_limiter()
    async with anyio.create_task_group() as group:
        for name in "ab" * MOST_AT_ONCE:
            group.start_soon(partial(threads.run, hang, length=1, client=name))
        await until(lambda: hang.num_running == MOST_AT_ONCE)
        assert free.borrowed_tokens == 0
        hang.release.set()
    threads.close()


async def test_threads_are_used_again_and_end_with_the_engine() -> None:
    def threads() -> set[threading.Thread]:
        return {one for one in threading.enumerate() if one.name == "asyncgen-prepare"}

    before = threads()
    async with AsyncLLM(TableModel(), tokenizer=byte_tokenizer()) as llm:
        for _ in range(20):
            assert await llm.count_tokens("abc") == 3
        assert len(threads() - before) == 1
        assert next(iter(threads() - before)).daemon
    await until(lambda: not threads() - before)


async def test_a_thread_that_is_done_after_the_end_ends_as_well(hang: Hang) -> None:
    threads = PreparingThreads(PATIENCE)
    before = set(threading.enumerate())
    async with anyio.create_task_group() as group:
        group.start_soon(partial(threads.run, hang, length=1))
        await until(lambda: hang.num_running == 1)
        (thread,) = set(threading.enumerate()) - before
        threads.close()
        hang.release.set()
    await to_thread.run_sync(thread.join, PATIENCE)
    assert not thread.is_alive() and not threads._for_loops._free


def test_threads_that_wait_for_a_place_are_answered_at_the_end(hang: Hang) -> None:
    threads, told = PreparingThreads(None), queue.SimpleQueue[object]()

    def unwanted() -> None:
        hang()
        while is_wanted():
            time.sleep(0.002)
        raise ValueError("nobody waits")

    def ask(function: Callable[[], object]) -> None:
        try:
            told.put(threads.run_in_thread(function, length=1))
        except Exception as error:
            told.put(error)

    def begin(function: Callable[[], object], count: int) -> None:
        for _ in range(count):
            threading.Thread(target=ask, args=(function,), daemon=True).start()

    begin(hang, MOST_AT_ONCE - 1)
    begin(unwanted, 1)
    wait_for(lambda: hang.num_running == MOST_AT_ONCE)
    begin(hang, 3)
    wait_for(lambda: len(threads._for_threads._tasks) == 3)
    threads.close()
    begin(hang, 2)
    wait_for(lambda: len(threads._for_threads._tasks) == 5)
    hang.release.set()
    answers = [told.get(timeout=PATIENCE) for _ in range(MOST_AT_ONCE + 5)]
    assert answers.count("late") == MOST_AT_ONCE - 1
    assert sum(isinstance(each, EngineClosedError) for each in answers) == 6
    wait_for(lambda: not threads._for_threads._counted)


async def test_failed_thread_start_fails_the_waiting_request(
    hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = PreparingThreads(PATIENCE)
    await threads.run(str, length=1)  # one is there
    with monkeypatch.context() as patched:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(threads.run, hang, length=1))
            await until(lambda: hang.num_running == 1)
            patched.setattr(threading.Thread, "start", refuse)
            for _ in range(MOST_AT_ONCE):
                with pytest.raises(OverloadedError, match="can't start new thread") as caught:
                    await threads.run(str, length=1)
                assert caught.value.is_degraded
            # Nor a timer for who leaves: it is given up at once.
            group.cancel_scope.cancel()
    assert threads.num_abandoned == 1
    hang.release.set()
    with anyio.fail_after(PATIENCE):
        assert await threads.run(str, length=1) == ""
    threads.close()


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), "10"])
def test_a_time_that_is_none(seconds: object) -> None:
    with pytest.raises(InvalidRequestError, match="prepare_seconds"):
        AsyncLLM("demo", prepare_seconds=seconds)  # type: ignore[arg-type]


async def test_a_prompt_that_hangs_beside_a_stream(
    hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = Tokenizer.encode_ids

    def slow(self: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
        if text.startswith("bad"):
            hang()
        return encode(self, text, add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode_ids", slow)
    tokenizer = byte_tokenizer()
    async with AsyncLLM(TableModel(), tokenizer=tokenizer, prepare_seconds=0.5) as llm:

        async def hangs() -> None:
            with pytest.raises(InvalidRequestError, match="not tokenized within"):
                await llm.generate("bad")

        async with anyio.create_task_group() as group:
            for _ in range(MOST_ABANDONED):
                group.start_soon(hangs)
        assert llm.is_degraded and llm.is_healthy
        with pytest.raises(OverloadedError):
            await llm.generate("x" * (LONG_TEXT + 1))
        found = await llm.generate("xy", max_new_tokens=5)
        assert list(found.samples[0].token_ids) == greedy_ids(TableModel(), [120, 121], 5)
        hang.release.set()
        await until(lambda: not llm.is_degraded)
    unlimited = AsyncLLM(TableModel(), tokenizer=tokenizer, prepare_seconds=None)
    await unlimited.aclose()


async def test_a_tokenizer_that_panics() -> None:
    tokenizer = byte_tokenizer()
    split = pre_tokenizers.Split(Regex("(a+)+b$"), "isolated")
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytewise])
    async with AsyncLLM(TableModel(context_length=100_000), tokenizer=tokenizer) as llm:
        for ask in (llm.generate, llm.count_tokens):
            with pytest.raises(InvalidRequestError, match="gave up over it.*retry-limit") as caught:
                await ask("a" * 40_000)
            assert caught.value.parameter == "prompt"
        assert (await llm.generate("x", max_new_tokens=2)).samples
    with pytest.raises(InvalidRequestError, match="gave up over it"):
        tokenizer(["a" * 40_000, "b"])


async def test_a_token_that_the_model_has_no_row_for() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<one>", "<more>"])
    model = TableModel()
    size, known = model.config.vocab_size, "ab"
    assert tokenizer.convert_tokens_to_ids("<more>") == size + 1
    async with AsyncLLM(model, tokenizer=tokenizer) as llm:
        for prompt in (
            "a<more>b",
            "<one>" * 50,
            [{"role": "user", "content": "<more>"}],
        ):
            with pytest.raises(
                InvalidRequestError, match=r"tokenizer makes the token id \d+ of it"
            ) as caught:
                await llm.generate(prompt, max_new_tokens=2)
            assert caught.value.parameter == "prompt"
            assert f"from 0 to {size - 1}" in str(caught.value)
        assert (await llm.generate(known, max_new_tokens=2)).samples


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration])
async def test_stop_iteration_of_a_tokenizer_becomes_runtime_error(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object, **more: object) -> list[int]:
        raise kind

    monkeypatch.setattr(Tokenizer, "encode_ids", refuse)
    async with AsyncLLM(TableModel(), tokenizer=byte_tokenizer()) as llm:
        with pytest.raises(RuntimeError, match=f"raised {kind.__name__}"):
            async for _ in llm.stream("x"):
                pass


async def test_a_prompt_that_cannot_fit_is_not_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **more: object) -> list[int]:
        raise AssertionError("it was tokenized")

    tokenizer = byte_tokenizer()
    monkeypatch.setattr(Tokenizer, "encode_ids", refuse)
    message = "at least 3000[0-9]* tokens, and the context holds 512"
    async with AsyncLLM(TableModel(context_length=512), tokenizer=tokenizer) as llm:
        # The longest token is "<start>", of 7 bytes.
        for prompt in ("x" * 210_000, [{"role": "user", "content": "x" * 210_000}]):
            for ask in (llm.generate, llm.count_tokens):
                with pytest.raises(ContextLengthError, match=message):
                    await ask(prompt)
