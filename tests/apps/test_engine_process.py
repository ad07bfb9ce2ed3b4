"""The engine behind a pipe is one: it says what an `AsyncLLM` says, and its death is told."""

from __future__ import annotations

import threading
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from asyncgen import (
    AsyncLLM,
    EngineDiedError,
    InvalidRequestError,
    LogitsProcessor,
    LogitsProcessorList,
)
from asyncgen_apps.metrics import exposition
from tests.apps.engine_process import EngineProcess, PipedStream, engine_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from asyncgen_apps.engine import Engine, EngineStream

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
PROMPT = "Once upon a time"
ENDLESS: dict[str, Any] = {"max_new_tokens": 900, "eos_token_id": []}


class Hang(LogitsProcessor):
    """Lets the first token pass, and keeps the decode thread at the second."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if vars(self).setdefault("seen", False):
            threading.Event().wait(600)
        self.seen = True
        return scores


class Dawdle(LogitsProcessor):
    """Makes an answer outlast whatever a test does meanwhile."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        time.sleep(0.1)
        return scores


class Fail(LogitsProcessor):
    """Raises what cannot be pickled."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        class OwnError(Exception):
            pass

        raise OwnError("a bug")


@pytest.fixture(scope="module")
def llm() -> Iterator[EngineProcess]:
    with engine_process(num_threads=1, max_running=4) as engine:
        yield engine


async def test_it_says_what_an_engine_says(llm: EngineProcess) -> None:
    """Text, events, results and what a stream tells; both are on the same weights."""
    typed: Engine = llm
    params: dict[str, Any] = {"seed": 7, "max_new_tokens": 12, "top_logprobs": 2, "n": 2}
    greedy: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12}
    async with AsyncLLM("demo", num_threads=1) as here:
        told = []
        for one in (here, typed):
            stream: EngineStream = one.stream(PROMPT, **params)
            async with stream:
                events = [event async for event in stream.events()]
            ids = [[i for e in events if e.index == row for i in e.token_ids] for row in (0, 1)]
            samples = stream.result.samples
            assert [list(sample.token_ids) for sample in samples] == ids
            assert stream.result.usage == events[-1].usage
            plain = one.stream(PROMPT, **greedy)
            text = "".join([piece async for piece in plain])
            assert text == plain.result.text
            count = await one.count_tokens([{"role": "user", "content": "Who?"}])
            told.append((samples, text, stream.prompt_ids, stream.seed, stream.position, count))
        assert told[0] == told[1]
        assert here.fingerprint == llm.fingerprint
        assert here.generation_config == llm.generation_config
        assert here.tokenizer.encode_ids(PROMPT) == llm.tokenizer.encode_ids(PROMPT)


async def test_its_errors_are_those_of_an_engine(llm: EngineProcess) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        await llm.generate(PROMPT, top_p=3)
    assert (refused.value.parameter, refused.value.value) == ("top_p", 3)
    with pytest.raises(InvalidRequestError, match="temprature"):
        await llm.generate(PROMPT, temprature=3)
    with pytest.raises(InvalidRequestError, match="prompt"):
        await llm.count_tokens("")
    with pytest.raises(RuntimeError, match="OwnError: a bug"):
        await llm.generate(PROMPT, logits_processor=LogitsProcessorList([Fail()]))
    with pytest.raises(Exception, match="pickle"):
        await llm.generate(PROMPT, logits_processor=[lambda ids, scores: scores])
    assert llm.is_healthy and not llm.is_degraded
    assert not llm._waiting


async def test_cancelling_and_leaving_end_the_work(llm: EngineProcess) -> None:
    slow = {**ENDLESS, "logits_processor": LogitsProcessorList([Dawdle()])}
    cancelled = llm.stream(PROMPT, **slow)
    cancelled.cancel()  # before it begins
    assert [event async for event in cancelled.events()][-1].usage is not None
    assert cancelled.result.finish_reason == "cancelled"
    async with llm.stream(PROMPT, **slow) as left:
        async for _ in left.events():
            break
    assert left.result.finish_reason == "cancelled"
    with anyio.CancelScope() as scope:
        async for _ in llm.stream(PROMPT, **slow):
            scope.cancel()
    with anyio.fail_after(120):
        while (  # noqa: ASYNC110
            shot := await llm.measure()
        ).requests_running + shot.requests_waiting:
            await anyio.sleep(0.01)
    assert shot.finished["cancelled"] >= 3
    assert not llm._waiting


@pytest.mark.gate
async def test_a_dead_child_ends_every_stream() -> None:
    with engine_process(num_threads=1) as llm:
        hang = LogitsProcessorList([Hang()])
        streams = [llm.stream(PROMPT, logits_processor=hang, **ENDLESS) for _ in range(3)]
        raised = []

        async def read(stream: PipedStream) -> None:
            try:
                async for _ in stream.events():
                    pass
            except EngineDiedError as error:
                raised.append(error)

        async with AsyncExitStack() as entered, anyio.create_task_group() as group:
            for stream in streams:
                await entered.enter_async_context(stream)
            events = streams[0].events()
            await anext(events)
            for stream in streams[1:]:
                group.start_soon(read, stream)
            assert sum((await llm.measure()).finished.values()) == 0
            llm.kill()
            with pytest.raises(EngineDiedError):
                async for _ in events:
                    pass
        assert len(raised) == 2
        assert all(stream.result.finish_reason == "error" for stream in streams)
        assert not llm.is_healthy
        with pytest.raises(EngineDiedError):
            llm.stream(PROMPT)
        with pytest.raises(EngineDiedError):
            await llm.measure()
        assert await exposition(llm, "demo") == b""
