"""An engine that lives elsewhere says what one here says, whatever is lost on the way."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from asyncgen import (
    AsyncLLM,
    EngineDiedError,
    InvalidRequestError,
    OverloadedError,
    Timing,
    TokenEvent,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
    Usage,
)
from asyncgen_apps.remote import (
    LostStreamError,
    MessageTooLargeError,
    RemoteLLM,
    ReplicaLostError,
    pump,
)
from asyncgen_apps.remote.messages import packed, unpacked
from asyncgen_apps.remote.sessions import session_of
from asyncgen_apps.remote.worker import facts_of
from tests.apps.remote.local import LocalCalls, at_random
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from asyncgen import Completion
    from asyncgen_apps.engine import Engine
    from asyncgen_apps.remote import StreamRequest

pytestmark = pytest.mark.anyio
PROMPT = "Once upon a time"
CHAT = [{"role": "user", "content": "Tell me about the sea."}]

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"temperature": 1.1, "seed": 5},
    "drawn": {"temperature": 1.1},
    "penalties": {"seed": 3, "repetition_penalty": 1.3, "frequency_penalty": 0.6, "top_p": 0.9},
    "stop": {"do_sample": False, "stop": [" the"]},
    "samples": {"seed": 9, "n": 3},
    "logprobs": {"seed": 2, "top_logprobs": 2},
    "beams": {"num_beams": 3, "do_sample": False},
    "contrastive": {"penalty_alpha": 0.6, "top_k": 4, "do_sample": False},
}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def engines() -> AsyncIterator[tuple[AsyncLLM, AsyncLLM]]:
    async with AsyncLLM("demo", num_threads=1) as one, AsyncLLM("demo", num_threads=1) as other:
        await one.generate([1], max_new_tokens=1)
        await other.generate([1], max_new_tokens=1)
        yield one, other


async def read(
    llm: Any, prompt: Any, params: dict[str, Any]
) -> tuple[list[TokenEvent], Completion]:
    stream = llm.stream(prompt, **params)
    events = [event async for event in stream.events()]
    return events, stream.result


async def idle(engine: AsyncLLM) -> None:
    """Return when nothing runs there."""
    while engine.metrics().requests_running:  # noqa: ASYNC110
        await anyio.sleep(0.01)


def said(completion: Completion) -> Any:
    return completion.samples, completion.usage.completion_tokens, completion.usage.prompt_tokens


@pytest.mark.gate
@for_each("kind", KINDS)
@pytest.mark.parametrize("prompt", [PROMPT, pytest.param(CHAT, marks=pytest.mark.gate)])
async def test_an_answer_outlives_its_engines(
    engines: tuple[AsyncLLM, AsyncLLM], kind: str, prompt: Any
) -> None:
    params = {"max_new_tokens": 24, **KINDS[kind]}
    for seed in range(6):
        calls = LocalCalls(*engines, messages=at_random(seed))
        async with RemoteLLM(calls, facts_of(engines[0])) as llm:
            try:
                events, found = await read(llm, prompt, params)
            except LostStreamError as error:
                assert "engines were lost" in str(error)
                continue
            known = calls.requests[-1].params.get("seed", params.get("seed"))
            if kind == "drawn":
                params = {**params, "seed": known} if known is not None else params
                if known is None:
                    continue
            _, expected = await read(engines[0], prompt, params)
            assert said(found) == said(expected)
            for sample in found.samples:
                own = [event for event in events if event.index == sample.index]
                assert "".join(event.text for event in own) == sample.text
                assert [event.finish_reason is not None for event in own][-1]
            assert events[-1].usage == found.usage
            times = [event.time for event in events]
            assert times == sorted(times) or kind == "samples"


async def test_it_is_an_engine(engines: tuple[AsyncLLM, AsyncLLM]) -> None:
    async with RemoteLLM(LocalCalls(*engines), facts_of(engines[0])) as llm:
        typed: Engine = llm
        assert typed.is_healthy and typed.fingerprint == engines[0].fingerprint
        assert await typed.count_tokens(CHAT) == await engines[0].count_tokens(CHAT)
        assert await typed.tokenize(PROMPT) == await engines[0].tokenize(PROMPT)
        text = await typed.apply_chat_template(CHAT)
        assert text == await engines[0].apply_chat_template(CHAT)
        ours, theirs = await typed.embed(["a", "b"]), await engines[0].embed(["a", "b"])
        assert [each.vector.tolist() for each in ours] == [each.vector.tolist() for each in theirs]
        one, other = (engine.metrics() for engine in engines)
        both = await typed.measure()
        assert both.generation_tokens == one.generation_tokens + other.generation_tokens
        assert both.time_to_first_token.count == (
            one.time_to_first_token.count + other.time_to_first_token.count
        )
        text = "".join([piece async for piece in typed.stream(PROMPT, max_new_tokens=5, seed=1)])
        assert text == (await engines[0].generate(PROMPT, max_new_tokens=5, seed=1)).text
        with pytest.raises(InvalidRequestError) as refused:
            await read(llm, PROMPT, {"top_p": 3})
        assert refused.value.parameter == "top_p"
        with pytest.raises(InvalidRequestError, match="through `events"):
            async for _ in typed.stream(PROMPT, n=2, max_new_tokens=3):
                pass
    assert not llm.is_healthy


async def test_metrics_are_the_last_received_if_the_board_is_lost(
    engines: tuple[AsyncLLM, AsyncLLM],
) -> None:
    async def lost() -> dict[str, Any]:
        raise ReplicaLostError("the board is away")

    async def too_many() -> dict[str, Any]:
        raise MessageTooLargeError("too many engines")

    async def empty() -> dict[str, Any]:
        return {}

    calls = LocalCalls(*engines)
    async with RemoteLLM(calls, facts_of(engines[0])) as llm:
        calls.silent = empty
        assert await llm.measure() == llm._facts.metrics
        calls.silent = None
        both = await llm.measure()
        for kind in (empty, lost, too_many, anyio.sleep_forever):
            calls.silent = kind
            assert await llm.measure() == both


class NarrowCalls(LocalCalls):
    """Nothing can cross.

    Attributes:
        asked: How many questions there were.
    """

    asked = 0

    def stream(self, order: StreamRequest) -> Any:
        self.requests.append(order)
        return NarrowCall()

    async def ask(self, kind: Any, *given: Any) -> Any:
        self.asked += 1
        raise MessageTooLargeError("9 bytes")


class NarrowCall:
    async def next(self) -> Any:
        raise MessageTooLargeError("9 bytes")

    def close(self) -> None:
        pass


async def test_too_large_message_is_sent_only_once(
    engines: tuple[AsyncLLM, AsyncLLM],
) -> None:
    calls = NarrowCalls(*engines)
    async with RemoteLLM(calls, facts_of(engines[0])) as llm:
        with pytest.raises(MessageTooLargeError, match="9 bytes"):
            async with llm.stream(PROMPT):
                pass
        with pytest.raises(MessageTooLargeError, match="9 bytes"):
            await llm.embed([PROMPT])
    assert (len(calls.requests), calls.asked) == (1, 1)


async def test_a_stream_that_is_lost_too_often_ends_with_its_text(
    engines: tuple[AsyncLLM, AsyncLLM],
) -> None:
    lives = iter([6, *[0] * 50])
    calls = LocalCalls(*engines, messages=lambda: next(lives))
    async with RemoteLLM(calls, facts_of(engines[0])) as llm:
        stream = llm.stream(PROMPT, max_new_tokens=900, eos_token_id=[], seed=1)
        with pytest.raises(LostStreamError) as lost:
            async for _ in stream.events():
                pass
        assert isinstance(lost.value, EngineDiedError)
        assert lost.value.generated_ids == (stream.result.token_ids,)
        assert lost.value.texts == (stream.result.text,)
        assert stream.result.finish_reason == "error"
    assert len(calls.requests) <= 8


async def test_cancelling_and_leaving(engines: tuple[AsyncLLM, AsyncLLM]) -> None:
    endless: Any = {"max_new_tokens": 900, "eos_token_id": [], "seed": 1}
    async with RemoteLLM(LocalCalls(*engines), facts_of(engines[0])) as llm:
        stream = llm.stream(PROMPT, **endless)
        events = []
        async for event in stream.events():
            events.append(event)
            if len(events) == 3:
                stream.cancel()
        assert events[-1].finish_reason == "cancelled" and events[-1].usage is not None
        assert stream.result.finish_reason == "cancelled"
        assert stream.position == (len(stream.result.token_ids),)
        early = llm.stream(PROMPT, **endless)
        early.cancel()
        assert [event async for event in early.events()][-1].finish_reason == "cancelled"
        async with llm.stream(PROMPT, **endless) as left:
            async for _ in left.events():
                break
        assert left.result.finish_reason == "cancelled"
        with anyio.fail_after(10):
            for engine in engines:
                await idle(engine)
        hanging = llm.stream(PROMPT, **endless)
        await anext(hanging.events())
    assert hanging.result.finish_reason == "cancelled"


async def test_an_answer_that_has_begun_waits_for_a_free_engine(
    engines: tuple[AsyncLLM, AsyncLLM],
) -> None:
    calls = LocalCalls(*engines)

    def fill() -> int | None:
        calls.full = 3 if len(calls.requests) == 1 else 0
        return 2 if calls.full else None

    calls.messages = fill
    async with RemoteLLM(calls, facts_of(engines[0])) as llm:
        events = llm.stream(PROMPT, max_new_tokens=600, do_sample=False).events()
        first = await anext(events)
        rest = [event async for event in events]
        assert len(calls.requests) == 5 and llm.num_resumed == 1
        ids = [token_id for event in (first, *rest) for token_id in event.token_ids]
        expected = await engines[0].generate(PROMPT, max_new_tokens=600, do_sample=False)
        assert ids == list(expected.token_ids)
        calls.full = 1
        with pytest.raises(OverloadedError):
            await read(llm, PROMPT, {"max_new_tokens": 2})


async def test_answer_without_free_engine_ends_with_its_text_so_far(
    engines: tuple[AsyncLLM, AsyncLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump, "PATIENCE", 0.0)
    calls = LocalCalls(*engines)

    def fill() -> int:
        calls.full = 9
        return 3

    calls.messages = fill
    async with RemoteLLM(calls, facts_of(engines[0])) as llm:
        stream = llm.stream(PROMPT, max_new_tokens=600, eos_token_id=[], seed=1)
        with pytest.raises(LostStreamError, match="were full for 0 s") as lost:
            async for _ in stream.events():
                pass
        assert lost.value.generated_ids == (stream.result.token_ids,) != ((),)
        assert isinstance(lost.value.__cause__, OverloadedError)


def test_events_cross_as_they_are() -> None:
    logprobs = (TokenLogprob(3, "c", -0.5, (TopLogprob(3, "c", -0.5),)),)
    usage, timing = Usage(3, 4, fingerprint="f"), Timing(0.1, 0.2, 0.3, 4.0)
    calls = (ToolCallDelta(0, "id", "name", "{}"),)
    events = [
        TokenEvent(0, (1, 2), "ab", time=0.25),
        TokenEvent(1, (3,), "c", logprobs, 0.5, reasoning="so", prompt_logprobs=(None,)),
        TokenEvent(1, (), "", None, 0.75, "stop", "!", usage, timing, tool_calls=calls),
    ]
    crossed = pickle.loads(pickle.dumps(packed(events)))
    assert list(unpacked(crossed)) == events and len(crossed[0]) == 4
    later = [replace(event, time=event.time + 2) for event in events]
    assert list(unpacked(crossed, 2.0)) == later


async def test_a_result_without_the_logprobs_that_events_have(
    engines: tuple[AsyncLLM, AsyncLLM],
) -> None:
    async with RemoteLLM(LocalCalls(*engines), facts_of(engines[0])) as llm:
        stream = llm.stream(PROMPT, max_new_tokens=4, top_logprobs=2, prompt_logprobs=1, seed=1)
        stream.drop_logprobs()
        events = [event async for event in stream.events()]
        assert sum(len(event.logprobs or ()) for event in events) == 4
        assert any(event.prompt_logprobs for event in events)
        assert stream.result.prompt_logprobs is None
        assert not stream.result.samples[0].logprobs and len(stream.result.token_ids) == 4


async def test_position_counts_the_tokens_read(engines: tuple[AsyncLLM, AsyncLLM]) -> None:
    async with RemoteLLM(LocalCalls(*engines), facts_of(engines[0])) as llm:
        stream = llm.stream(PROMPT, max_new_tokens=40, n=2, seed=1, generated_ids=[[5, 6], [7]])
        counts = [2, 1]
        async for event in stream.events():
            counts[event.index] += len(event.token_ids)
            assert stream.position == tuple(counts)


def test_a_beginning_is_that_of_a_conversation_and_costs_no_more_than_a_little() -> None:
    question = {"role": "user", "content": "Why? " * 10}
    first, later = [question], [question, {"role": "assistant", "content": "So."}, question]
    assert session_of(first, {}) == session_of(later, {})
    assert session_of(first, {}) != session_of(first, {"cache_salt": "a"})
    assert session_of("a" * 600, {}) == session_of("a" * 700, {}) != session_of("b" * 600, {})
    long, longer = ([{"role": "user", "content": "x" * size}] for size in (600, 700))
    assert session_of(long, {}) == session_of(longer, {})
