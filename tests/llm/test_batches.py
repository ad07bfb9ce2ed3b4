"""Text in few pieces: `TextStream.batches` on asyncio and trio."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from asyncgen.errors import InvalidRequestError
from asyncgen.llm.llm import AsyncLLM
from tests.cases import for_each
from tests.doubles.engine import in_thread, no_thread_left
from tests.doubles.models import PATIENCE, Gate, TableModel, byte_tokenizer

if TYPE_CHECKING:
    from asyncgen.llm.stream import TextStream

__all__ = ["no_thread_left"]

pytestmark = pytest.mark.anyio

TEXT = "abcdefghij" * 20
FOR_EVER = 1000.0
"""Seconds; a test that waits so long has failed."""


def make(text: str = TEXT, hook: Any = None) -> AsyncLLM:
    """An `AsyncLLM` whose answer is the text."""
    model = TableModel(script=text, prompt_length=1, hook=hook)
    return AsyncLLM(model, tokenizer=byte_tokenizer())


async def test_the_first_text_comes_at_once_and_the_rest_when_it_ends() -> None:
    gate = Gate()
    async with make(hook=gate) as llm, llm.stream([1]) as stream:
        pieces = stream.batches(interval=FOR_EVER)
        gate.allow()
        with anyio.fail_after(PATIENCE):
            assert await anext(pieces) == "a"
            gate.open()
            assert await anext(pieces) == TEXT[1:]
            with pytest.raises(StopAsyncIteration):
                await anext(pieces)
    assert stream.result.finish_reason == "stop"


@for_each("interval", [0, 0.02, 0.1])
async def test_pieces_are_few_and_joined_the_text(interval: float) -> None:
    async with make() as llm:
        began = monotonic()
        stream = llm.stream([1])
        pieces = [text async for text in stream.batches(interval=interval)]
        seconds = monotonic() - began
    assert "".join(pieces) == TEXT == stream.result.text
    assert all(pieces)
    if interval:
        assert len(pieces) <= seconds / interval + 2  # the first, and the last


async def test_a_piece_is_everything_that_arrived() -> None:
    gate = Gate()
    async with make(hook=gate) as llm, llm.stream([1]) as stream:
        pieces = stream.batches(interval=0.2)
        gate.allow()
        assert await anext(pieces) == "a"
        gate.allow(5)
        await in_thread(lambda: gate.wait_arrived(7))
        assert await anext(pieces) == "bcdef"
        gate.open()


@for_each("leave", ["scope", "close", "cancel", "other"])
async def test_leaving_between_two_pieces(leave: str) -> None:
    gate = Gate()
    async with make(hook=gate) as llm:
        stream = llm.stream([1])
        pieces: Any = stream.batches(interval=FOR_EVER)
        gate.allow()
        assert await anext(pieces) == "a"
        with anyio.fail_after(PATIENCE):
            if leave == "scope":
                with anyio.move_on_after(0.1):
                    await anext(pieces)
                gate.open()
            elif leave == "close":
                await pieces.aclose()
                gate.open()
            else:
                await _leave_while_it_waits(stream, pieces, leave, gate)
    assert stream.result.finish_reason == "cancelled"
    assert TEXT.startswith(stream.result.text)


async def _leave_while_it_waits(stream: TextStream, pieces: Any, leave: str, gate: Gate) -> None:
    async def read() -> None:
        async for _ in pieces:
            pass

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        if leave == "cancel":
            stream.cancel()
            gate.open()
        else:
            with pytest.raises(anyio.BusyResourceError):
                await anext(stream)
            await stream.aclose()
            gate.open()


async def test_a_break_cancels() -> None:
    gate = Gate()
    async with make(hook=gate) as llm:
        gate.allow(2)
        stream = llm.stream([1])
        async for _ in stream.batches():
            break
        gate.open()
        assert stream.result.finish_reason == "cancelled"


async def test_batches_raise_the_error_of_the_request() -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    async with make() as llm:
        stream = llm.stream([1], logits_processor=[fail])
        with pytest.raises(ZeroDivisionError):
            await anext(stream.batches(interval=FOR_EVER))


@for_each("interval", [-1, float("nan"), float("inf"), "1", True, None])
async def test_an_interval_that_is_none(interval: Any) -> None:
    async with make() as llm:
        with pytest.raises(InvalidRequestError, match="`interval` is .*seconds between two pieces"):
            llm.stream([1]).batches(interval=interval)


async def test_several_samples_are_events() -> None:
    async with make() as llm:
        stream = llm.stream([1], n=2, do_sample=True, max_new_tokens=2)
        with pytest.raises(InvalidRequestError, match=r"read through `events\(\)`"):
            await anext(stream.batches())
