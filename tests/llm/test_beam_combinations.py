"""Combine beams with every other option that shapes a text, in `AsyncLLM` and in `generate`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncgen.llm.llm import AsyncLLM
from asyncgen.reference.load_model import load_model, load_tokenizer
from tests.cases import for_each

pytestmark = pytest.mark.anyio

TEXT = "Once upon a ti"
COMPANY: list[dict[str, Any]] = [
    {"guidance_scale": 1.5},
    {"guidance_scale": 1.5, "negative_prompt_ids": torch.tensor([[7, 8, 9]])},
    {"watermarking_config": {"bias": 2.5, "seeding_scheme": "selfhash"}},
    {"watermarking_config": {"keys": [1, 2, 3], "ngram_len": 3}},
    {"token_healing": True},
    {"token_healing": True, "num_beam_groups": 3, "diversity_penalty": 0.5},
    {"cache_implementation": "static", "no_repeat_ngram_size": 2},
    {"stop_strings": ["e", "a"]},
]


@pytest.fixture(scope="module")
def parts() -> tuple[Any, Any]:
    return load_model("demo"), load_tokenizer("demo")


@for_each("options", COMPANY, ids=str)
async def test_a_stream_joins_to_what_generate_returns(
    parts: tuple[Any, Any], options: dict[str, Any]
) -> None:
    model, tokenizer = parts
    call = {"num_beams": 3, "max_new_tokens": 9, "do_sample": False} | options
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    expected = model.generate(ids, tokenizer=tokenizer, num_return_sequences=2, **call)
    async with AsyncLLM(model, tokenizer=tokenizer) as llm:
        stream = llm.stream(TEXT, n=2, **call)
        events = [event async for event in stream.events()]
    joined = ["".join(e.text for e in events if e.index == row) for row in range(2)]
    for row, sample in enumerate(stream.result.samples):
        whole = expected[row].tolist()
        found = list(sample.token_ids)
        assert found
        assert str(found)[1:-1] in str(whole)
        assert joined[row] == sample.text
