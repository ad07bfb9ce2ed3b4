"""Processors and watermarks in streams: found again, alike in both doors, failing alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from asyncgen.errors import InvalidRequestError, InvalidScoresError
from asyncgen.generation.logits.base import LogitsProcessorList
from asyncgen.generation.watermarking.bayes import BayesianDetectorConfig, BayesianDetectorModel
from asyncgen.generation.watermarking.detector import (
    SynthIDTextWatermarkDetector,
    WatermarkDetector,
)
from asyncgen.generation.watermarking.greenlist import WatermarkingConfig
from asyncgen.generation.watermarking.synthid import SynthIDTextWatermarkingConfig
from asyncgen.llm.llm import AsyncLLM
from asyncgen.reference.load_model import load_model, load_tokenizer
from tests.cases import for_each, some
from tests.doubles.engine import no_thread_left
from tests.doubles.models import TableModel, byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.reference.load_model import PreTrainedModel

__all__ = ["no_thread_left"]

pytestmark = pytest.mark.anyio

PROMPTS = ("Once upon a time", "The little dog", "One day a girl", "There was a big")


@pytest.fixture(scope="module")
def demo() -> PreTrainedModel:
    """The bundled model."""
    return load_model("demo", device="cpu")


async def streamed(llm: AsyncLLM, prompt: str | Sequence[int], **params: Any) -> list[int]:
    """The ids that a stream made."""
    async with llm.stream(prompt, **params) as stream:
        return [token async for event in stream.events() for token in event.token_ids]


@pytest.mark.parametrize("scheme", some(["lefthash", "selfhash"], 1))
async def test_a_watermark_is_found_in_a_stream(demo: PreTrainedModel, scheme: str) -> None:
    watermark = WatermarkingConfig(bias=8.0, seeding_scheme=scheme)
    detector = WatermarkDetector(demo.config, "cpu", watermark, ignore_repeated_ngrams=True)
    # A small model is sure of most words; a watermark shows where there is a choice.
    options: dict[str, Any] = {
        "max_new_tokens": 100,
        "min_new_tokens": 100,
        "temperature": 2.0,
        "top_k": 0,
    }
    async with AsyncLLM(demo, tokenizer=load_tokenizer("demo")) as llm:
        for seed, prompt in enumerate(PROMPTS[:2]):
            marked = await streamed(
                llm, prompt, seed=seed, watermarking_config=watermark.to_dict(), **options
            )
            plain = await streamed(llm, prompt, seed=seed, **options)
            assert [bool(detector(torch.tensor([ids]))) for ids in (marked, plain)] == [True, False]


@pytest.mark.gate
async def test_a_trained_detector_finds_synthid_in_streams(demo: PreTrainedModel) -> None:
    watermark = SynthIDTextWatermarkingConfig(ngram_len=4, keys=list(range(100, 112)))
    processor = watermark.construct_processor(demo.config.vocab_size, "cpu")
    tokenizer = load_tokenizer("demo")
    options: dict[str, Any] = {
        "max_new_tokens": 40,
        "min_new_tokens": 40,
        "temperature": 2.0,
        "top_k": 0,
        "n": 8,
    }

    async def texts(seed: int, marked: bool) -> Tensor:
        """Eight texts, int64 [8, 40]."""
        config = watermark if marked else None
        rows: dict[int, list[int]] = {}
        async with llm.stream(
            PROMPTS[0], seed=seed, watermarking_config=config, **options
        ) as stream:
            async for event in stream.events():
                rows.setdefault(event.index, []).extend(event.token_ids)
        return torch.tensor(list(rows.values()))

    async with AsyncLLM(demo, tokenizer=tokenizer) as llm:
        train = torch.cat((await texts(1, True), await texts(11, False)))
        held_out = torch.cat((await texts(21, True), await texts(31, False)))
    labels = torch.tensor([1.0] * 8 + [0.0] * 8)
    torch.manual_seed(0)
    module = BayesianDetectorModel(BayesianDetectorConfig(len(watermark.keys)))
    module.train()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    g_values = processor.compute_g_values(train)
    mask = processor.compute_context_repetition_mask(train)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        _, loss = module(g_values, mask, labels, 0.01)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    detector = SynthIDTextWatermarkDetector(module.eval(), processor, tokenizer)
    with torch.no_grad():
        (probabilities,) = detector(held_out)
    found = (probabilities > 0.5).tolist()
    assert sum(found[:8]) >= 7, probabilities
    assert sum(found[8:]) <= 1, probabilities


async def test_generate_and_stream_agree(demo: PreTrainedModel) -> None:
    prompt = load_tokenizer("demo").encode_ids("Once upon a time there was")
    cases: list[dict[str, Any]] = [
        {"guidance_scale": 1.6},
        {"guidance_scale": 1.6, "negative_prompt_ids": prompt[2:5]},
        {"encoder_repetition_penalty": 1.4, "encoder_no_repeat_ngram_size": 2},
        {"watermarking_config": {"bias": 3.0}},
        {"watermarking_config": {"ngram_len": 3, "keys": [1, 2, 3]}},
    ]
    async with AsyncLLM(demo, tokenizer=load_tokenizer("demo")) as llm:
        for case in cases:
            options = {"max_new_tokens": 12, "do_sample": False, **case}
            found = await streamed(llm, prompt, **options)
            if "negative_prompt_ids" in case:
                options["negative_prompt_ids"] = torch.tensor([case["negative_prompt_ids"]])
            expected = demo.generate(torch.tensor([prompt]), **options)
            assert isinstance(expected, Tensor)
            assert found == expected[0, len(prompt) :].tolist(), case


async def test_penalties_by_count_keep_tokens_from_coming_back() -> None:
    async with AsyncLLM(TableModel(seed=3), tokenizer=byte_tokenizer()) as llm:
        options = {"max_new_tokens": 60, "temperature": 1.5, "seed": 1, "top_k": 12}
        plain = await streamed(llm, "abc", **options)
        for name in ("presence_penalty", "frequency_penalty"):
            penalised = await streamed(llm, "abc", **options, **{name: 2.0})
            assert len(set(penalised)) > len(set(plain)), name
            rewarded = await streamed(llm, "abc", **options, **{name: -2.0})
            assert len(set(rewarded)) < len(set(plain)), name


@for_each(
    ("params", "name"),
    [
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": "a"}, "frequency_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"negative_prompt_ids": [1, 2]}, "negative_prompt_ids"),
        ({"guidance_scale": 2.0, "negative_prompt_ids": []}, "negative_prompt_ids"),
        ({"guidance_scale": 2.0, "negative_prompt_ids": "abc"}, "negative_prompt_ids"),
        ({"guidance_scale": 2.0, "negative_prompt_ids": [[1], [2]]}, "negative_prompt_ids"),
        ({"guidance_scale": 2.0, "negative_prompt_ids": [10**6]}, "negative_prompt_ids"),
        (
            {
                "guidance_scale": 2.0,
                "negative_prompt_ids": [1, 2],
                "negative_prompt_attention_mask": [1],
            },
            "negative_prompt_attention_mask",
        ),
        ({"watermarking_config": {"bias": "a"}}, "watermarking_config.bias"),
        ({"watermarking_config": {"foo": 1}}, "watermarking_config"),
        ({"watermarking_config": {"ngram_len": 3}}, "watermarking_config"),
        ({"encoder_repetition_penalty": -1.0}, "encoder_repetition_penalty"),
        ({"encoder_no_repeat_ngram_size": -1}, "encoder_no_repeat_ngram_size"),
        ({"guidance_scale": "a"}, "guidance_scale"),
    ],
)
async def test_bad_parameters_are_named(
    demo: PreTrainedModel, params: dict[str, Any], name: str
) -> None:
    async with AsyncLLM(demo, tokenizer=load_tokenizer("demo")) as llm:
        with pytest.raises(InvalidRequestError) as caught:
            await llm.generate("Once", max_new_tokens=2, **params)
        assert caught.value.parameter == name


def third_is_nan(input_ids: Tensor, scores: Tensor) -> Tensor:
    """A processor that fails some way in."""
    return scores * torch.nan if input_ids.shape[1] >= 6 else scores


def too_narrow(input_ids: Tensor, scores: Tensor) -> Tensor:
    """A processor that returns another shape."""
    return scores[:, :-1]


def bans_all(input_ids: Tensor, scores: Tensor) -> Tensor:
    """A processor that leaves no token, and writes in place."""
    return scores.fill_(-torch.inf)


@for_each("do_sample", [False, True])
@for_each("processor", [third_is_nan, too_narrow, bans_all, None])
async def test_broken_processor_fails_its_request_alone(processor: Any, do_sample: bool) -> None:
    name = "SuppressTokensLogitsProcessor" if processor is None else processor.__name__
    broken: dict[str, Any] = {"do_sample": do_sample, "max_new_tokens": 20}
    if processor is None:
        broken["suppress_tokens"] = list(range(260))
    else:
        broken["logits_processor"] = LogitsProcessorList([processor])
    model = TableModel(seed=1)
    async with AsyncLLM(model, tokenizer=byte_tokenizer()) as llm:
        alone = await streamed(llm, "abc", max_new_tokens=20, do_sample=False)
        async with llm.stream("abc", max_new_tokens=20, do_sample=False) as other:
            events = other.events()
            ids = list((await anext(events)).token_ids)
            with pytest.raises(InvalidScoresError, match=name) as caught:
                await llm.generate("abc", **broken)
            ids += [token async for event in events for token in event.token_ids]
        assert caught.value.processor == name
        assert ids == alone
        assert await streamed(llm, "abc", max_new_tokens=20, do_sample=False) == alone
    with pytest.raises(InvalidScoresError, match=name):
        model.generate(torch.tensor([[97, 98, 99]]), **broken)


def test_a_foreign_model_gets_the_penalties() -> None:
    """`tests/engine` has the rest of foreign models; here only what a stream adds."""
    from asyncgen.engine.lane import foreign_run as foreign

    processors = LogitsProcessorList([third_is_nan])
    request: Any = SimpleNamespace(
        processors=processors,
        params=SimpleNamespace(
            negative_prompt_ids=torch.tensor([[1]]), negative_prompt_attention_mask=None
        ),
    )
    assert foreign._penalties(request) == []
    assert list(foreign._negative_prompt(request)) == ["negative_prompt_ids"]
