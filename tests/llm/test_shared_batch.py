"""Many streams over one batch: overload, limits, loops, scale, and the tokens of a real model."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import torch

from asyncgen.engine.scheduling.scheduler import FIFOScheduler
from asyncgen.errors import ContextLengthError, InvalidRequestError, OverloadedError
from asyncgen.llm.llm import AsyncLLM
from asyncgen.reference.pretrained_model import PreTrainedModel
from tests.cases import for_each
from tests.doubles.engine import decode_threads, greedy_ids, in_thread, no_thread_left, sampled_ids
from tests.doubles.models import PATIENCE, Gate, TableModel, byte_tokenizer
from tests.models.build import random_config, random_model

if TYPE_CHECKING:
    from asyncgen.llm.stream import TextStream

__all__ = ["no_thread_left"]

pytestmark = pytest.mark.anyio


def make(model: Any, **options: Any) -> AsyncLLM:
    """An `AsyncLLM` over a model object."""
    return AsyncLLM(model, tokenizer=options.pop("tokenizer", byte_tokenizer()), **options)


async def begun(llm: AsyncLLM, prompt: Any, **params: Any) -> TextStream:
    """A stream whose request was posted."""
    stream = llm.stream(prompt, **params)
    await stream.__aenter__()
    return stream


async def settled(llm: AsyncLLM) -> None:
    """Wait until the figures say that nobody is there; they follow the last event of a step."""
    with anyio.fail_after(PATIENCE):
        while True:
            shot = llm.metrics()
            if (shot.requests_running, shot.requests_waiting, shot.pages_used) == (0, 0, 0):
                return
            await anyio.lowlevel.checkpoint()


# Overload.


async def test_beyond_the_queue_a_stream_is_refused_before_any_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, tokenizer = Gate(), byte_tokenizer()
    encoded: list[str] = []
    encode = tokenizer.encode_ids

    def noted(text: str, add_special_tokens: bool = True) -> list[int]:
        encoded.append(text)
        return encode(text, add_special_tokens)

    monkeypatch.setattr(tokenizer, "encode_ids", noted)
    model = TableModel(hook=gate)
    async with make(model, tokenizer=tokenizer, max_running=1, max_queue_size=2) as llm:
        streams = [await begun(llm, "a", max_new_tokens=3)]
        await in_thread(lambda: gate.wait_arrived(1))
        streams += [await begun(llm, "a", max_new_tokens=3) for _ in range(2)]
        for _ in range(3):
            with pytest.raises(OverloadedError, match="max_queue_size") as caught:
                await llm.generate("b", max_new_tokens=3)
            assert 0 < caught.value.retry_after <= 60
        assert encoded == ["a"] * 3
        gate.open()
        for stream in streams:
            assert len([event async for event in stream.events()]) == 3
        assert (await llm.generate("c", max_new_tokens=2)).finish_reason == "length"


@for_each("way", ["leave", "refused", "task"])
async def test_a_place_in_the_queue_is_given_back(way: str) -> None:
    gate = Gate()
    async with make(TableModel(hook=gate), max_running=1, max_queue_size=1) as llm:
        first = await begun(llm, "a", max_new_tokens=3)
        await in_thread(lambda: gate.wait_arrived(1))
        for _ in range(3):
            if way == "leave":
                await (await begun(llm, "b")).aclose()
                gate.allow()  # the next look at the inbox
                await in_thread(lambda: gate.wait_arrived(2))
            elif way == "refused":
                with pytest.raises(InvalidRequestError):
                    await llm.generate("b", max_new_tokens=-1)
            else:
                with anyio.CancelScope() as scope:
                    scope.cancel()
                    await llm.generate("b")
            if way == "leave":
                break
        waiting = await begun(llm, "c", max_new_tokens=2)
        with pytest.raises(OverloadedError):
            await llm.generate("d")
        gate.open()
        for stream in (first, waiting):
            async for _ in stream.events():
                pass


# Options.


class NoScheduler:
    """Not one."""


@for_each(
    ("options", "name"),
    [
        ({"max_queue_size": 0}, "max_queue_size"),
        ({"max_queue_size": "many"}, "max_queue_size"),
        ({"page_size": 0}, "page_size"),
        ({"scheduler": "lifo"}, "scheduler"),
        ({"scheduler": FIFOScheduler.__new__(FIFOScheduler)}, "scheduler"),
        ({"prefix_caching": "yes"}, "prefix_caching"),
        ({"kv_cache_memory": 0}, "kv_cache_memory"),
        ({"kv_cache_memory": -5}, "kv_cache_memory"),
        ({"kv_cache_memory": 1.5}, "kv_cache_memory"),
        ({"kv_cache_memory": True}, "kv_cache_memory"),
        ({"kv_cache_memory": "4 GB"}, "kv_cache_memory"),
        ({"kv_cache_memory": float("nan")}, "kv_cache_memory"),
    ],
)
def test_options_are_checked_at_the_call(options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        make(TableModel(), **options)
    assert caught.value.parameter == name


@for_each(
    ("options", "name"),
    [
        ({"kv_cache_memory": 255}, "kv_cache_memory"),  # a page of 16 positions takes 256
        ({"kv_cache_memory": 10**15}, "kv_cache_memory"),
        ({"scheduler": NoScheduler}, "scheduler"),
    ],
)
async def test_options_are_checked_at_load(options: dict[str, Any], name: str) -> None:
    llm = make(TableModel(), **options)
    with pytest.raises(InvalidRequestError) as caught:
        await llm.start()
    assert caught.value.parameter == name
    await llm.aclose()


async def test_pool_size_follows_kv_cache_memory() -> None:
    async with make(TableModel(context_length=2000), kv_cache_memory=40 * 512 + 511) as llm:
        await llm.generate("a", max_new_tokens=2)
        assert llm.metrics().pages_total == 40
        with pytest.raises(ContextLengthError, match="kv_cache_memory"):
            await llm.generate([1] * 1270, max_new_tokens=50)
    async with make(TableModel(context_length=100), max_running=3) as llm:
        await llm.generate("a", max_new_tokens=2)
        assert llm.metrics().pages_total == 3 * 4


@for_each("scheduler", ["fifo", "prefill_first", FIFOScheduler])
async def test_schedulers(scheduler: Any) -> None:
    model = TableModel()
    async with make(model, scheduler=scheduler) as llm:
        completion = await llm.generate("abc", max_new_tokens=9)
    assert list(completion.token_ids) == greedy_ids(model, list(b"abc"), 9)


# Scale.


async def test_a_thousand_streams_wait_and_none_is_lost() -> None:
    model = TableModel()
    lengths: dict[int, int] = {}

    async def read(number: int) -> None:
        completion = await llm.generate([number % 256, 3], max_new_tokens=3)
        lengths[number] = len(completion.token_ids)

    async with make(model, max_running=64) as llm:
        async with anyio.create_task_group() as group:
            for number in range(1000):
                group.start_soon(read, number)
        await settled(llm)
        shot = llm.metrics()
    assert lengths == dict.fromkeys(range(1000), 3)
    assert dict(shot.finished) == {"length": 1000}


@pytest.mark.parametrize("other", ["asyncio", "trio"])
async def test_several_loops_share_one_batch(other: str) -> None:
    model = TableModel()
    found: dict[int, tuple[int, ...]] = {}

    async def several(first: int) -> None:
        async def one(number: int) -> None:
            params: Any = {"seed": number, "do_sample": True, "top_k": 0, "max_new_tokens": 40}
            found[number] = (await llm.generate([number], **params)).token_ids

        async with anyio.create_task_group() as group:
            for number in range(first, first + 4):
                group.start_soon(one, number)

    async with make(model, prefill_chunk_size=4) as llm:
        threads = [
            threading.Thread(target=lambda n=n: anyio.run(several, n, backend=other))
            for n in (10, 20)
        ]
        for thread in threads:
            thread.start()
        await several(0)
        for thread in threads:
            await in_thread(thread.join)
    assert found == {
        number: tuple(sampled_ids(model, [number], 40, seed=number))
        for first in (0, 10, 20)
        for number in range(first, first + 4)
    }


async def test_abandoned_streams_free_their_blocks() -> None:
    model = TableModel()
    async with make(model, max_running=4, kv_cache_memory=64 * 256) as llm:

        async def leave(number: int) -> None:
            stream = llm.stream([number % 256] * (1 + number % 40), max_new_tokens=20)
            async for event in stream.events():
                if event.time and number % 3 == 0:
                    break
            del stream

        for start in range(0, 200, 20):
            async with anyio.create_task_group() as group:
                for number in range(start, start + 20):
                    group.start_soon(leave, number)
        gc.collect()
        await llm.generate([1], max_new_tokens=2)
        await settled(llm)
        assert sum(llm.metrics().finished.values()) == 201
        assert len(decode_threads()) == 1


# A real model.


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "qwen3": {},
    "gpt2": {"n_positions": 64, "n_embd": 48, "n_layer": 3, "n_head": 6},
}


@for_each("family", FAMILIES)
async def test_greedy_streams_equal_generate(family: str) -> None:
    model = PreTrainedModel(random_model(random_config(family, **FAMILIES[family])))
    prompts = [[(7 * row + 3 * at) % 90 + 3 for at in range(2 + 5 * row)] for row in range(6)]
    expected = [
        model.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)[0].tolist()
        for prompt in prompts
    ]
    found: dict[int, list[int]] = {}

    async def ask(number: int) -> None:
        completion = await llm.generate(prompts[number], max_new_tokens=16, do_sample=False)
        found[number] = prompts[number] + list(completion.token_ids)

    async with make(model, prefill_chunk_size=7, page_size=4) as llm:
        for _ in range(2):  # the second time most of the prompts are in pages
            async with anyio.create_task_group() as group:
                for number in range(len(prompts)):
                    group.start_soon(ask, number)
            assert [found[number] for number in range(len(prompts))] == expected
        assert llm.metrics().prefix_cache_hits > 60
