"""A stream gives exact text, may be left in any way, and always ends."""

from __future__ import annotations

import gc
import random
import threading
import time
import tracemalloc
import weakref
from typing import TYPE_CHECKING, Any

import anyio
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.engine.kv_cache.block_pool import BlockPool
from asyncgen.engine.output.sample_builder import SampleBuilder
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.base import LogitsProcessorList
from asyncgen.llm.llm import AsyncLLM, TextStream
from asyncgen.types import Sample, TokenEvent, TokenLogprob
from tests.cases import for_each
from tests.doubles.engine import (
    greedy_ids,
    in_thread,
    no_thread_left,
    probe,
    raw_logits,
    sampled_ids,
)
from tests.doubles.models import EOS, PATIENCE, Gate, TableModel, byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

__all__ = ["no_thread_left"]

pytestmark = pytest.mark.anyio

PROMPT = "abc"
PROMPT_IDS = list(PROMPT.encode())
LONG = "abcdefghij" * 40
"""A script whose every token is one character."""


def make(model: Any, **options: Any) -> AsyncLLM:
    """An `AsyncLLM` over a model object."""
    return AsyncLLM(model, tokenizer=byte_tokenizer(), **options)


def text_of(ids: list[int]) -> str:
    """Decode bytes, without special tokens."""
    return bytes(token for token in ids if token < EOS).decode(errors="replace")


async def read(stream: TextStream) -> str:
    """All text of a stream."""
    return "".join([text async for text in stream])


async def read_events(stream: TextStream) -> list[TokenEvent]:
    """All events of a stream."""
    return [event async for event in stream.events()]


# Text and events.


@for_each("seed", [None, 0, 7, -1, -(2**63), 2**64 - 1])
async def test_joined_text_is_the_decoded_answer(seed: int | None) -> None:
    model = TableModel(eos_bias=2.0)
    params: dict[str, Any] = {} if seed is None else {"seed": seed, "do_sample": True, "top_k": 0}
    async with make(model) as llm:
        stream = llm.stream(PROMPT, max_new_tokens=60, **params)
        text = await read(stream)
    if seed is None:
        ids = greedy_ids(model, PROMPT_IDS, 60)
    else:
        ids = sampled_ids(model, PROMPT_IDS, 60, seed=seed)
    assert stream.result.token_ids == tuple(ids)
    assert text == stream.result.text == text_of(ids)
    assert stream.result.finish_reason == ("stop" if ids[-1] == EOS else "length")
    assert stream.result.stop_reason == (EOS if ids[-1] == EOS else None)


async def test_a_character_that_the_prompt_began_is_completed() -> None:
    head, tail = "aé".encode()[:2], "é漢".encode()[1:]
    model = TableModel(script=list(tail), prompt_length=len(head))
    async with make(model) as llm:
        assert await read(llm.stream(list(head))) == "é漢"


async def test_messages_go_through_the_chat_template() -> None:
    tokenizer = byte_tokenizer()
    messages = [{"role": "user", "content": "hi"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    model = TableModel()
    async with make(model) as llm:
        stream = llm.stream(messages, max_new_tokens=20)
        text = await read(stream)
    ids = greedy_ids(model, prompt, 20)
    assert stream.result.usage.prompt_tokens == len(prompt)
    assert stream.result.token_ids == tuple(ids)
    assert text == tokenizer.decode(ids, skip_special_tokens=True)


async def test_parts_of_a_content_are_its_text() -> None:
    lines = [{"role": "user", "content": "hi\nyou"}]
    parts = [{"type": "text", "text": "hi"}, {"type": "text", "text": "you"}]
    messages = [{"role": "user", "content": parts}]
    async with make(TableModel()) as llm:
        same = await llm.generate(lines, max_new_tokens=5)
        assert (await llm.generate(messages, max_new_tokens=5)).token_ids == same.token_ids
        assert await llm.count_tokens(messages) == await llm.count_tokens(lines)
        parts[1] = {"type": "image", "url": "x"}
        with pytest.raises(InvalidRequestError, match=r"`messages\[0\].content\[1\].type` is 'im"):
            await llm.generate(messages)


async def test_variables_of_the_chat_template() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}{{ '!' * (louder or 0) }}"
    messages = [{"role": "user", "content": "hi"}]
    async with AsyncLLM(TableModel(), tokenizer=tokenizer) as llm:
        plain = await llm.generate(messages, max_new_tokens=1)
        louder: dict[str, Any] = {"chat_template_kwargs": {"louder": 5, "unread": [1]}}
        loud = await llm.generate(messages, max_new_tokens=1, **louder)
        assert loud.usage.prompt_tokens == plain.usage.prompt_tokens + 5
        assert await llm.count_tokens(messages, **louder) == loud.usage.prompt_tokens
        await llm.generate("hi", max_new_tokens=1, chat_template_kwargs={})
        for prompt in ("hi", [1, 2]):
            with pytest.raises(InvalidRequestError, match="`chat_template_kwargs`.*only messages"):
                await llm.generate(prompt, **louder)
        with pytest.raises(InvalidRequestError, match="`tools` is no variable"):
            await llm.generate(messages, chat_template_kwargs={"tools": []})


async def test_token_ids_are_a_prompt() -> None:
    model = TableModel()
    async with make(model) as llm:
        stream = llm.stream(PROMPT_IDS, max_new_tokens=9)
        await read(stream)
    assert stream.result.token_ids == tuple(greedy_ids(model, PROMPT_IDS, 9))


async def test_special_tokens_are_left_out_unless_asked_for() -> None:
    model = TableModel(script=[65, 258, 66], prompt_length=1)
    async with make(model) as llm:
        assert await read(llm.stream([1])) == "AB"
        assert await read(llm.stream([1], skip_special_tokens=False)) == "A<start>B<eos>"


async def test_an_incomplete_character_at_the_end_is_shown_as_such() -> None:
    model = TableModel(script=list("aé".encode()[:2]), prompt_length=1)
    async with make(model) as llm:
        assert await read(llm.stream([1])) == "a\ufffd"
        assert await read(llm.stream([1], max_new_tokens=2)) == "a\ufffd"


async def test_each_character_is_out_at_the_step_that_completes_it() -> None:
    gate = Gate()
    model = TableModel(script="aé漢b", prompt_length=1, hook=gate)
    async with make(model) as llm, llm.stream([1]) as stream:
        for text, steps in (("a", 1), ("é", 2), ("漢", 3), ("b", 1)):
            gate.allow(steps)
            assert await anext(stream) == text
        gate.open()


async def test_unread_text_is_merged() -> None:
    gate = Gate()
    model = TableModel(script="abcdefgh", prompt_length=1, hook=gate)
    async with make(model) as llm, llm.stream([1]) as stream:
        gate.allow(5)
        await in_thread(lambda: gate.wait_arrived(6))
        assert await anext(stream) == "abcde"
        gate.open()
        await in_thread(lambda: gate.wait_arrived(9))


async def test_events_of_a_stream_tell_all() -> None:
    model = TableModel(script="aé", prompt_length=3)
    async with make(model) as llm:
        events = await read_events(llm.stream(PROMPT))
    assert [event.token_ids for event in events] == [(97,), (0xC3,), (0xA9,), (EOS,)]
    assert [event.text for event in events] == ["a", "", "é", ""]
    assert [event.finish_reason for event in events] == [None, None, None, "stop"]
    assert [event.index for event in events] == [0] * 4
    assert all(event.logprobs is None for event in events)
    times = [event.time for event in events]
    assert times == sorted(times)
    last = events[-1]
    assert all(event.usage is None and event.timing is None for event in events[:-1])
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (3, 4)
    assert last.usage.total_tokens == 7


async def test_timings_are_in_order() -> None:
    async with make(TableModel()) as llm:
        completion = await llm.generate(PROMPT, max_new_tokens=20)
    timing = completion.timing
    assert timing.queue is not None and timing.first_token is not None
    assert 0 <= timing.queue <= timing.first_token <= timing.total < PATIENCE
    assert timing.tokens_per_second is not None and timing.tokens_per_second > 0
    rest = timing.total - timing.first_token
    assert timing.per_token == pytest.approx(rest / 19, rel=0.5)


async def test_one_token_has_no_rate() -> None:
    async with make(TableModel()) as llm:
        timing = (await llm.generate(PROMPT, max_new_tokens=1)).timing
    assert timing.tokens_per_second is None
    assert timing.per_token is None


@pytest.mark.parametrize("params", [{}, {"temperature": 0.5, "seed": 3, "top_k": 5}])
async def test_logprobs_are_of_the_raw_distribution(params: dict[str, Any]) -> None:
    model, tokenizer = TableModel(), byte_tokenizer()
    async with make(model) as llm:
        completion = await llm.generate(PROMPT, max_new_tokens=8, top_logprobs=4, **params)
    assert completion.logprobs is not None
    ids = list(PROMPT_IDS)
    for entry, token in zip(completion.logprobs, completion.token_ids, strict=True):
        expected = torch.log_softmax(raw_logits(model, ids), dim=-1)
        best = expected.topk(4)
        assert entry.token_id == token
        assert entry.token == tokenizer.decode([token])
        assert entry.logprob == pytest.approx(float(expected[token]), abs=1e-6)
        assert [each.token_id for each in entry.top] == best.indices.tolist()
        assert [each.logprob for each in entry.top] == pytest.approx(best.values.tolist())
        assert [each.token for each in entry.top] == [
            tokenizer.decode([each]) for each in best.indices.tolist()
        ]
        ids.append(token)


async def test_a_result_without_the_logprobs_that_events_have() -> None:
    async with AsyncLLM("demo", num_threads=1) as llm:
        params: dict[str, Any] = {"max_new_tokens": 4, "seed": 1}
        params |= {"top_logprobs": 2, "prompt_logprobs": 1}
        whole = await llm.generate(PROMPT, **params)
        stream = llm.stream(PROMPT, **params)
        stream.drop_logprobs()
        events = [event async for event in stream.events()]
    assert whole.logprobs is not None and whole.prompt_logprobs is not None
    found = [entry for event in events for entry in event.logprobs or ()]
    assert found == list(whole.logprobs)
    told = [event.prompt_logprobs for event in events if event.prompt_logprobs is not None]
    assert told == [whole.prompt_logprobs]
    assert stream.result.logprobs is None and stream.result.prompt_logprobs is None
    assert stream.result.token_ids == whole.token_ids and stream.result.usage == whole.usage


async def test_logprobs_of_a_processor_that_writes_in_place() -> None:
    def ban(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, 100:] = -torch.inf
        return scores

    model = TableModel()
    async with make(model) as llm:
        completion = await llm.generate(
            PROMPT, max_new_tokens=4, logprobs=True, logits_processor=LogitsProcessorList([ban])
        )
    assert completion.logprobs is not None
    ids = list(PROMPT_IDS)
    for entry in completion.logprobs:
        assert entry.token_id < 100
        expected = torch.log_softmax(raw_logits(model, ids), dim=-1)
        assert entry.logprob == pytest.approx(float(expected[entry.token_id]), abs=1e-6)
        assert entry.top == ()
        ids.append(entry.token_id)


async def test_several_samples_come_through_events() -> None:
    model = TableModel(eos_bias=2.0)
    async with make(model) as llm:
        stream = llm.stream(PROMPT, n=3, do_sample=True, top_k=0, seed=5, max_new_tokens=40)
        events = await read_events(stream)
        named = await llm.generate(
            PROMPT, num_return_sequences=3, do_sample=True, top_k=0, seed=5, max_new_tokens=40
        )
    expected = [sampled_ids(model, PROMPT_IDS, 40, seed=5, row=row) for row in range(3)]
    for row, ids in enumerate(expected):
        own = [event for event in events if event.index == row]
        assert [token for event in own for token in event.token_ids] == ids
        assert "".join(event.text for event in own) == text_of(ids)
        assert [event.finish_reason is not None for event in own] == [False] * (len(own) - 1) + [
            True
        ]
    assert [event.usage is not None for event in events] == [False] * (len(events) - 1) + [True]
    result = stream.result
    assert [sample.index for sample in result.samples] == [0, 1, 2]
    assert [list(sample.token_ids) for sample in result.samples] == expected
    assert result.usage.completion_tokens == sum(map(len, expected))
    assert [list(sample.token_ids) for sample in named.samples] == expected


async def test_text_of_several_samples_is_refused() -> None:
    model = TableModel()
    async with make(model) as llm:
        stream = llm.stream(PROMPT, n=2, do_sample=True)
        with pytest.raises(InvalidRequestError, match="events") as caught:
            await read(stream)
        assert caught.value.parameter == "num_return_sequences"
        assert await probe(llm, model) <= 1


async def test_a_stream_left_early_has_a_result_for_every_sample() -> None:
    gate = Gate()
    async with make(TableModel(hook=gate)) as llm:
        async with llm.stream(PROMPT, n=3, do_sample=True) as stream:
            gate.allow()
            await anext(stream.events())
        gate.open()
    assert [sample.index for sample in stream.result.samples] == [0, 1, 2]
    assert {sample.finish_reason for sample in stream.result.samples} == {"cancelled"}


# What a stream says of itself.


async def test_repr_of_a_stream_shows_its_progress() -> None:
    gate = Gate()
    async with make(TableModel(script="abcdef", prompt_length=3, hook=gate)) as llm:
        stream = llm.stream(PROMPT)
        assert repr(stream) == "<TextStream not started: prompt of 3 characters, 0 tokens read>"
        assert "prompt of 1 message," in repr(llm.stream([{"role": "user", "content": "secret"}]))
        assert "prompt of 2 tokens" in repr(llm.stream([1, 2]))
        gate.allow(2)
        await anext(stream)
        assert repr(stream).startswith("<TextStream running: prompt of 3 tokens, ")
        gate.open()
        await read(stream)
        assert repr(stream) == "<TextStream ended (stop): prompt of 3 tokens, 7 tokens read>"
        failed = llm.stream(PROMPT, max_new_tokens=-1)
        with pytest.raises(InvalidRequestError):
            await anext(failed)
        assert "failed (InvalidRequestError): prompt of 3 characters" in repr(failed)


async def test_repr_of_a_closed_stream_reports_the_close() -> None:
    async with make(TableModel(context_length=100_000)) as llm:
        left = llm.stream(PROMPT, max_new_tokens=90_000)
        await anext(left)
        await left.aclose()
        assert repr(left).startswith("<TextStream left: prompt of 3 tokens, ")


async def test_a_stream_that_is_read_in_a_wrong_way_says_what_to_write() -> None:
    async with make(TableModel(script="ab", prompt_length=3)) as llm:
        stream: Any = llm.stream(PROMPT)
        with pytest.raises(TypeError, match=r"not awaited: .*`async for .*`await llm.generate"):
            await stream
        with pytest.raises(TypeError, match=r"`async for`, .*`await llm.generate"):
            list(stream)
        assert await read(stream) == "ab"


# Stop strings.


def cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop string that is complete first, by trying every place."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(max_examples=40, deadline=None)
@given(
    text=st.text("abé", max_size=24),
    stops=st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_no_part_of_a_stop_string_leaks(text: str, stops: list[str]) -> None:
    model = TableModel(script=text, prompt_length=1)
    expected, stop = cut(text, stops)

    async def main() -> None:
        async with make(model) as llm:
            stream = llm.stream([1], stop=stops)
            shown = ""
            async for piece in stream:
                assert piece
                shown += piece
                assert expected.startswith(shown)
            assert shown == expected == stream.result.text
            assert stream.result.finish_reason == "stop"
            assert stream.result.stop_reason == (EOS if stop is None else stop)
            if stop is not None:
                ids = list((expected + stop).encode())
                assert list(stream.result.token_ids) == ids
                assert model.num_forwards == len(ids)

    anyio.run(main)


async def test_the_documented_stop_strings_stay_in_the_text() -> None:
    async with make(TableModel(script="abcdef", prompt_length=1)) as llm:
        documented = await llm.generate([1], stop_strings=["cd"])
        ours = await llm.generate([1], stop="cd")
    assert (documented.text, documented.finish_reason) == ("abcd", "stop")
    assert (ours.text, ours.finish_reason, ours.stop_reason) == ("ab", "stop", "cd")


async def test_text_held_for_a_stop_string_comes_at_the_end() -> None:
    async with make(TableModel(script="abc", prompt_length=1)) as llm:
        completion = await llm.generate([1], stop="bcd", max_new_tokens=3)
        assert (completion.text, completion.finish_reason) == ("abc", "length")


async def test_samples_stop_independently() -> None:
    model = TableModel()
    async with make(model) as llm:
        whole = await llm.generate(PROMPT, n=4, do_sample=True, seed=1, max_new_tokens=30)
        stops = [whole.samples[0].text[3], whole.samples[1].text[9]]
        stopped = await llm.generate(
            PROMPT, n=4, do_sample=True, seed=1, max_new_tokens=30, stop=stops
        )
    for before, after in zip(whole.samples, stopped.samples, strict=True):
        text, stop = cut(before.text, stops)
        assert (after.text, after.stop_reason) == (text, stop)
        assert after.finish_reason == ("length" if stop is None else "stop")


# Leaving.


async def leave_by_break(stream: TextStream, ready: Callable[[], Awaitable[None]]) -> None:
    got = ""
    async for text in stream:
        got += text
        if len(got) == 3:
            await ready()
            break


async def leave_events_by_break(stream: TextStream, ready: Callable[[], Awaitable[None]]) -> None:
    count = 0
    async for event in stream.events():
        count += len(event.token_ids)
        if count == 3:
            await ready()
            break


async def leave_by_aclose(stream: TextStream, ready: Callable[[], Awaitable[None]]) -> None:
    await read_three(stream)
    await ready()
    await stream.aclose()
    await stream.aclose()


async def leave_reader_by_aclose(stream: TextStream, ready: Callable[[], Awaitable[None]]) -> None:
    reader = stream.events()
    for _ in range(3):
        await anext(reader)
    await ready()
    await reader.aclose()  # type: ignore[attr-defined]


async def leave_by_async_with(stream: TextStream, ready: Callable[[], Awaitable[None]]) -> None:
    async with stream:
        await read_three(stream)
        await ready()


async def leave_by_exception(stream: TextStream, ready: Callable[[], Awaitable[None]]) -> None:
    got = ""
    with pytest.raises(ZeroDivisionError):
        async for text in stream:
            got += text
            if len(got) == 3:
                await ready()
                raise ZeroDivisionError


async def leave_by_cancelled_task(stream: TextStream, ready: Callable[[], Awaitable[None]]) -> None:
    async def reader() -> None:
        await read(stream)

    async with anyio.create_task_group() as group:
        group.start_soon(reader)
        await ready()
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()


async def leave_by_timeout(stream: TextStream, ready: Callable[[], Awaitable[None]]) -> None:
    await read_three(stream)
    await ready()
    with anyio.move_on_after(0.01) as scope:
        await read(stream)
    assert scope.cancelled_caught


async def leave_by_generator(stream: TextStream, ready: Callable[[], Awaitable[None]]) -> None:
    async def pieces() -> Any:
        async with stream:
            async for text in stream:
                yield text

    got, generator = "", pieces()
    async for text in generator:
        got += text
        if len(got) == 3:
            await ready()
            break
    await generator.aclose()


WAYS = [
    leave_by_break,
    leave_events_by_break,
    leave_by_aclose,
    leave_reader_by_aclose,
    leave_by_async_with,
    leave_by_exception,
    leave_by_cancelled_task,
    leave_by_timeout,
    leave_by_generator,
]


async def read_three(stream: TextStream) -> None:
    """Read three characters without a reader that could be dropped."""
    got = ""
    while len(got) < 3:
        got += await anext(stream)


@for_each("leave", WAYS)
async def test_leaving_cancels_within_one_step(
    leave: Callable[[TextStream, Callable[[], Awaitable[None]]], Awaitable[None]],
) -> None:
    gate = Gate()
    model = TableModel(script=LONG, prompt_length=3, hook=gate)

    async def ready() -> None:
        # The decode thread stands inside of the fourth forward pass, nothing is unread.
        await in_thread(lambda: gate.wait_arrived(4))

    gc.disable()
    try:
        async with make(model) as llm:
            gate.allow(3)
            stream = llm.stream(PROMPT)
            await leave(stream, ready)
            frozen = stream.result
            gate.open()
            assert await probe(llm, model) == 0
            assert stream.result is frozen
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
    finally:
        gc.enable()
    assert frozen.text == "abc"
    assert frozen.token_ids == tuple(b"abc")
    assert frozen.finish_reason == "cancelled"
    assert frozen.usage.prompt_tokens == 3
    assert frozen.usage.completion_tokens == 3
    assert frozen.timing.first_token is not None
    assert frozen.timing.total >= frozen.timing.first_token


@pytest.mark.parametrize("what", ["stream", "reader"])
async def test_dropping_cancels_silently(what: str) -> None:
    gate = Gate()
    model = TableModel(script=LONG, prompt_length=3, hook=gate)
    gc.disable()
    try:
        async with make(model) as llm:
            gate.allow(3)
            stream: TextStream | None = llm.stream(PROMPT)
            assert stream is not None
            reader = stream.events()
            if what == "stream":
                async with stream:
                    pass
                stream = llm.stream(PROMPT)
                await read_three(stream)
                gate.wait_arrived(4)
                gone = weakref.ref(stream)
                stream = None
                assert gone() is None
            else:
                await anext(reader)
                await anext(reader)
                await anext(reader)
                gate.wait_arrived(4)
            del reader
            gate.open()
            assert await probe(llm, model) == 0
    finally:
        gc.enable()


async def test_a_stream_is_dropped_in_another_thread() -> None:
    gate = Gate()
    model = TableModel(script=LONG, prompt_length=3, hook=gate)
    async with make(model) as llm:
        gate.allow(3)
        box = [llm.stream(PROMPT)]
        await read_three(box[0])
        await in_thread(lambda: gate.wait_arrived(4))
        await in_thread(box.clear)
        gate.open()
        assert await probe(llm, model) == 0


async def test_cancel_from_another_thread_lets_the_reader_read_to_the_end() -> None:
    gate = Gate()
    model = TableModel(script=LONG, prompt_length=3, hook=gate)
    async with make(model) as llm:
        gate.allow(3)
        stream = llm.stream(PROMPT)
        await read_three(stream)
        await in_thread(lambda: gate.wait_arrived(4))
        await in_thread(stream.cancel)
        await in_thread(stream.cancel)
        with pytest.raises(RuntimeError, match="no result"):
            _ = stream.result
        gate.open()
        assert await read(stream) == "d"
        assert stream.result.finish_reason == "cancelled"
        assert stream.result.text == "abcd"
        assert stream.result.timing.queue is not None
        assert await probe(llm, model) == 0


async def test_a_stream_that_was_cancelled_first_computes_nothing() -> None:
    model = TableModel()
    async with make(model) as llm:
        stream = llm.stream(PROMPT)
        stream.cancel()
        assert await read(stream) == ""
    assert stream.result.finish_reason == "cancelled"
    assert stream.result.usage.prompt_tokens == 3
    assert model.num_forwards == 0


async def test_a_stream_left_before_its_start_computes_nothing() -> None:
    model = TableModel()
    async with make(model) as llm:
        stream = llm.stream(PROMPT)
        await stream.aclose()
        assert await read(stream) == ""
        assert stream.result.finish_reason == "cancelled"
        assert stream.result.token_ids == ()
        del stream
        llm.stream(PROMPT)
    assert model.num_forwards == 0


async def test_a_finished_stream_can_be_left_and_keeps_its_reason() -> None:
    async with make(TableModel(script="ab", prompt_length=3)) as llm:
        stream = llm.stream(PROMPT)
        assert await read(stream) == "ab"
        stream.cancel()
        await stream.aclose()
        assert stream.result.finish_reason == "stop"


@for_each("way", ["leave", "cancel", "drop", "task"])
async def test_a_queued_request_never_starts(way: str) -> None:
    gate = Gate()
    model = TableModel(hook=gate)
    async with make(model, max_running=1) as llm:
        first = llm.stream(PROMPT, max_new_tokens=30)
        async with first:
            await in_thread(lambda: gate.wait_arrived(1))
            second = llm.stream("xy" * 10, max_new_tokens=30)
            await second.__aenter__()
            if way == "leave":
                await second.aclose()
            elif way == "task":
                with anyio.move_on_after(0.01):
                    await anext(second)
            elif way == "cancel":
                second.cancel()
                gate.allow()
                # It ends though the first one still stands in its second step.
                assert await read(second) == ""
            result = second.result if way != "drop" else None
            del second
            gate.open()
            await read(first)
    assert all(shape[1] < 20 for shape in model.core.forwards)
    if result is not None:
        assert result.finish_reason == "cancelled"
        assert result.usage.prompt_tokens == 20
        assert result.usage.completion_tokens == 0


@for_each("way", ["leave", "cancel", "task"])
async def test_a_prefill_ends_between_two_chunks(way: str) -> None:
    gate = Gate()
    model = TableModel(hook=gate)
    async with make(model, prefill_chunk_size=4) as llm:
        stream = llm.stream(list(range(40)))
        async with stream:
            gate.allow(2)
            await in_thread(lambda: gate.wait_arrived(3))
            if way == "leave":
                await stream.aclose()
            elif way == "task":
                with anyio.move_on_after(0.01):
                    await anext(stream)
            else:
                stream.cancel()
                gate.open()
                assert await read(stream) == ""
        gate.open()
        assert await probe(llm, model) == 0
        assert model.core.forwards[:3] == [(1, 4)] * 3
        assert len(model.core.forwards) == 3 + 8
        assert stream.result.finish_reason == "cancelled"
        assert stream.result.timing.first_token is None


async def test_chunks_of_a_prompt_give_the_same_answer() -> None:
    for chunk in (1, 3, 7, 256):
        model = TableModel()
        async with make(model, prefill_chunk_size=chunk) as llm:
            completion = await llm.generate(list(range(20)), max_new_tokens=5)
        assert completion.token_ids == tuple(greedy_ids(model, list(range(20)), 5))
        assert max(shape[1] for shape in model.core.forwards) == min(chunk, 20)


async def test_closing_from_another_task_ends_a_waiting_reader() -> None:
    gate = Gate()
    model = TableModel(script=LONG, prompt_length=3, hook=gate)
    async with make(model) as llm:
        stream = llm.stream(PROMPT)
        texts: list[str] = []

        async def reader() -> None:
            texts.extend([text async for text in stream])

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(reader)
                await in_thread(lambda: gate.wait_arrived(1))
                await anyio.wait_all_tasks_blocked()
                await stream.aclose()
        assert texts == []
        assert stream.result.finish_reason == "cancelled"
        gate.open()
        assert await probe(llm, model) == 0


async def test_dropping_a_second_reader_ends_a_waiting_one() -> None:
    gate = Gate()
    model = TableModel(script=LONG, prompt_length=3, hook=gate)
    async with make(model) as llm:
        stream = llm.stream(PROMPT)
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(read, stream)
                await in_thread(lambda: gate.wait_arrived(1))
                await anyio.wait_all_tasks_blocked()
                stream.events()
                gate.open()
        assert stream.result.finish_reason == "cancelled"


@pytest.mark.parametrize("started", [False, True])
async def test_a_second_reader_at_the_same_time_is_refused_and_harms_nothing(
    started: bool,
) -> None:
    gate = Gate()
    model = TableModel(script="abc", prompt_length=3, hook=gate)
    async with make(model) as llm:
        stream = llm.stream(PROMPT)
        texts: list[str] = []

        async def reader() -> None:
            while True:
                try:
                    texts.append(await anext(stream))
                except StopAsyncIteration:
                    return

        async with anyio.create_task_group() as group:
            group.start_soon(reader)
            if started:
                await in_thread(lambda: gate.wait_arrived(1))
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(anyio.BusyResourceError):
                await anext(stream)
            gate.open()
        assert "".join(texts) == "abc"
    assert stream.result.finish_reason == "stop"
    assert model.num_forwards == 4


@for_each("steps", range(6))
async def test_cancelled_at_every_await_of_its_start(steps: int) -> None:
    model = TableModel()
    async with make(model) as llm:
        stream = llm.stream(PROMPT)
        async with anyio.create_task_group() as group:
            group.start_soon(read, stream)
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        assert await probe(llm, model) <= 1
        assert stream.result.finish_reason in ("cancelled", "length")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_loop_that_ended_is_a_reader_that_left(backend: str) -> None:
    gate = Gate()
    model = TableModel(script=LONG, prompt_length=3, hook=gate)
    llm = make(model)

    async def begin() -> TextStream:
        stream = llm.stream(PROMPT)
        gate.allow(3)
        await read_three(stream)
        return stream

    async def finish() -> None:
        # Nobody waits, so it is noticed when the bell is tried, every so many unread events.
        assert await probe(llm, model, steps=40) <= 20
        assert await probe(llm, model) == 0
        with anyio.fail_after(PATIENCE):
            assert await read(stream) == ""
        assert stream.result.finish_reason == "cancelled"
        assert stream.result.text == "abc"
        await llm.aclose()

    stream = anyio.run(begin, backend=backend)
    gate.open()
    anyio.run(finish, backend=backend)


@pytest.mark.parametrize("other", ["asyncio", "trio"])
async def test_a_stream_is_read_in_the_loop_of_another_thread(other: str) -> None:
    model = TableModel(script=LONG, prompt_length=3)
    async with make(model) as llm:
        stream = llm.stream(PROMPT)
        first = await anext(stream)
        texts: list[str] = []

        async def rest() -> None:
            texts.append(await read(stream))

        await in_thread(lambda: anyio.run(rest, backend=other))
        assert first + texts[0] == LONG


async def test_a_stream_begun_in_a_loop_that_ended_is_read_in_another() -> None:
    # The mailbox is bound to the loop it was made in until somebody waits in another one.
    model = TableModel(script=LONG, prompt_length=3)
    async with make(model) as llm:
        made: list[TextStream] = []

        async def begin() -> None:
            made.append(llm.stream(PROMPT))

        await in_thread(lambda: anyio.run(begin))
        with anyio.fail_after(PATIENCE):
            await read(made[0])
        assert made[0].result.finish_reason in ("stop", "cancelled")


async def leave_at_random(stream: TextStream, rng: random.Random) -> None:
    """Read some characters, then leave in one of many ways."""
    enough = rng.randrange(6)
    way = rng.choice(["break", "events", "aclose", "task", "timeout", "cancel", "drop", "with"])
    if way == "timeout":
        with anyio.move_on_after(rng.random() * 0.004):
            await read(stream)
        return
    if way == "task":
        async with anyio.create_task_group() as group:
            group.start_soon(read, stream)
            for _ in range(enough):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        return
    if way == "with":
        async with stream:
            return
    if way == "events":
        async for event in stream.events():
            if event.time and enough == 0:
                break
            enough -= 1
        return
    got = 0
    async for text in stream:
        got += len(text)
        if got >= enough:
            break
    if way == "aclose":
        await stream.aclose()
    elif way == "cancel":
        stream.cancel()


def kept_pages() -> int:
    """Pages that engines keep for prompts with the same beginning."""
    return sum(thing.num_kept for thing in gc.get_objects() if type(thing) is BlockPool)


async def cancel_many(count: int, backend_seed: int) -> None:
    """Leave so many streams; each time the decode thread is idle within one step."""
    rng = random.Random(backend_seed)
    model = TableModel(context_length=4096)
    process = psutil.Process()
    async with make(model, prefill_chunk_size=16) as llm:

        async def leave_some(rounds: int) -> None:
            for _ in range(rounds):
                prompt = [rng.randrange(200) for _ in range(rng.choice([1, 5, 64]))]
                await leave_at_random(llm.stream(prompt, max_new_tokens=2000), rng)
                left_at = model.num_forwards
                await llm.generate([1], max_new_tokens=2)
                assert model.num_forwards - left_at - 2 <= 1
                model.core.forwards.clear()

        await leave_some(20)
        threads = process.num_threads()
        gc.collect()
        # Those that threads of other tests, which are about to end, may still hold.
        others = [thing for thing in gc.get_objects() if type(thing) is TextStream]
        tracemalloc.start()
        try:
            before, kept_before = tracemalloc.get_traced_memory()[0], kept_pages()
            await leave_some(count)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        # A single request that stayed would hold kilobytes; free lists settle at some 90. What is
        # kept of prompts and answers is meant to stay: its books take some 240 bytes a page.
        kept = kept_pages() - kept_before
        assert grown < 128 * 1024 + 300 * kept, (grown, kept)
        # Not one a stream; a worker that is slow to end its work is stood in for by another.
        assert process.num_threads() <= threads + 8
        known = {id(thing) for thing in others}
        streams = [thing for thing in gc.get_objects() if type(thing) is TextStream]
        assert all(id(thing) in known for thing in streams)


@pytest.mark.gate
async def test_200_random_cancels() -> None:
    await cancel_many(200, 0)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(5))
async def test_1000_random_cancels(seed: int) -> None:
    await cancel_many(1000, seed + 1)


async def test_several_loops_in_several_threads() -> None:
    text = LONG[:50]
    model = TableModel(script=text, prompt_length=3)
    found: list[str] = []
    async with make(model) as llm:

        async def several() -> None:
            async def one() -> None:
                found.append(await read(llm.stream(PROMPT)))

            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(one)

        def run(backend: str) -> None:
            anyio.run(several, backend=backend)

        def run_all() -> None:
            threads = [
                threading.Thread(target=run, args=(backend,))
                for backend in ("asyncio", "trio", "asyncio")
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        async with anyio.create_task_group() as group:
            group.start_soon(in_thread, run_all)
            found.append(await read(llm.stream(PROMPT)))
    assert found == [text] * 10


def test_a_sample_is_built_of_its_events() -> None:
    builder = SampleBuilder(2)
    assert builder.build() == Sample(2, "", (), "cancelled")
    entries = [TokenLogprob(token, "", 0.0) for token in range(3)]
    builder.add(TokenEvent(2, (0,), "a", (entries[0],)))
    builder.add(TokenEvent(2, (), "b"))
    assert builder.build().finish_reason == "cancelled"
    builder.add(TokenEvent(2, (1, 2), "", tuple(entries[1:]), finish_reason="stop", stop_reason=9))
    assert builder.build() == Sample(2, "ab", (0, 1, 2), "stop", 9, tuple(entries))


class Counted(list[TokenLogprob]):
    """Counts its entries that are read."""

    num_read = 0

    def __iter__(self) -> Iterator[TokenLogprob]:
        for entry in super().__iter__():
            self.num_read += 1
            yield entry


def test_an_event_costs_a_sample_what_is_new_in_it() -> None:
    held = Counted(TokenLogprob(token, "", 0.0) for token in range(50))
    builder = SampleBuilder(0, logprobs=held)
    for token in range(50, 100):
        builder.add(TokenEvent(0, (token,), "", (TokenLogprob(token, "", 0.0),)))
    assert held.num_read == 0
    assert [entry.token_id for entry in builder.build().logprobs or ()] == list(range(100))


def all_there(llm: AsyncLLM) -> None:
    """Wait until a request has ended, read or not."""
    while llm.metrics().requests_running or llm.metrics().requests_waiting:
        time.sleep(0.001)


async def test_the_position_is_what_was_read_and_stays_when_the_stream_is_left() -> None:
    gate = Gate()
    async with make(TableModel(script=LONG, prompt_length=3, hook=gate)) as llm:
        stream = llm.stream(PROMPT_IDS, max_new_tokens=30, generated_ids=list(LONG[:2].encode()))
        with pytest.raises(RuntimeError, match="has not started"):
            _ = stream.position
        gate.open()
        async with stream:
            assert stream.position == (2,)
            await anyio.to_thread.run_sync(all_there, llm)
            events = stream.events()
            ids: list[int] = []
            for _ in range(5):
                ids += (await anext(events)).token_ids
                assert stream.position == (2 + len(ids),)
        assert stream.position == (2 + len(ids),) == (7,)
        text = await read(again := llm.stream(PROMPT_IDS, max_new_tokens=30))
        assert again.position == (30,)
        assert text == LONG[:30]
