"""A stream is read at a screen's pace: exact text, few updates, and it stops when it is left."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from asyncgen_apps.gradio_chat.streaming import read_throttled
from tests.apps.gradio_chat.doubles import ScriptedStream

pytestmark = pytest.mark.anyio


async def test_the_last_update_has_all_the_text() -> None:
    pieces = [f"{number} " for number in range(500)]
    stream = ScriptedStream(pieces)
    texts = []
    async for partial in read_throttled(stream, min_interval=0.01):
        texts.append(partial.text)
    assert texts[-1] == "".join(pieces)
    assert all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:], strict=False))
    assert partial.ended
    assert partial.completion is not None
    assert partial.completion.text == texts[-1]
    assert len(partial.logprobs) == 500
    assert stream.is_closed


async def test_no_more_updates_than_the_pace_allows() -> None:
    loop = asyncio.get_running_loop()
    stream = ScriptedStream(["x"] * 100, delay=0.004)
    times = [loop.time() async for _ in read_throttled(stream, min_interval=0.1)]
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    assert len(times) >= 3
    assert min(gaps) > 0.095


async def test_updates_go_on_while_nothing_comes() -> None:
    stream = ScriptedStream([], waits=True)
    async with aclosing(read_throttled(stream, max_interval=0.01, min_interval=0.001)) as partials:
        first = await anext(partials)
        assert not first.is_begun
        second = await anext(partials)
        assert not second.ended
    assert stream.is_cancelled
    assert stream.is_closed


async def test_a_cancel_from_elsewhere_ends_it_with_a_result() -> None:
    stream = ScriptedStream(["An "], waits=True)
    partials = []
    async for each in read_throttled(stream, max_interval=5, min_interval=0.001):
        partials.append(each)
        stream.cancel()
    partial = partials[-1]
    assert partial.completion is not None
    assert partial.completion.finish_reason == "cancelled"
    assert partial.text == "An "


async def test_failure_keeps_the_text_before_it() -> None:
    stream = ScriptedStream(["An "], fails=ValueError("x"))
    partial = [each async for each in read_throttled(stream, min_interval=0.001)][-1]
    assert isinstance(partial.failure, ValueError)
    assert partial.text == "An "


async def test_a_cancelled_reader_stops_the_stream_while_nothing_comes() -> None:
    stream = ScriptedStream([], waits=True)

    async def read() -> None:
        async for _ in read_throttled(stream, max_interval=60):
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stream.is_cancelled
    assert stream.is_closed
