"""A transformers model streams, stops, cancels and fails behind the same face."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import anyio
import pytest
import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.base import LogitsProcessorList
from asyncgen.generation.stopping.criteria import StoppingCriteriaList
from asyncgen.llm.llm import AsyncLLM
from tests.cases import for_each
from tests.doubles.engine import in_thread, no_thread_left
from tests.doubles.models import EOS, PAD, PATIENCE, VOCABULARY, byte_tokenizer

transformers = pytest.importorskip("transformers")

__all__ = ["no_thread_left"]

pytestmark = pytest.mark.anyio

PROMPT = "abc"
PROMPT_IDS = list(PROMPT.encode())


@cache
def tiny() -> Any:
    """A random Llama that never ends by itself."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=EOS,
        pad_token_id=PAD,
        bos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.generation_config.suppress_tokens = list(range(EOS, VOCABULARY))
    return model


class Held:
    """The model, with forward passes that wait for the test."""

    def __init__(self) -> None:
        self.inner = tiny()
        self.config = self.inner.config
        self.generation_config = self.inner.generation_config
        self.device = self.inner.device
        self.go = threading.Semaphore(0)
        self.arrived = threading.Semaphore(0)
        self.steps = 0

    def generate(self, **kwargs: Any) -> Any:
        def wait(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            self.arrived.release()
            assert self.go.acquire(timeout=PATIENCE)
            return scores

        processors = [*(kwargs.pop("logits_processor", None) or ()), wait]
        return self.inner.generate(**kwargs, logits_processor=processors)


def make(model: Any) -> AsyncLLM:
    """An `AsyncLLM` over a foreign model object."""
    return AsyncLLM(model, tokenizer=byte_tokenizer())


def reference(count: int, **kwargs: Any) -> list[int]:
    """Generate with the model by itself."""
    ids = torch.tensor([PROMPT_IDS])
    out = tiny().generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, **kwargs)
    return out[0, len(PROMPT_IDS) :].tolist()


async def test_greedy_text_is_the_models_own() -> None:
    async with make(tiny()) as llm:
        stream = llm.stream(PROMPT, max_new_tokens=20)
        text = "".join([piece async for piece in stream])
    ids = reference(20, do_sample=False)
    assert list(stream.result.token_ids) == ids
    assert text == bytes(ids).decode(errors="replace")
    assert stream.result.finish_reason == "length"
    assert (stream.result.usage.prompt_tokens, stream.result.usage.completion_tokens) == (3, 20)


async def test_text_comes_while_it_generates() -> None:
    model = Held()
    async with make(model) as llm, llm.stream(PROMPT) as stream:
        events = stream.events()
        for step in range(1, 4):
            model.go.release()
            event = await anext(events)
            assert len(event.token_ids) == 1
            assert model.steps <= step + 1
        model.go.release(300)


async def test_seeds_count_and_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    async with make(tiny()) as llm:
        one = await llm.generate(PROMPT, temperature=1.0, seed=1, max_new_tokens=20)
        again = await llm.generate(PROMPT, temperature=1.0, seed=1, max_new_tokens=20)
        other = await llm.generate(PROMPT, temperature=1.0, seed=2**64 - 1, max_new_tokens=20)
    assert torch.equal(before, torch.get_rng_state())
    assert one.token_ids == again.token_ids != other.token_ids


async def test_an_end_token_ends() -> None:
    third = reference(3, do_sample=False)[2]
    async with make(tiny()) as llm:
        completion = await llm.generate(PROMPT, max_new_tokens=20, eos_token_id=[third, EOS])
    assert completion.token_ids[-1] == third
    assert third not in completion.token_ids[:-1]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", third)


@pytest.mark.parametrize("name", ["stop", "stop_strings"])
async def test_stop_strings_end(name: str) -> None:
    full = bytes(reference(20, do_sample=False)).decode(errors="replace")
    stop = next(char for char in full[4:] if char != "\ufffd")
    params: Any = {name: [stop]}
    async with make(tiny()) as llm:
        completion = await llm.generate(PROMPT, max_new_tokens=20, **params)
    before = full[: full.index(stop)]
    assert completion.text == before + (stop if name == "stop_strings" else "")
    assert completion.finish_reason == "stop"
    assert completion.usage.completion_tokens < 20


async def test_criteria_and_processors_of_the_user_count() -> None:
    def only_a(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        kept = torch.full_like(scores, -torch.inf)
        kept[:, 97] = 0
        return kept

    def at_ten(input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= 10)

    async with make(tiny()) as llm:
        completion = await llm.generate(
            PROMPT,
            logits_processor=LogitsProcessorList([only_a]),
            stopping_criteria=StoppingCriteriaList([at_ten]),
        )
    assert (completion.text, completion.finish_reason) == ("a" * 7, "stop")


async def test_a_criterion_ends_one_sample_of_several() -> None:
    def first_row(input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        done = torch.zeros(len(input_ids), dtype=torch.bool)
        done[0] = input_ids.shape[1] >= 6
        return done

    async with make(tiny()) as llm:
        completion = await llm.generate(
            PROMPT,
            n=2,
            do_sample=True,
            max_new_tokens=12,
            stopping_criteria=StoppingCriteriaList([first_row]),
        )
    assert [len(sample.token_ids) for sample in completion.samples] == [3, 12]
    assert [sample.finish_reason for sample in completion.samples] == ["stop", "length"]


async def test_lengths_win_over_those_of_the_model() -> None:
    model = tiny()
    saved = model.generation_config.max_new_tokens
    model.generation_config.max_new_tokens = 4
    try:
        async with make(model) as llm:
            lengths = [
                (await call).usage.completion_tokens
                for call in (
                    llm.generate(PROMPT),
                    llm.generate(PROMPT, max_new_tokens=9),
                    llm.generate(PROMPT, max_length=15),
                )
            ]
    finally:
        model.generation_config.max_new_tokens = saved
    assert lengths == [4, 9, 12]


@for_each("way", ["leave", "cancel", "task", "close"])
async def test_it_stops_within_one_step(way: str) -> None:
    model = Held()
    async with make(model) as llm:
        stream = llm.stream(PROMPT)
        async with stream:
            events = stream.events()
            model.go.release(3)
            for _ in range(3):
                await anext(events)
            for _ in range(4):
                await in_thread(lambda: model.arrived.acquire(timeout=PATIENCE))
            if way == "leave":
                await stream.aclose()
            elif way == "cancel":
                stream.cancel()
            elif way == "task":
                with anyio.move_on_after(0.01):
                    await anext(events)
            else:
                # As `aclose` does first; nobody else could tell the foreign code.
                llm._thread.stop()
            model.go.release(300)
            if way in ("cancel", "close"):
                assert len([event async for event in events]) <= 2
    assert model.steps == 4
    reason = "aborted" if way == "close" else "cancelled"
    assert stream.result.finish_reason == reason
    assert len(stream.result.token_ids) in (3, 4)


async def test_max_time() -> None:
    async with make(tiny()) as llm:
        completion = await llm.generate(PROMPT, max_time=1e-6)
    assert completion.finish_reason == "time"


async def test_an_error_fails_its_request_alone() -> None:
    def bad(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("on purpose")

    async with make(tiny()) as llm:
        with pytest.raises(ZeroDivisionError, match="on purpose"):
            await llm.generate(PROMPT, logits_processor=LogitsProcessorList([bad]))
        completion = await llm.generate(PROMPT, max_new_tokens=5)
    assert list(completion.token_ids) == reference(5, do_sample=False)


async def test_logprobs_of_a_foreign_model_are_refused() -> None:
    async with make(tiny()) as llm:
        with pytest.raises(InvalidRequestError) as caught:
            await llm.generate(PROMPT, logprobs=True)
    assert caught.value.parameter == "logprobs"


class Silent:
    """Returns or puts what it is told to."""

    def __init__(self, answer: Any = None, put: tuple[Any, ...] = ()) -> None:
        self.config = tiny().config
        self.generation_config = tiny().generation_config
        self.device = torch.device("cpu")
        self.answer, self.values = answer, put

    def generate(self, input_ids: torch.Tensor, streamer: Any, **_: Any) -> Any:
        for value in self.values:
            streamer.put(value)
        return self.answer(input_ids) if callable(self.answer) else self.answer


def behind(token_ids: list[int], rows: int = 1) -> Any:
    return lambda prompts: torch.cat((prompts, torch.tensor([token_ids] * rows)), 1)


async def test_ids_of_a_model_that_puts_none_are_its_answer() -> None:
    async with make(Silent(behind([66, 67, EOS, PAD]))) as llm:
        found = await llm.generate(PROMPT, max_new_tokens=9)
        assert (found.text, found.token_ids) == ("BC", (66, 67, EOS))
        assert (found.finish_reason, found.stop_reason) == ("stop", EOS)
    async with make(Silent(behind([66, 67], rows=2))) as llm:
        stream = llm.stream(PROMPT, max_new_tokens=2, num_return_sequences=2, temperature=0.0)
        events = [event async for event in stream.events()]
        assert [event.token_ids for event in events] == [(66, 67), (66, 67)]
        assert [event.finish_reason for event in events] == ["length", "length"]


@for_each(
    "answer",
    [
        None,
        [[1, 2, 3]],
        torch.tensor(PROMPT_IDS),
        torch.tensor([PROMPT_IDS, PROMPT_IDS]),
        torch.tensor([[1, 2, 3, 4]]),
        torch.tensor([PROMPT_IDS]) / 2,
        torch.empty(1, 5, dtype=torch.int64, device="meta"),
    ],
)
async def test_a_result_without_new_ids_is_refused_by_name(answer: Any) -> None:
    async with make(Silent(answer)) as llm:
        for beams in (1, 2):
            with pytest.raises(InvalidRequestError, match=r"`generate` returns .*\[B, T\]"):
                await llm.generate(PROMPT, max_new_tokens=4, num_beams=beams)


@for_each("value", [65, [65], torch.tensor([65]), torch.tensor([[65]])])
async def test_ids_may_be_put_in_any_form(value: Any) -> None:
    async with make(Silent(put=(torch.tensor([PROMPT_IDS]), value, [66, 67]))) as llm:
        assert (await llm.generate(PROMPT)).text == "ABC"


async def test_a_model_that_puts_no_prompt_loses_nothing() -> None:
    for first in (65, [65], torch.tensor([[65]])):
        async with make(Silent(put=(first, 66, [67, 68]))) as llm:
            assert (await llm.generate(PROMPT)).text == "ABCD"
    two = (torch.tensor([65, 97]), torch.tensor([66, 98]))
    async with make(Silent(put=two)) as llm:
        stream = llm.stream(PROMPT, num_return_sequences=2, temperature=1.0)
        assert {event.index async for event in stream.events()} == {0, 1}
    for odd in ([0, *PROMPT_IDS], [65, 66]):  # a padded prompt, or two new ids: who knows
        async with make(Silent(put=(torch.tensor([odd]), 66))) as llm:
            with pytest.raises(InvalidRequestError, match=r"`generate` puts .*the prompt, then"):
                await llm.generate(PROMPT)


@for_each("value", [None, "text", 0.5, [True], torch.ones(1)])
async def test_what_is_no_ids_is_refused_where_it_is_put(value: Any) -> None:
    async with make(Silent(put=(torch.tensor([PROMPT_IDS]), value))) as llm:
        with pytest.raises(InvalidRequestError, match=r"`generate` puts .*integers \[1\]"):
            await llm.generate(PROMPT)


async def test_ids_of_other_rows_are_refused_where_they_are_put() -> None:
    async with make(Silent(put=(torch.tensor([PROMPT_IDS]), [65, 66, 67]))) as llm:
        with pytest.raises(InvalidRequestError, match=r"`generate` puts .*integers \[2\]"):
            await llm.generate(PROMPT, num_return_sequences=2, temperature=1.0)
