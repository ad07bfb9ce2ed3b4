"""Streams with a quantised cache: beside the batch, with the tokens of `generate`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.llm.llm import AsyncLLM
from tests.cases import for_each
from tests.doubles.engine import no_thread_left
from tests.doubles.models import byte_tokenizer
from tests.doubles.strategies import tiny_model

if TYPE_CHECKING:
    from asyncgen.reference.load_model import PreTrainedModel

__all__ = ["no_thread_left"]

pytestmark = pytest.mark.anyio

PROMPT = [5, 9, 11, 4, 7, 30, 31, 32]
QUANTISED: list[dict[str, Any]] = [
    {"backend": "quanto", "nbits": 2, "q_group_size": 8, "residual_length": 4},
    {"backend": "hqq", "nbits": 3, "axis_key": 1, "q_group_size": 16, "residual_length": 3},
]
CALLS: list[dict[str, Any]] = [{}, {"num_beams": 3}, {"repetition_penalty": 1.3}]


@cache
def shared() -> PreTrainedModel:
    """One model for all; nothing here changes it."""
    return tiny_model()


def asked(settings: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "max_new_tokens": 9,
        "eos_token_id": [],
        "cache_implementation": "quantized",
        "cache_config": settings,
        **more,
    }


def generated(params: dict[str, Any]) -> list[int]:
    model: Any = shared()
    mask = torch.ones(1, len(PROMPT), dtype=torch.int64)
    found = model.generate(torch.tensor([PROMPT]), attention_mask=mask, **params)
    ids: list[int] = found[0, len(PROMPT) :].tolist()
    return ids


@for_each("settings", QUANTISED, ids=lambda each: each["backend"])
@for_each("call", CALLS, ids=str)
async def test_a_stream_has_the_tokens_of_generate(
    settings: dict[str, Any], call: dict[str, Any]
) -> None:
    params = asked(settings, **call)
    async with AsyncLLM(shared(), tokenizer=byte_tokenizer()) as llm:
        ids: list[int] = []
        async with llm.stream(PROMPT, **params) as stream:
            async for event in stream.events():
                ids += event.token_ids
        beside = await llm.generate(PROMPT, max_new_tokens=9, eos_token_id=[])
    assert ids == generated(params)
    # The engine's own cache is as exact as ever.
    exact = asked(settings, cache_implementation=None, cache_config=None)
    assert list(beside.token_ids) == generated(exact)


async def test_it_is_left_anywhere_and_others_go_on() -> None:
    params = asked(QUANTISED[0])
    async with AsyncLLM(shared(), tokenizer=byte_tokenizer()) as llm:
        whole = list((await llm.generate(PROMPT, **params)).token_ids)
        for count in (0, 3, 6):
            ids: list[int] = []
            async with llm.stream(PROMPT, **params) as stream:
                async for event in stream.events():
                    ids += event.token_ids
                    if len(ids) > count:
                        break
            kept = list(stream.result.token_ids)
            assert ids == kept[: len(ids)] and kept == whole[: len(kept)]
        samples = await llm.generate(PROMPT, do_sample=True, seed=3, n=2, **params)
        assert len(samples.samples) == 2
        assert list((await llm.generate(PROMPT, **params)).token_ids) == whole


@for_each(
    ("settings", "more", "name"),
    [
        ({"nbits": 5}, {}, "nbits"),
        ({"axis_key": 1}, {}, "axis_key"),
        ({"q_group_size": 0}, {}, "q_group_size"),
        ({"q_group_size": 7}, {}, "q_group_size"),
        ({"bits": 4}, {}, "cache_config"),
        ({"nbits": 4}, {"cache_implementation": "static"}, "cache_config"),
        ({"nbits": 4}, {"cache_implementation": None}, "cache_config"),
        ({}, {"prompt_lookup_num_tokens": 3}, "cache_implementation"),
    ],
    ids=str,
)
async def test_unsupported_parameters_are_refused_with_a_quantized_cache(
    settings: dict[str, Any], more: dict[str, Any], name: str
) -> None:
    async with AsyncLLM(shared(), tokenizer=byte_tokenizer()) as llm:
        with pytest.raises(InvalidRequestError) as caught:
            await llm.generate(PROMPT, **asked(settings, **more))
        assert caught.value.parameter == name


async def test_models_that_it_is_not_for_are_refused() -> None:
    sliding = tiny_model(4, model_type="mistral", sliding_window=6)
    async with AsyncLLM(sliding, tokenizer=byte_tokenizer()) as llm:
        with pytest.raises(InvalidRequestError, match="sliding window"):
            await llm.generate(PROMPT, **asked({}))
