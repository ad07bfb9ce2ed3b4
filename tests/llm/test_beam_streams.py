"""Beams through `AsyncLLM`: settled text early, several sequences by index, every way to end."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.strategies.constraints import PhrasalConstraint
from asyncgen.llm.llm import AsyncLLM
from tests.cases import for_each
from tests.doubles.engine import no_thread_left, probe
from tests.doubles.models import EOS, Gate, TableModel, byte_tokenizer

__all__ = ["no_thread_left"]

pytestmark = pytest.mark.anyio

PROMPT = [1, 2, 3]
MODES: list[dict[str, Any]] = [
    {"num_beams": 3},
    {"num_beams": 3, "early_stopping": True, "length_penalty": 0.3},
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    {"num_beams": 3, "force_words_ids": [[70, 71]]},
    {"num_beams": 3, "constraints": [PhrasalConstraint([80])]},
]


def make(model: TableModel) -> AsyncLLM:
    """An `AsyncLLM` over a model object."""
    return AsyncLLM(model, tokenizer=byte_tokenizer())


def generated(model: TableModel, count: int = 1, **options: Any) -> list[tuple[int, ...]]:
    """Return the tokens of `generate` after the prompt, up to the end-of-sequence id."""
    ids: Any = model.generate(torch.tensor([PROMPT]), num_return_sequences=count, **options)
    rows = ids[:, len(PROMPT) :].tolist()
    return [tuple(row[: row.index(EOS) + 1] if EOS in row else row) for row in rows]


@for_each("options", MODES)
@for_each("count", [1, 3])
async def test_the_streams_are_the_returned_sequences(options: dict[str, Any], count: int) -> None:
    model = TableModel(seed=5, eos_bias=2.0)
    async with make(model) as llm:
        stream = llm.stream(PROMPT, max_new_tokens=14, n=count, **options)
        events = [event async for event in stream.events()]
    assert [sample.token_ids for sample in stream.result.samples] == generated(
        model, count, max_new_tokens=14, **options
    )
    assert {event.index for event in events if event.token_ids} == set(range(count))
    for sample in stream.result.samples:
        assert sample.finish_reason == ("stop" if sample.token_ids[-1] == EOS else "length")
    # All but the best come at the end, in one piece.
    for index in range(1, count):
        assert sum(event.index == index for event in events) == 1


async def test_settled_text_comes_before_the_end() -> None:
    model = TableModel(seed=1)
    async with make(model) as llm:
        stream = llm.stream(PROMPT, max_new_tokens=40, num_beams=3)
        events = [event async for event in stream.events()]
    assert len(events) > 5
    assert len(events[-1].token_ids) < 20


async def test_drawn_beams_depend_on_the_seed_alone() -> None:
    options: dict[str, Any] = {"num_beams": 3, "do_sample": True, "max_new_tokens": 12}
    async with make(TableModel()) as llm:
        first = await llm.generate(PROMPT, seed=1, **options)
        again = await llm.generate(PROMPT, seed=1, **options)
        others = [await llm.generate(PROMPT, seed=seed, **options) for seed in range(2, 6)]
    assert first.token_ids == again.token_ids
    assert any(other.token_ids != first.token_ids for other in others)


async def test_log_probabilities_of_every_id() -> None:
    model = TableModel(seed=2)
    async with make(model) as llm:
        done = await llm.generate(
            PROMPT, num_beams=3, n=2, max_new_tokens=10, logprobs=True, top_logprobs=2
        )
    for sample in done.samples:
        assert sample.logprobs is not None
        ids = [*PROMPT, *sample.token_ids]
        for place, entry in enumerate(sample.logprobs, start=len(PROMPT)):
            before = (torch.tensor(ids[place - 1 : place]), torch.tensor([place - 1]))
            expected = torch.log_softmax(model.core.logits(*before)[0], dim=-1)
            assert entry.token_id == ids[place]
            assert entry.logprob == pytest.approx(float(expected[ids[place]]), abs=1e-5)
            assert entry.top[0].logprob == pytest.approx(float(expected.max()), abs=1e-5)


@for_each("options", MODES)
async def test_cancelled_after_any_event_it_is_a_prefix(options: dict[str, Any]) -> None:
    model = TableModel(seed=3, eos_bias=2.0)
    (whole,) = generated(model, max_new_tokens=12, **options)
    async with make(model) as llm:
        for keep in range(1, 6):
            async with llm.stream(PROMPT, max_new_tokens=12, **options) as stream:
                seen = 0
                async for _ in stream.events():
                    seen += 1
                    if seen == keep:
                        break
            kept = stream.result.token_ids
            assert kept == whole[: len(kept)]
        assert await probe(llm, model) <= 1


async def test_cancelled_from_outside_while_beams_disagree() -> None:
    gate = Gate()
    model = TableModel(seed=3, hook=gate)
    async with make(model) as llm:
        async with llm.stream(PROMPT, max_new_tokens=30, num_beams=3) as stream:
            gate.allow(4)
            await _until(gate, 5)
            stream.cancel()
            gate.open()
            events = [event async for event in stream.events()]
        assert events[-1].finish_reason == "cancelled"
    (whole,) = generated(model, max_new_tokens=30, num_beams=3)
    kept = stream.result.token_ids
    assert kept == whole[: len(kept)]
    assert len(kept) < 30


async def _until(gate: Gate, count: int) -> None:
    import anyio.to_thread

    await anyio.to_thread.run_sync(gate.wait_arrived, count)


async def test_out_of_time_it_gives_the_best_so_far() -> None:
    async with make(TableModel(seed=1)) as llm:
        for max_time in (0.05, 0.5, 5.0):
            done = await llm.generate(PROMPT, max_new_tokens=400, num_beams=3, max_time=max_time)
            assert done.finish_reason in ("time", "length")
            if done.token_ids:  # none if a busy machine came to it too late
                break
    assert done.token_ids


async def test_a_stop_string_ends_the_best_one() -> None:
    model = TableModel(seed=1)
    async with make(model) as llm:
        whole = await llm.generate(PROMPT, max_new_tokens=30, num_beams=3)
        stop = whole.text[8:10]
        done = await llm.generate(PROMPT, max_new_tokens=30, num_beams=3, stop=stop)
        included = await llm.generate(PROMPT, max_new_tokens=30, num_beams=3, stop_strings=stop)
    assert done.text == whole.text[: whole.text.index(stop)]
    assert done.finish_reason == "stop"
    assert included.finish_reason == "stop"


async def test_others_go_on_between_its_steps() -> None:
    model = TableModel(seed=1)
    async with make(model) as llm:
        async with llm.stream(PROMPT, max_new_tokens=60, num_beams=3) as beams:
            await llm.generate(PROMPT, max_new_tokens=4)
            shapes = list(model.core.forwards)
            text = "".join([piece async for piece in beams])
    assert text == beams.result.text
    assert len({rows for rows, _ in shapes}) > 1


async def test_prefix_function_reaches_the_engine() -> None:
    def digits(prompt: int, ids: torch.Tensor) -> list[int]:
        return list(range(48, 58))

    async with make(TableModel()) as llm:
        for options in ({}, {"num_beams": 3}, {"do_sample": True}):
            done = await llm.generate(
                PROMPT, max_new_tokens=5, prefix_allowed_tokens_fn=digits, **options
            )
            assert done.text.isdigit()
        with pytest.raises(InvalidRequestError, match="prefix_allowed_tokens_fn"):
            await llm.generate(PROMPT, prefix_allowed_tokens_fn=[1])  # type: ignore[arg-type]


@for_each(
    ("options", "name"),
    [
        ({"num_beams": 4, "num_beam_groups": 2}, "diversity_penalty"),
        ({"num_beams": 1, "force_words_ids": [[1]]}, "num_beams"),
        ({"num_beams": 2, "n": 3}, "num_return_sequences"),
        ({"early_stopping": True}, "early_stopping"),
        ({"length_penalty": 2.0}, "length_penalty"),
    ],
)
async def test_combinations_are_refused_by_name(options: dict[str, Any], name: str) -> None:
    model = TableModel()
    async with make(model) as llm:
        with pytest.raises(InvalidRequestError, match=name):
            await llm.generate(PROMPT, **options)
    assert model.num_forwards == 0
