"""`AsyncLLM` opens, serves, fails and closes as it says, on every loop and in every order."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import torch
import uvloop

from asyncgen.engine.core import Engine
from asyncgen.errors import (
    AsyncgenError,
    ChatTemplateError,
    ContextLengthError,
    EngineClosedError,
    EngineDiedError,
    InvalidRequestError,
    ModelLoadError,
)
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.logits.base import LogitsProcessorList
from asyncgen.generation.stopping.criteria import StoppingCriteriaList
from asyncgen.llm.llm import AsyncLLM
from asyncgen.llm.opening import open_engine
from tests.cases import for_each, some
from tests.doubles.engine import (
    decode_threads,
    greedy_ids,
    in_thread,
    join_decode_threads,
    no_thread_left,
    probe,
    sampled_ids,
)
from tests.doubles.models import PATIENCE, Gate, TableModel, byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen.llm.stream import TextStream

__all__ = ["no_thread_left"]

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
PROMPT = "abc"
PROMPT_IDS = list(PROMPT.encode())


def make(model: Any, **options: Any) -> AsyncLLM:
    """An `AsyncLLM` over a model object."""
    return AsyncLLM(model, tokenizer=options.pop("tokenizer", byte_tokenizer()), **options)


async def read(stream: TextStream) -> str:
    """All text of a stream."""
    return "".join([text async for text in stream])


# Many at once.


@for_each("max_running", [1, 3, 64])
async def test_each_of_many_answers_as_if_alone(max_running: int) -> None:
    model = TableModel(eos_bias=1.0)
    found: dict[int, tuple[int, ...]] = {}

    async def ask(seed: int) -> None:
        completion = await llm.generate(
            [seed, 1, 2], seed=seed, do_sample=True, top_k=0, max_new_tokens=30 + seed
        )
        found[seed] = completion.token_ids

    async with make(model, max_running=max_running) as llm:
        async with anyio.create_task_group() as group:
            for seed in range(8):
                group.start_soon(ask, seed)
        alone = {
            seed: (
                await llm.generate(
                    [seed, 1, 2], seed=seed, do_sample=True, top_k=0, max_new_tokens=30 + seed
                )
            ).token_ids
            for seed in range(8)
        }
    expected = {
        seed: tuple(sampled_ids(model, [seed, 1, 2], 30 + seed, seed=seed)) for seed in range(8)
    }
    assert found == alone == expected


async def test_without_a_seed_answers_differ() -> None:
    async with make(TableModel()) as llm:
        answers = {
            (await llm.generate(PROMPT, temperature=1.5, max_new_tokens=20)).text for _ in range(5)
        }
    assert len(answers) == 5


async def test_one_thread_computes() -> None:
    model = TableModel()
    async with make(model) as llm:
        await llm.generate(PROMPT, max_new_tokens=5)
    assert model.core.threads == {"asyncgen-decode"}


async def test_higher_priority_goes_first() -> None:
    gate = Gate()
    model = TableModel(hook=gate)
    async with make(model, max_running=1) as llm:
        streams = []
        for length, priority in ((10, 0), (11, -1), (12, 0), (13, 5), (14, 0)):
            streams.append(await begun(llm, [1] * length, max_new_tokens=2, priority=priority))
            await in_thread(lambda: gate.wait_arrived(1))
        gate.open()
        for stream in streams:
            await read(stream)
    lengths = [length for _, length in model.core.forwards if length > 1]
    assert lengths == [10, 13, 12, 14, 11]


async def begun(llm: AsyncLLM, prompt: Any = PROMPT, **params: Any) -> TextStream:
    """A stream whose request was posted."""
    stream = llm.stream(prompt, **params)
    await stream.__aenter__()
    return stream


# Defaults.


async def test_length_goes_to_the_end_of_the_context() -> None:
    async with make(TableModel(context_length=90)) as llm:
        completion = await llm.generate(PROMPT)
    assert completion.usage.completion_tokens == 87
    assert completion.finish_reason == "length"


@for_each(
    ("defaults", "params", "expected"),
    [
        ({"max_new_tokens": 7}, {}, 7),
        ({"max_length": 12}, {}, 9),
        ({"max_new_tokens": 7}, {"max_new_tokens": 30}, 30),
        ({"max_new_tokens": 7}, {"max_length": 30}, 27),
        ({"max_length": 12}, {"max_new_tokens": 30}, 30),
        ({}, {"generation_config": GenerationConfig(max_new_tokens=5)}, 5),
        ({}, {"generation_config": GenerationConfig()}, 61),
        ({"max_new_tokens": 7}, {"generation_config": GenerationConfig(temperature=None)}, 7),
    ],
)
async def test_lengths(defaults: dict[str, Any], params: dict[str, Any], expected: int) -> None:
    async with make(TableModel(context_length=64, **defaults)) as llm:
        completion = await llm.generate(PROMPT, **params)
    assert completion.usage.completion_tokens == expected


@for_each("name", ["temperature", "top_k", "top_p", "min_p", "typical_p"])
async def test_a_sampling_parameter_asks_for_sampling(name: str) -> None:
    value = {"top_k": 50}.get(name, 0.9)
    params: dict[str, Any] = {name: value, "max_new_tokens": 30}
    model = TableModel()
    async with make(model) as llm:
        one = await llm.generate(PROMPT, seed=1, **params)
        other = await llm.generate(PROMPT, seed=2, **params)
        again = await llm.generate(PROMPT, seed=1, **params)
        with pytest.raises(InvalidRequestError) as caught:
            await llm.generate(PROMPT, do_sample=False, **params)
    assert one.token_ids == again.token_ids != other.token_ids
    assert list(one.token_ids) != greedy_ids(model, PROMPT_IDS, 30)
    assert caught.value.parameter == name


async def test_temperature_counts() -> None:
    model = TableModel()
    async with make(model) as llm:
        cold = await llm.generate(PROMPT, temperature=1e-4, max_new_tokens=30, seed=1)
        warm = await llm.generate(PROMPT, temperature=1.0, top_k=0, max_new_tokens=30, seed=1)
    assert list(cold.token_ids) == greedy_ids(model, PROMPT_IDS, 30)
    assert list(warm.token_ids) == sampled_ids(model, PROMPT_IDS, 30, seed=1)


async def test_the_defaults_of_the_model_count() -> None:
    model = TableModel(do_sample=True, top_k=0, temperature=1.0, max_new_tokens=30)
    async with make(model) as llm:
        sampled = await llm.generate(PROMPT, seed=4)
        greedy = await llm.generate(PROMPT, do_sample=False)
    assert list(sampled.token_ids) == sampled_ids(model, PROMPT_IDS, 30, seed=4)
    assert list(greedy.token_ids) == greedy_ids(model, PROMPT_IDS, 30)
    assert model.generation_config.do_sample is True


async def test_none_means_not_given() -> None:
    model = TableModel()
    params: dict[str, Any] = dict.fromkeys(
        ["temperature", "seed", "stop", "n", "logprobs", "priority", "assistant_model"]
    )
    async with make(model) as llm:
        completion = await llm.generate(PROMPT, max_new_tokens=5, **params)
    assert list(completion.token_ids) == greedy_ids(model, PROMPT_IDS, 5)


async def test_max_time_ends_with_the_text_so_far() -> None:
    async with make(TableModel(context_length=100_000)) as llm:
        for max_time in (0.05, 0.5, 5.0):
            completion = await llm.generate(PROMPT, max_time=max_time)
            assert completion.finish_reason == "time"
            if completion.usage.completion_tokens:  # none if a busy machine came to it too late
                break
    assert 0 < completion.usage.completion_tokens < 99_000


async def test_processors_and_criteria_of_the_user() -> None:
    def only_a(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        kept = torch.full_like(scores, -torch.inf)
        kept[:, 97] = 0
        return kept

    def at_ten(input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= 10)

    async with make(TableModel()) as llm:
        completion = await llm.generate(
            PROMPT,
            logits_processor=LogitsProcessorList([only_a]),
            stopping_criteria=StoppingCriteriaList([at_ten]),
        )
    assert completion.text == "a" * 7
    assert completion.finish_reason == "stop"
    assert completion.stop_reason is None


# Refusals.


@for_each(
    ("params", "name"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": -3}, "max_new_tokens"),
        ({"max_new_tokens": "5"}, "max_new_tokens"),
        ({"max_new_tokens": 2.5}, "max_new_tokens"),
        ({"max_new_tokens": True}, "max_new_tokens"),
        ({"max_length": "5"}, "max_length"),
        ({"max_length": 5, "max_new_tokens": 5}, "max_length"),
        ({"min_new_tokens": 9, "max_new_tokens": 5}, "min_new_tokens"),
        ({"temperature": 0.0, "do_sample": True}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": 0.5, "do_sample": False}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_p": "all"}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 2.5}, "top_k"),
        ({"min_p": 2.0}, "min_p"),
        ({"typical_p": 3.0}, "typical_p"),
        ({"repetition_penalty": -1.0}, "repetition_penalty"),
        ({"repetition_penalty": "strong"}, "repetition_penalty"),
        ({"no_repeat_ngram_size": -2}, "no_repeat_ngram_size"),
        ({"bad_words_ids": 5}, "bad_words_ids"),
        ({"bad_words_ids": []}, "bad_words_ids"),
        ({"eos_token_id": "end"}, "eos_token_id"),
        ({"max_time": "soon"}, "max_time"),
        ({"max_time": -1.0}, "max_time"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": [3]}, "stop"),
        ({"stop": 3}, "stop"),
        ({"stop_strings": ""}, "stop_strings"),
        ({"stop_strings": [3]}, "stop_strings"),
        ({"seed": "x"}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"seed": True}, "seed"),
        ({"priority": "high"}, "priority"),
        ({"n": 0}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": 2}, "num_return_sequences"),
        ({"n": 2, "num_return_sequences": 3, "do_sample": True}, "n"),
        ({"num_return_sequences": 2}, "num_return_sequences"),
        ({"num_return_sequences": "two", "do_sample": True}, "num_return_sequences"),
        ({"num_return_sequences": 2.5, "do_sample": True}, "num_return_sequences"),
        ({"num_return_sequences": 0, "do_sample": True}, "num_return_sequences"),
        ({"num_return_sequences": -1, "do_sample": True}, "num_return_sequences"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"top_logprobs": 101}, "top_logprobs"),
        ({"top_logprobs": "all"}, "top_logprobs"),
        ({"top_logprobs": 2, "logprobs": False}, "top_logprobs"),
        ({"skip_special_tokens": "yes"}, "skip_special_tokens"),
        ({"num_beams": 0}, "num_beams"),
        ({"guidance_scale": 2.0}, "guidance_scale"),
        ({"watermarking_config": {"strength": 1}}, "watermarking_config"),
        ({"constraints": [1]}, "constraints"),
        ({"force_words_ids": [[]]}, "force_words_ids"),
        ({"top_h": 2.0}, "top_h"),
        ({"cache_implementation": "paged"}, "cache_implementation"),
        ({"cache_implementation": "nonsense"}, "cache_implementation"),
        ({"prefill_chunk_size": 0}, "prefill_chunk_size"),
        ({"prefill_chunk_size": "all"}, "prefill_chunk_size"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"generation_config": {"max_new_tokens": 5}}, "generation_config"),
        ({"logits_processor": 5}, "logits_processor"),
        ({"logits_processor": [5]}, "logits_processor"),
        ({"stopping_criteria": 5}, "stopping_criteria"),
        ({"stopping_criteria": ["x"]}, "stopping_criteria"),
    ],
    ids=str,
)
async def test_a_value_that_cannot_be_served_names_its_parameter(
    params: dict[str, Any], name: str
) -> None:
    model = TableModel()
    async with make(model) as llm:
        stream = llm.stream(PROMPT, **params)
        with pytest.raises(InvalidRequestError) as caught:
            await read(stream)
        assert caught.value.parameter == name
        assert await probe(llm, model) == 0


@for_each(
    ("name", "hint"),
    [
        ("temprature", "temperature"),
        ("max_tokens", "max_"),
        ("streamer", "own streamer"),
        ("output_scores", "logprobs"),
        ("return_dict_in_generate", "stream.result"),
    ],
)
async def test_a_name_that_is_not_served_is_an_error_at_the_call(name: str, hint: str) -> None:
    llm = make(TableModel())
    with pytest.raises(InvalidRequestError, match=hint) as caught:
        params: Any = {name: 1}
        llm.stream(PROMPT, **params)
    assert caught.value.parameter == name


@for_each(
    "prompt",
    ["", [], None, 5, b"abc", [1, "a"], [True], [1.5], [{"role": "user"}, 3], {"role": "user"}],
)
async def test_invalid_prompt_is_refused_at_the_call(prompt: Any) -> None:
    llm = make(TableModel())
    with pytest.raises(InvalidRequestError) as caught:
        llm.stream(prompt)
    assert caught.value.parameter == "prompt"


@for_each("ids", [[-1], [260], [1, 2, 10**12]])
async def test_ids_out_of_range(ids: list[int]) -> None:
    async with make(TableModel()) as llm:
        with pytest.raises(InvalidRequestError, match="from 0 to 259") as caught:
            await llm.generate(ids)
    assert caught.value.parameter == "prompt"


@for_each(
    ("length", "params"),
    [
        (64, {}),
        (65, {}),
        (60, {"max_new_tokens": 5}),
        (10, {"max_length": 65}),
        (10, {"max_length": 10}),
    ],
)
async def test_too_long_requests_raise_context_length_error(
    length: int, params: dict[str, Any]
) -> None:
    async with make(TableModel(context_length=64)) as llm:
        with pytest.raises(ContextLengthError) as caught:
            await llm.generate([1] * length, **params)
        assert caught.value.parameter == next(iter(params), "prompt")
        assert str(length) in str(caught.value)
        completion = await llm.generate([1] * 60, max_new_tokens=4)
        assert completion.usage.completion_tokens == 4


@for_each(
    ("options", "name"),
    [
        ({"max_running": 0}, "max_running"),
        ({"prefill_chunk_size": 0}, "prefill_chunk_size"),
        ({"num_threads": 0}, "num_threads"),
        ({"max_running": 1.5}, "max_running"),
        ({"device": "cpu"}, "device"),
        ({"dtype": "float32"}, "dtype"),
        ({"tokenizer": None}, "tokenizer"),
    ],
)
def test_options_that_cannot_be_honoured(options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        make(TableModel(), **options)
    assert caught.value.parameter == name


# Failures of one request.


class Planned(Exception):
    """Raised by a test on purpose."""


class Raising:
    """Raises at the k-th call."""

    def __init__(self, k: int, error: BaseException | None = None) -> None:
        self.left = k
        self.error = error or Planned("on purpose")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.left == 0:
            raise self.error
        self.left -= 1
        # The scores of a processor, the verdict of a criterion.
        return args[1] if "processor" in kwargs else torch.zeros(len(args[0]), dtype=torch.bool)


class Processor(Raising):
    """The same as a logits processor."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        super().__call__(input_ids, scores)
        return scores


async def with_a_neighbour(llm: AsyncLLM, model: TableModel, fail: Callable[[], Any]) -> None:
    """Run something that must raise `Planned`, beside a stream that goes on."""
    neighbour = llm.stream(PROMPT, max_new_tokens=40)
    async with neighbour:
        first = await anext(neighbour)
        with anyio.fail_after(PATIENCE), pytest.raises(Planned, match="on purpose"):
            await fail()
        text = first + await read(neighbour)
    ids = greedy_ids(model, PROMPT_IDS, 40)
    assert neighbour.result.token_ids == tuple(ids)
    assert text == byte_tokenizer().decode(ids)
    assert llm.is_healthy


@for_each("k", [0, 1, 5, 9])
@for_each("kind", ["logits_processor", "stopping_criteria"])
async def test_user_code_that_raises_fails_its_request_alone(kind: str, k: int) -> None:
    model = TableModel()
    made: Any = (
        LogitsProcessorList([Processor(k)])
        if kind == "logits_processor"
        else StoppingCriteriaList([Raising(k)])
    )
    async with make(model) as llm:
        streams: list[TextStream] = []

        async def fail() -> None:
            params: Any = {kind: made}
            streams.append(llm.stream("xyz", max_new_tokens=10, **params))
            async for _ in streams[0].events():
                pass

        await with_a_neighbour(llm, model, fail)
        assert list(streams[0].result.token_ids) == greedy_ids(model, list(b"xyz"), k)
        with pytest.raises(Planned):
            await anext(streams[0])


@pytest.mark.parametrize("where", ["prefill", "later"])
async def test_a_forward_pass_that_raises_fails_its_request_alone(where: str) -> None:
    def hook(input_ids: torch.Tensor, positions: torch.Tensor) -> None:
        # Only the long prompt comes so far while it is read, and so far later.
        if int(positions.max()) == (55 if where == "prefill" else 60):
            raise Planned("on purpose")

    model = TableModel(hook=hook)
    async with make(model, prefill_chunk_size=4) as llm:

        async def fail() -> None:
            await llm.generate([1] * 57, max_new_tokens=20)

        await with_a_neighbour(llm, model, fail)


async def test_a_tokenizer_that_raises_fails_its_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, tokenizer = TableModel(), byte_tokenizer()
    encode = tokenizer.encode_ids

    def raising(text: str, add_special_tokens: bool = True) -> list[int]:
        if text == "bad":
            raise Planned("on purpose")
        return encode(text, add_special_tokens)

    monkeypatch.setattr(tokenizer, "encode_ids", raising)
    async with make(model, tokenizer=tokenizer) as llm:

        async def fail() -> None:
            await llm.generate("bad")

        await with_a_neighbour(llm, model, fail)


class Mute:
    """A tokenizer whose `decode` raises when it is told to."""

    def __init__(self) -> None:
        self.inner = byte_tokenizer()
        self.fails = False

    def encode_ids(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self.inner.encode_ids(text, add_special_tokens)

    def decode(self, ids: list[int], **kwargs: Any) -> str:
        if self.fails and 7 in ids:
            raise Planned("on purpose")
        return self.inner.decode(ids, **kwargs)


@for_each("when", ["running", "queued", "aborted"])
async def test_decoding_that_raises_fails_its_request_alone(when: str) -> None:
    gate, tokenizer = Gate(), Mute()
    model = TableModel(hook=gate, script="abcdefgh", prompt_length=3)
    async with make(model, tokenizer=tokenizer, max_running=1 if when == "queued" else 8) as llm:
        first = llm.stream(PROMPT)
        async with first:
            await in_thread(lambda: gate.wait_arrived(1))
            second = llm.stream([7, 7, 7])
            await second.__aenter__()
            if when == "aborted":
                gate.allow(2)
                await in_thread(lambda: gate.wait_arrived(3))
            tokenizer.fails = True
            if when != "running":
                second.cancel()
            gate.open()
            with anyio.fail_after(PATIENCE):
                try:
                    await read(second)
                except Planned:
                    pass
            assert await read(first) == "abcdefgh"
        assert llm.is_healthy


async def test_messages_that_the_template_refuses() -> None:
    refusing = byte_tokenizer(chat_template="{{ raise_exception('roles must alternate') }}")
    async with make(TableModel(), tokenizer=refusing) as llm:
        with pytest.raises(ChatTemplateError, match="alternate"):
            await llm.generate([{"role": "user", "content": "hi"}])
    async with make(TableModel(), tokenizer=byte_tokenizer(chat_template=None)) as llm:
        with pytest.raises(ChatTemplateError):
            await llm.generate([{"role": "user", "content": "hi"}])


async def test_scores_without_a_choice_fail_their_request_alone() -> None:
    def nan(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, torch.nan)

    model = TableModel()
    processors = LogitsProcessorList([nan])
    async with make(model) as llm:
        for do_sample in (False, True):
            with pytest.raises(FloatingPointError, match="NaN"):
                await llm.generate(PROMPT, logits_processor=processors, do_sample=do_sample)
        assert await probe(llm, model) == 0


@pytest.mark.parametrize("error", [StopIteration("x"), StopAsyncIteration("x")])
async def test_an_exception_that_ends_loops_does_not_look_like_success(error: Exception) -> None:
    async with make(TableModel()) as llm:
        with pytest.raises(RuntimeError):
            await llm.generate(PROMPT, logits_processor=LogitsProcessorList([Processor(2, error)]))


# The death of the engine.


class Deadly(BaseException):
    """Not an `Exception`: nothing may go on after it."""


async def test_a_dead_engine_ends_every_stream_and_refuses_new_ones(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    model = TableModel(hook=gate)

    def die(engine: Engine) -> None:
        raise Deadly

    async with make(model, max_running=2) as llm:
        ended: list[EngineDiedError] = []

        async def reader(stream: TextStream) -> None:
            with pytest.raises(EngineDiedError, match="Deadly") as caught:
                await read(stream)
            ended.append(caught.value)

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(reader, await begun(llm))
            group.cancel_scope.deadline = anyio.current_time() + PATIENCE
            monkeypatch.setattr(Engine, "step", die)
            gate.open()
        assert len(ended) == 4
        assert all(isinstance(error.__cause__, Deadly) for error in ended)
        assert not llm.is_healthy
        for _ in range(3):
            with pytest.raises(EngineDiedError) as caught:
                llm.stream(PROMPT)
            frames = 0
            trace = caught.value.__traceback__
            while trace is not None:
                frames, trace = frames + 1, trace.tb_next
            assert frames < 6  # no frames pile up on a shared exception
        with pytest.raises(EngineDiedError):
            await llm.start()
        join_decode_threads()
    assert "decode thread died" in caplog.text


# Opening and closing.


async def test_start_and_close_twice() -> None:
    model = TableModel()
    llm = make(model)
    assert not llm.is_healthy
    await llm.start()
    await llm.start()
    assert llm.is_healthy
    assert len(decode_threads()) == 1
    assert (await llm.generate(PROMPT, max_new_tokens=3)).finish_reason == "length"
    await llm.aclose()
    assert not llm.is_healthy
    assert not decode_threads()
    await llm.aclose()


async def test_the_first_stream_opens() -> None:
    llm = make(TableModel())
    assert await llm.generate(PROMPT, max_new_tokens=3)
    await llm.aclose()


async def test_close_without_start() -> None:
    llm = make(TableModel())
    await llm.aclose()
    with pytest.raises(EngineClosedError):
        await llm.start()
    assert not decode_threads()


async def test_attributes_need_a_loaded_model() -> None:
    model, tokenizer = TableModel(), byte_tokenizer()
    llm = make(model, tokenizer=tokenizer)
    with pytest.raises(EngineClosedError):
        _ = llm.tokenizer
    async with llm:
        assert llm.tokenizer is tokenizer
        assert llm.config is model.config
        assert llm.generation_config is model.generation_config


async def test_use_after_close() -> None:
    llm = make(TableModel())
    async with llm:
        stream = llm.stream(PROMPT)
        open_one = llm.stream(PROMPT)
        await anext(open_one)
    with pytest.raises(EngineClosedError):
        llm.stream(PROMPT)
    with pytest.raises(EngineClosedError):
        await read(stream)
    with pytest.raises(EngineClosedError):
        await llm.generate(PROMPT)
    with pytest.raises(EngineClosedError):
        await llm.start()
    await read(open_one)
    assert open_one.result.finish_reason == "aborted"


async def test_closing_ends_open_streams_with_their_text_so_far() -> None:
    gate = Gate()
    model = TableModel(hook=gate, script="abcdefgh" * 10, prompt_length=3)
    async with anyio.create_task_group() as group:
        async with make(model, max_running=2) as llm:
            streams = [await begun(llm) for _ in range(3)]
            for stream in streams:
                group.start_soon(read, stream)
            gate.allow(4)
            await in_thread(lambda: gate.wait_arrived(5))
            group.start_soon(llm.aclose)
            await anyio.wait_all_tasks_blocked()
            gate.open()
    assert [stream.result.finish_reason for stream in streams] == ["aborted"] * 3
    texts = sorted(stream.result.text for stream in streams)
    assert texts[0] == ""
    assert all("abcdefgh".startswith(text) for text in texts)
    # Two shared five passes, one of them perhaps not the first.
    assert [len(text) for text in texts[1:]] in ([4, 5], [5, 5])


async def test_failed_load_raises_in_every_waiting_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = threading.Event()

    def load(*args: Any, **options: Any) -> Any:
        assert loading.wait(PATIENCE)
        raise ModelLoadError("nothing there")

    monkeypatch.setattr("asyncgen.llm.engine_handle.open_engine", load)
    llm = make(TableModel())
    told: list[BaseException] = []

    async def use(call: Callable[[], Any]) -> None:
        with pytest.raises(ModelLoadError, match="nothing there") as caught:
            await call()
        told.append(caught.value)

    async with anyio.create_task_group() as group:
        group.start_soon(use, llm.start)
        group.start_soon(use, llm.start)
        group.start_soon(use, lambda: llm.generate(PROMPT))
        await anyio.wait_all_tasks_blocked()
        loading.set()
    assert len(told) == 3
    assert not llm.is_healthy
    with pytest.raises(ModelLoadError):
        llm.stream(PROMPT)
    join_decode_threads()
    await llm.aclose()


async def test_a_failed_load_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(AsyncgenError):
        async with AsyncLLM(tmp_path):
            raise AssertionError("entered")
    join_decode_threads()


async def test_entering_may_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    loading, go_on = threading.Event(), threading.Event()
    load = open_engine

    def slow(*args: Any, **options: Any) -> Any:
        loading.set()
        assert go_on.wait(PATIENCE)
        return load(*args, **options)

    monkeypatch.setattr("asyncgen.llm.engine_handle.open_engine", slow)
    llm = make(TableModel())

    async def enter() -> None:
        async with llm:
            raise AssertionError("entered")

    async with anyio.create_task_group() as group:
        group.start_soon(enter)
        await in_thread(lambda: loading.wait(PATIENCE))
        group.cancel_scope.cancel()
    go_on.set()
    join_decode_threads()
    with pytest.raises(EngineClosedError):
        await llm.start()


async def test_closing_while_loading_ends_the_waiters(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    load = open_engine

    def slow(*args: Any, **options: Any) -> Any:
        assert go_on.wait(PATIENCE)
        return load(*args, **options)

    monkeypatch.setattr("asyncgen.llm.engine_handle.open_engine", slow)
    llm = make(TableModel())
    ended: list[str] = []

    async def use() -> None:
        with pytest.raises(EngineClosedError):
            await llm.generate(PROMPT)
        ended.append("use")

    async with anyio.create_task_group() as group:
        group.start_soon(use)
        group.start_soon(use)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(llm.aclose)
        await anyio.wait_all_tasks_blocked()
        go_on.set()
    assert ended == ["use", "use"]


async def test_closing_is_shielded_from_cancellation() -> None:
    gate = Gate()
    with anyio.CancelScope() as scope:
        # So long that it cannot end by itself, however late the scope is cancelled.
        async with make(TableModel(hook=gate, context_length=1_000_000)) as llm:
            stream = llm.stream(PROMPT)
            async with stream:
                await in_thread(lambda: gate.wait_arrived(1))
                threading.Timer(0.05, gate.open).start()
                scope.cancel()
    assert not decode_threads()
    assert stream.result.finish_reason in ("cancelled", "aborted")


async def test_one_that_is_dropped_ends_its_thread() -> None:
    llm: AsyncLLM | None = make(TableModel(context_length=100_000))
    assert llm is not None
    gone = weakref.ref(llm)
    stream: TextStream | None = llm.stream(PROMPT)
    assert stream is not None
    await anext(stream)
    llm = None
    assert gone() is None
    assert decode_threads()  # an open stream keeps the engine
    await anext(stream)
    stream = None
    gc.collect()
    join_decode_threads()


@pytest.mark.parametrize("kind", ["asyncio", "uvloop", "trio"])
def test_loops(kind: str) -> None:
    model = TableModel()

    async def main() -> str:
        async with make(model) as llm:
            stream = llm.stream(PROMPT, max_new_tokens=10)
            await read(stream)
            broken = llm.stream(PROMPT)
            async for _ in broken:
                break
            assert await probe(llm, model) <= 1
            return stream.result.text

    if kind == "uvloop":
        text = uvloop.run(main())
    else:
        text = anyio.run(main, backend=kind)
    assert text == byte_tokenizer().decode(greedy_ids(model, PROMPT_IDS, 10))


def test_one_engine_in_one_loop_after_another() -> None:
    model = TableModel()
    llm = make(model)

    async def use() -> str:
        return (await llm.generate(PROMPT, max_new_tokens=5)).text

    texts = {anyio.run(use, backend=backend) for backend in ("asyncio", "trio", "asyncio")}
    assert len(texts) == 1
    anyio.run(llm.aclose)


# Other processes.


def run_python(code: str, *options: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a script in a fresh interpreter, with the doubles at hand."""
    head = """
        import anyio, gc, logging, os, sys, threading
        # Of asyncio's debug mode only its complaints of slowness are left out: machines are busy.
        logging.getLogger("asyncio").addFilter(lambda said: not said.msg.startswith("Executing"))
        from asyncgen.llm.llm import AsyncLLM
        from asyncgen.errors import EngineClosedError
        from tests.doubles.models import TableModel, byte_tokenizer

        def make(**options):
            return AsyncLLM(TableModel(**options), tokenizer=byte_tokenizer())
    """
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", *options, "-c"]
        + [textwrap.dedent(head) + textwrap.dedent(code)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.gate
@pytest.mark.parametrize("backend", some(["asyncio", "trio"], 1))
def test_the_interpreter_leaves_without_a_close(backend: str) -> None:
    code = f"""
        kept = []
        async def main(state):
            llm = make(context_length=1_000_000)
            await llm.start()
            stream = llm.stream("abc")
            kept.append((llm, stream))
            if state == "streaming":
                async for text in stream:
                    if stream._samples[0].num_steps > 3:
                        return
            elif state == "unread":
                await anext(stream)
        for state in ("idle", "streaming", "unread"):
            anyio.run(main, state, backend={backend!r})
    """
    done = run_python(code)  # held up by any of them, it would never leave
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.gate
def test_streams_leave_no_resources_unclosed() -> None:
    code = """
        async def main():
            async with make() as llm:
                async for text in llm.stream("abc", max_new_tokens=5):
                    pass
                async for text in llm.stream("abc"):
                    break
            assert not [t for t in threading.enumerate() if t.name == "asyncgen-decode"]
        for backend in ("asyncio", "trio"):
            anyio.run(main, backend=backend)
        gc.collect()
    """
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.gate
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_gets_an_error() -> None:
    code = """
        llm = make(context_length=1_000_000)

        async def begin():
            global stream
            stream = llm.stream("abc")
            await anext(stream)

        async def in_child():
            assert not llm.is_healthy
            for use in (lambda: llm.start(), lambda: llm.generate("abc")):
                try:
                    await use()
                except EngineClosedError as error:
                    assert "fork" in str(error)
                else:
                    raise AssertionError
            try:
                llm.stream("abc")
            except EngineClosedError as error:
                assert "fork" in str(error)
            else:
                raise AssertionError
            stream.cancel()
            await llm.aclose()

        anyio.run(begin)
        child = os.fork()
        if child == 0:
            anyio.run(in_child)
            globals().pop("stream")
            gc.collect()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert llm.is_healthy

        async def go_on():
            await llm.generate("abc", max_new_tokens=3)
            await llm.aclose()

        anyio.run(go_on)
    """
    done = run_python(code)
    # CPython 3.12 warns of any fork while threads run.
    assert done.returncode == 0, done.stderr


async def test_metrics_count_served_requests() -> None:
    llm = make(TableModel())
    with pytest.raises(EngineClosedError):
        llm.metrics()
    async with llm:
        await llm.generate(PROMPT, max_new_tokens=3)
        with pytest.raises(InvalidRequestError):
            await llm.generate(PROMPT, max_new_tokens=-1)
        shot = llm.metrics()
    assert dict(shot.finished) == {"length": 1}
    assert (shot.prompt_tokens, shot.generation_tokens) == (len(PROMPT_IDS), 3)
    assert shot.time_to_first_token.count == shot.e2e_latency.count == 1
    assert shot.requests_waiting == 0
