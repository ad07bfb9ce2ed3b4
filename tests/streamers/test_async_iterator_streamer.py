"""An async reader on asyncio and trio: as the blocking one, and the loop is never waited for."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio
import uvloop
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from streamers.async_iterator_streamer import AsyncTextIteratorStreamer
from streamers.errors import ProducerDiedError, ProducerError
from streamers.stream_reader import Reader
from tests.streamers.producers import Script, ids_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from tests.streamers.cases import Case


pytestmark = pytest.mark.anyio
TEXT = "one two three four five six seven eight"


def stream_of(case: Case, **kwargs: Any) -> AsyncTextIteratorStreamer:
    return AsyncTextIteratorStreamer(case.tokenizer, **kwargs)


async def test_the_documented_way(byte_level: Case) -> None:
    streamer, script = stream_of(byte_level), Script(ids_of(byte_level, TEXT))
    thread = script.thread(streamer=streamer)
    text = ""
    async for new_text in streamer:
        assert new_text.row == 0
        text += new_text
    thread.join()
    assert text == TEXT


async def test_each_text_comes_while_the_rest_is_generated(byte_level: Case) -> None:
    ids = ids_of(byte_level, TEXT)
    streamer, script = stream_of(byte_level), Script(ids, gate=len(ids) - 1)
    thread = script.thread(streamer.run)
    reader = aiter(streamer)
    text: str = await anext(reader)
    assert not script.finished.is_set()
    script.go.set()
    async for new in reader:
        text += new
    thread.join()
    assert text == TEXT


async def test_it_may_be_built_outside_a_loop(byte_level: Case) -> None:
    streamer = await run_sync(lambda: stream_of(byte_level))
    await run_sync(streamer.run, Script(ids_of(byte_level, TEXT)))
    assert await anext(streamer) == TEXT
    with pytest.raises(StopAsyncIteration):
        await anext(streamer)


@pytest.mark.parametrize("count", [0, 3, None])
async def test_an_error_reaches_the_reader_after_the_text(
    byte_level: Case, count: int | None
) -> None:
    ids, error = ids_of(byte_level, TEXT)[:count], ValueError("broken")
    streamer, script = stream_of(byte_level), Script(ids, error=error)
    thread = script.thread(streamer.run)
    text = ""
    with pytest.raises(ProducerError, match="ValueError: broken") as caught:
        async for new in streamer:
            text += new
    thread.join()
    assert caught.value.__cause__ is error
    assert text == byte_level.text(ids, True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_thread_that_dies_is_noticed(byte_level: Case) -> None:
    streamer = stream_of(byte_level)
    script = Script(ids_of(byte_level, TEXT), error=ValueError("not seen"))
    readers = streamer.tee(2)
    thread = script.thread(streamer=streamer)
    texts = ["", ""]

    async def read(n: int) -> None:
        with pytest.raises(ProducerDiedError, match=r"without calling end\(\)"):
            async for new in readers[n]:
                texts[n] += new

    async with anyio.create_task_group() as group:
        group.start_soon(read, 0)
        group.start_soon(read, 1)
    thread.join()
    assert texts == [TEXT, TEXT]


async def test_timeout_is_timeout_error(byte_level: Case) -> None:
    with pytest.raises(TimeoutError, match="timeout=0.01"):
        await anext(stream_of(byte_level, timeout=0.01))


@pytest.mark.parametrize("how", ["break", "with", "aclose", "scope", "reader", "garbage"])
async def test_a_reader_that_leaves_stops_the_producer(byte_level: Case, how: str) -> None:
    streamer, script = stream_of(byte_level), Script(ids_of(byte_level, TEXT), gate=5)
    thread = script.thread(streamer.run)
    assert await run_sync(script.waiting.wait, 60)
    match how:
        case "break":
            async for _ in streamer:
                break
        case "with":
            async with streamer:
                await anext(streamer)
        case "aclose":
            await streamer.aclose()
            assert [text async for text in streamer] == []
        case "scope":
            with anyio.CancelScope() as scope:
                async for _ in streamer:
                    scope.cancel()
        case "reader":
            async with aiter(streamer) as reader:
                await anext(reader)
            assert [text async for text in reader] == []
        case "garbage":
            cycle: list[Any] = [aiter(streamer)]
            cycle.append(cycle)
            del cycle
            gc.collect()
    assert streamer.cancelled.is_set()
    script.go.set()
    await run_sync(thread.join)
    assert script.stopped
    assert script.steps == 6


async def test_a_waiting_reader_is_sent_away_from_a_thread(byte_level: Case) -> None:
    streamer = stream_of(byte_level)
    async with anyio.create_task_group() as group:

        async def read() -> None:
            assert [text async for text in streamer] == []

        group.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        await run_sync(streamer.close)


@pytest.mark.parametrize("run", [asyncio.run, trio.run, uvloop.run])
@pytest.mark.parametrize("reading", [True, False])
def test_a_loop_that_ends_stops_the_producer(
    byte_level: Case, run: Callable[[Any], Any], reading: bool
) -> None:
    script = Script(ids_of(byte_level, TEXT * 20), gate=5)
    streamers: list[AsyncTextIteratorStreamer] = []
    threads: list[threading.Thread] = []

    async def main() -> None:
        streamer = stream_of(byte_level)
        streamers.append(streamer)
        threads.append(script.thread(streamer.run))
        if reading:
            assert await anext(streamer)
        await checkpoint()

    run(main if run is trio.run else main())
    script.go.set()
    threads[0].join()
    assert streamers[0].cancelled
    assert script.stopped
    assert script.steps < len(script.ids) / 4  # noticed soon, though nobody waits


async def test_a_busy_loop_gets_merged_text_later(byte_level: Case) -> None:
    streamer, script = stream_of(byte_level), Script(ids_of(byte_level, TEXT * 20))
    texts: list[str] = []
    async with anyio.create_task_group() as group:

        async def read() -> None:
            texts.extend([text async for text in streamer])

        group.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        script.thread(streamer.run).join()  # the loop stands still meanwhile
    assert texts == [TEXT * 20]


async def test_readers_see_everything_and_the_last_to_leave_cancels(byte_level: Case) -> None:
    ids = ids_of(byte_level, TEXT)
    streamer, script = stream_of(byte_level), Script(ids, gate=len(ids) - 2)
    thread = script.thread(streamer.run)
    assert await run_sync(script.waiting.wait, 60)
    one, two, three = streamer.tee(3)
    assert await anext(one) == await anext(two)
    await one.aclose()
    del two
    assert not streamer.cancelled
    script.go.set()
    assert "".join([text async for text in three]) == TEXT
    thread.join()
    [late] = streamer.tee(1)
    assert [text async for text in late] == [TEXT]
    assert not streamer.cancelled


async def test_all_readers_leaving_cancels(byte_level: Case) -> None:
    streamer = stream_of(byte_level)
    for reader in streamer.tee(2):
        assert not streamer.cancelled
        reader.close()
    assert streamer.cancelled


async def test_a_streamer_serves_one_generate_after_the_other(byte_level: Case) -> None:
    streamer = stream_of(byte_level)
    for _ in range(3):
        thread = Script(ids_of(byte_level, TEXT)).thread(streamer.run)
        assert "".join([text async for text in streamer]) == TEXT
        thread.join()
    assert not streamer.cancelled


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.soak)])
async def test_leaving_at_random_frees_everything(byte_level: Case, count: int) -> None:
    ids = ids_of(byte_level, TEXT)
    gone: list[weakref.ref[AsyncTextIteratorStreamer]] = []
    for n in range(count):
        streamer, script = stream_of(byte_level), Script(ids)
        thread = script.thread(streamer.run)
        taken = 0
        async for _ in streamer:
            taken += 1
            if taken > n % 3:
                break
        gone.append(weakref.ref(streamer))
        del streamer
        thread.join()
        assert script.finished.is_set()
        del thread, script
    await checkpoint()
    gc.collect()
    assert [ref() for ref in gone] == [None] * count


def reader(items: list[str], said: list[str]) -> Reader[str]:
    """Reads these items, and writes down how it is left."""

    async def read() -> str:
        if not items:
            raise StopAsyncIteration
        return items.pop(0)

    return Reader(read, lambda: said.append("left"), lambda: said.append("abandoned"))


async def test_it_gives_what_is_read_until_the_end() -> None:
    assert [item async for item in reader(["a", "b"], [])] == ["a", "b"]


async def test_a_broken_loop_abandons_the_stream() -> None:
    said: list[str] = []
    async for _ in reader(["a", "b"], said):
        break
    gc.collect()
    assert said == ["abandoned"]


async def test_closing_leaves_at_once() -> None:
    said: list[str] = []
    one = reader(["a"], said)
    await one.aclose()
    assert said == ["left"]
