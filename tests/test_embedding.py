"""`embed` gives what transformers gives, in any mix, and is read, cancelled and refused as streams."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import torch

from asyncgen import LLM, AsyncLLM, Embedding
from asyncgen.embedding_settings import EmbeddingSettings
from asyncgen.errors import (
    ContextLengthError,
    EngineClosedError,
    InvalidRequestError,
    InvalidScoresError,
    ModelLoadError,
    OverloadedError,
)
from asyncgen.modeling import PreTrainedModel
from tests.doubles.checkpoints import save_checkpoint
from tests.doubles.engine import in_thread, no_thread_left
from tests.doubles.models import Gate, TableModel, byte_tokenizer
from tests.models.build import random_config, random_model, random_pair
from tests.test_shared_batch import settled

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["no_thread_left"]

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "qwen2": {},
    "qwen3": {},
    "gpt2": {"n_positions": 64, "n_embd": 48, "n_layer": 3, "n_head": 6},
}
LENGTHS = (1, 2, 6, 7, 8, 14, 20, 33, 50, 63, 64)
TEXTS = [[(7 * row + 3 * at) % 90 + 3 for at in range(size)] for row, size in enumerate(LENGTHS)]
PAGE = 7 * 2 * 3 * 2 * 8 * 4
"""Bytes of seven tokens: keys and values, layers, heads, their size, float32."""


def make(model: Any, **options: Any) -> AsyncLLM:
    """An `AsyncLLM` over a model object."""
    return AsyncLLM(model, tokenizer=options.pop("tokenizer", byte_tokenizer()), **options)


def expected(reference: Any, ids: list[int], pooling: str, *, normalize: bool) -> torch.Tensor:
    """What transformers makes of a text."""
    with torch.no_grad():
        states = reference.base_model(torch.tensor([ids])).last_hidden_state[0]
    vector: torch.Tensor = states[-1] if pooling == "last" else states.mean(0)
    return vector / vector.norm() if normalize else vector


def check(
    found: list[Embedding], reference: Any, pooling: str, texts: list[list[int]] = TEXTS
) -> None:
    """Hold normalised embeddings to what transformers gives."""
    assert [one.index for one in found] == list(range(len(texts)))
    for one, ids in zip(found, texts, strict=True):
        wanted = expected(reference, ids, pooling, normalize=True)
        torch.testing.assert_close(one.vector, wanted, atol=1e-5, rtol=0)
        assert one.usage.prompt_tokens == len(ids) and one.usage.completion_tokens == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_many_lengths_equal_transformers(family: str) -> None:
    reference, core = random_pair(family, **FAMILIES[family])
    with LLM(
        PreTrainedModel(core), tokenizer=byte_tokenizer(), page_size=7, prefill_chunk_size=20
    ) as llm:
        for pooling in ("last", "mean", "last"):  # the second time most of it is in pages
            before = llm.metrics().prefix_cache_hits
            check(llm.embed(TEXTS, pooling=pooling), reference, pooling)  # type: ignore[arg-type]
        assert llm.metrics().prefix_cache_hits - before > 100
        raw = llm.embed(TEXTS[5], pooling="mean", normalize=False)
    wanted = expected(reference, TEXTS[5], "mean", normalize=False)
    torch.testing.assert_close(raw.vector, wanted, atol=1e-5, rtol=1e-5)
    assert raw.index == 0 and raw.vector.device.type == "cpu"


@pytest.mark.anyio
@pytest.mark.parametrize("ahead", [False, True], ids=["plain", "ahead"])
@pytest.mark.parametrize("pooling", ["last", "mean"])
async def test_beside_streams_with_preemption(pooling: Any, ahead: bool) -> None:
    reference, core = random_pair("llama")
    model = PreTrainedModel(core)
    prompts = [[5 + row, 9, 11 * row % 90] for row in range(6)]
    alone = [
        model.generate(torch.tensor([ids]), max_new_tokens=40, do_sample=False)[0].tolist()
        for ids in prompts
    ]
    answers: dict[int, list[int]] = {}
    found: list[list[Embedding]] = []

    async def ask(number: int) -> None:
        got = await llm.generate(prompts[number], max_new_tokens=40, do_sample=False)
        answers[number] = [*prompts[number], *got.token_ids]

    async def embed() -> None:
        found.append(await llm.embed(TEXTS, pooling=pooling))

    async with make(
        model,
        page_size=7,
        prefill_chunk_size=9,
        kv_cache_memory=20 * PAGE,
        use_async_batching=ahead,
    ) as llm:
        async with anyio.create_task_group() as group:
            for number in range(len(prompts)):
                group.start_soon(ask, number)
                group.start_soon(embed)
        await settled(llm)
        assert llm.metrics().preemptions > 0
        assert llm.metrics().pages_total == 20
    assert [answers[number] for number in range(len(prompts))] == alone
    for one in found:
        check(one, reference, pooling)


@pytest.mark.anyio
async def test_a_preempted_mean_counts_every_token_once() -> None:
    reference, core = random_pair("llama")
    long = [TEXTS[-1], TEXTS[-1][::-1], TEXTS[-2][::-1]]
    found: dict[int, Embedding] = {}

    async def embed(number: int) -> None:
        found[number] = await llm.embed(long[number], pooling="mean", client=f"client-{number}")

    async with make(
        PreTrainedModel(core),
        page_size=7,
        prefill_chunk_size=3,
        kv_cache_memory=14 * PAGE,
        scheduler="prefill_first",
    ) as llm:
        async with anyio.create_task_group() as group:
            group.start_soon(llm.generate, [3])
            for number in range(3):
                group.start_soon(embed, number)
        assert llm.metrics().preemptions > 0
    for number, one in found.items():
        wanted = expected(reference, long[number], "mean", normalize=True)
        torch.testing.assert_close(one.vector, wanted, atol=1e-5, rtol=0)
