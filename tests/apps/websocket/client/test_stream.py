"""The reading end alone: the other end is played by the test."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import anyio
import pytest

from asyncgen import InvalidRequestError, Timing, Usage
from asyncgen_apps.websocket.client.request import Phase, Request
from asyncgen_apps.websocket.client.stream import RemoteStream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


class RequestOwner:
    """Notes who wants to be looked after."""

    def __init__(self) -> None:
        self.attended: list[Request] = []
        self.later: list[Request] = []

    def update(self, request: Request) -> None:
        self.attended.append(request)

    def update_soon(self, request: Request) -> None:
        self.later.append(request)


def opened(**params: object) -> tuple[RemoteStream, Request, RequestOwner]:
    owner = RequestOwner()
    request = Request({"prompt": "x"}, dict(params), lambda: 0.0)
    return RemoteStream(owner, request), request, owner


def add(request: Request, *texts: str) -> None:
    for text in texts:
        seq = request.seq + 1
        request.add(seq, seq, index=0, text=text, token_ids=[seq], logprobs=None)


def finish(request: Request) -> None:
    request.finish(request.seq + 1, [(0, "stop", None)], Usage(1, 1), Timing(None, None, 1.0, None))


async def test_stream_sends_no_request_before_the_first_read() -> None:
    stream, request, owner = opened()
    stream.cancel()
    await stream.aclose()
    assert owner.attended == [] and owner.later == []
    assert [text async for text in stream] == []
    assert stream.result.text == ""
    assert request.left


async def test_text_that_was_not_read_is_merged_and_the_end_is_the_end() -> None:
    stream, request, owner = opened()
    add(request, "a", "", "b")
    assert await anext(stream) == "ab"
    assert owner.attended == [request]
    add(request, "c")
    finish(request)
    assert [text async for text in stream] == ["c"]
    assert stream.result.text == "abc"
    assert owner.later == []


async def test_entering_a_stream_raises_the_error_of_the_server() -> None:
    stream, request, _ = opened()
    async with anyio.create_task_group() as tasks:

        async def enter() -> None:
            with pytest.raises(InvalidRequestError):
                async with stream:
                    raise AssertionError("entered")

        tasks.start_soon(enter)
        await anyio.wait_all_tasks_blocked()
        request.fail(InvalidRequestError("top_p", 7, "less"))
    assert stream.result.finish_reason == "error"


async def test_leaving_in_any_way_cancels_once() -> None:
    async def leave_by_break(stream: RemoteStream) -> None:
        async for _ in stream:
            break

    async def leave_by_error(stream: RemoteStream) -> None:
        with pytest.raises(ZeroDivisionError):
            async with stream:
                raise ZeroDivisionError

    async def leave_by_scope(stream: RemoteStream) -> None:
        with anyio.CancelScope() as scope:
            async for _ in stream:
                scope.cancel()

    async def leave_the_reader(stream: RemoteStream) -> None:
        reader: AsyncIterator[object] = stream.events()
        await anext(reader)
        await reader.aclose()  # type: ignore[attr-defined]

    for leave in (leave_by_break, leave_by_error, leave_by_scope, leave_the_reader):
        stream, request, owner = opened()
        request.accept("t")
        add(request, "a")
        await leave(stream)
        assert owner.later == [request], leave
        add(request, "late")
        assert [text async for text in stream] == []
        await stream.aclose()
        assert owner.later == [request]


async def test_a_stream_that_is_dropped_in_another_thread_is_cancelled() -> None:
    stream, request, owner = opened()
    request.accept("t")
    add(request, "a")
    assert await anext(stream) == "a"
    held = [stream]
    del stream
    thread = threading.Thread(target=held.clear)
    thread.start()
    await anyio.to_thread.run_sync(thread.join)
    assert owner.later == [request]
    assert request.left


async def test_one_task_reads_at_a_time() -> None:
    stream, request, _ = opened()
    async with anyio.create_task_group() as tasks:

        async def read() -> None:
            assert await anext(stream) == "a"

        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            await anext(stream)
        add(request, "a")


async def test_a_close_from_elsewhere_ends_a_waiting_reader() -> None:
    stream, _, owner = opened()
    async with anyio.create_task_group() as tasks:

        async def read() -> None:
            assert [text async for text in stream] == []

        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(60):
            await stream.aclose()
    assert len(owner.later) == 1


async def test_there_is_no_result_before_the_end() -> None:
    stream, request, _ = opened()
    add(request, "a")
    assert await anext(stream) == "a"
    with pytest.raises(RuntimeError, match="no result yet"):
        _ = stream.result
    await stream.aclose()
    assert stream.result.text == "a"
    assert stream.result.finish_reason == "cancelled"


async def test_several_samples_are_read_through_events() -> None:
    stream, request, owner = opened(n=2)
    with pytest.raises(InvalidRequestError, match="events"):
        await anext(stream)
    assert owner.later == [request]
    other, request, _ = opened(n=2)
    add(request, "a")
    request.finish(
        2, [(0, "stop", None), (1, "stop", None)], Usage(1, 1), Timing(None, None, 1.0, None)
    )
    assert [event.index async for event in other.events()] == [0, 0, 1]
    assert request.phase is Phase.ENDED


async def test_events_before_a_failure_are_read_first() -> None:
    stream, request, _ = opened()
    add(request, "a")
    request.fail(ZeroDivisionError("oops"))
    assert await anext(stream) == "a"
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await anext(stream)


async def test_an_answer_in_a_shape_has_its_value_and_grows() -> None:
    stream, request, _ = opened(json_schema={"type": "object"})
    add(request, '{"a": "b', 'c"}')
    finish(request)
    assert [value async for value in stream.partial()] == [{"a": "bc"}]
    assert (stream.result.parsed, stream.result.parse_error) == ({"a": "bc"}, None)
    stream, request, _ = opened(json_object=True)
    request.accept("t")
    add(request, '{"a": "b')
    async for value in stream.partial():
        assert value == {"a": "b"}
        break
    assert stream.result.parsed is None
    assert stream.result.parse_error == "the answer ended before its format was complete: cancelled"
    with pytest.raises(InvalidRequestError, match="needs a format"):
        opened()[0].partial()
