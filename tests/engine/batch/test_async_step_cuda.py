"""On a CUDA device: recorded or not, ahead or not, an engine says what the model says."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.models.attention.dense import DenseAttention
from asyncgen.reference.pretrained_model import PreTrainedModel
from tests.engine.batch.test_batch import MODEL
from tests.engine.batches import Bench, ids_of
from tests.models.build import random_config, random_model

pytestmark = pytest.mark.cuda

SIZES = {"hidden_size": 512, "num_attention_heads": 8, "head_dim": 64, "intermediate_size": 1024}
OPTIONS: tuple[dict[str, Any], ...] = (
    {"use_cuda_graph": False, "use_async_batching": False},
    {"use_cuda_graph": False, "use_async_batching": True},
    {"use_cuda_graph": True, "use_async_batching": False},
    {},
)


def model_on_cuda(dtype: torch.dtype, model_type: str = "llama") -> PreTrainedModel:
    """A small network that is large enough for the kernels of a device."""
    raw = random_config(model_type, max_position_embeddings=2048, **SIZES)
    core = random_model(raw, seed=3).to("cuda", dtype)
    core.prepare()
    return PreTrainedModel(core, MODEL.generation_config, "random")


def bench_of(model: PreTrainedModel, **options: Any) -> Bench:
    """An engine over it; pages of what the kernel asks for."""
    return Bench(
        model, pages=2**20, page_size=256, prefill_chunk_size=128, max_running=16, **options
    )


def prompts_of(count: int, longest: int) -> list[list[int]]:
    """Random prompts."""
    rng = random.Random(5)
    return [[rng.randrange(97) for _ in range(rng.randint(1, longest))] for _ in range(count)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_every_token_is_a_likeliest_one(model_type: str, options: dict[str, Any]) -> None:
    """In 16 bits two orders of the same sums differ, so a token may be one of several."""
    model = model_on_cuda(torch.bfloat16, model_type)
    bench = bench_of(model, **options)
    sinks = []
    for number, prompt in enumerate(prompts_of(12, 900)):
        given = {"max_new_tokens": 40 + 7 * number, "eos_token_id": [2, 60 + number]}
        sinks.append((prompt, bench.add(prompt, **given)[1]))
        bench.step()
    bench.run()
    bench.require_empty()
    graphs = bench.batch._runner._graphs
    if options.get("use_cuda_graph", True):
        assert graphs is not None and graphs.failure is None and graphs.sizes
    for prompt, sink in sinks:
        assert sink.events[-1].finish_reason is not None and ids_of(sink)
        ids = prompt + ids_of(sink)
        attention = DenseAttention(model.core.config, DynamicCache())
        places = torch.arange(len(ids), device="cuda")[None]
        embedded = model.core.embed(torch.tensor([ids], device="cuda"))
        with torch.no_grad():
            hidden = model.core.hidden(embedded, places, attention)
            logits = model.core.project(hidden)[0].float()
        behind = logits[len(prompt) - 1 : -1]
        chosen = behind.gather(1, torch.tensor(ids[len(prompt) :], device="cuda")[:, None])[:, 0]
        assert ((behind.amax(-1) - chosen) < 0.15 * behind.std()).all()


def test_in_32_bits_the_tokens_are_the_same() -> None:
    """Without recordings, for which there is no attention; in any order of the steps."""
    model = model_on_cuda(torch.float32)
    results = []
    for options in OPTIONS[:2]:
        bench = bench_of(model, **options)
        sinks = []
        for number, prompt in enumerate(prompts_of(10, 300)):
            given: dict[str, Any] = {"max_new_tokens": 20 + 3 * number, "eos_token_id": 2}
            if number % 2:
                given |= {"do_sample": True, "top_p": 0.9, "top_k": 20, "seed": number}
            sinks.append(bench.add(prompt, **given)[1])
            bench.step()
        bench.run()
        bench.require_empty()
        assert all(sink.events[-1].finish_reason for sink in sinks)
        results.append([ids_of(sink) for sink in sinks])
    assert results[0] == results[1] and all(results[0])


@pytest.mark.parametrize("options", [OPTIONS[1], OPTIONS[3]], ids=str)
def test_a_decode_step_waits_for_its_tokens_alone(options: dict[str, Any]) -> None:
    """torch raises where a call would wait for the device; an event is not such a call."""
    bench = bench_of(model_on_cuda(torch.bfloat16), **options)
    parameters: list[dict[str, Any]] = [
        {},
        {"do_sample": True, "temperature": 0.7, "top_p": 0.9},
        {"do_sample": True, "top_k": 20, "repetition_penalty": 1.2},
        {"do_sample": True, "min_p": 0.05, "presence_penalty": 0.3},
        {"no_repeat_ngram_size": 3, "min_new_tokens": 50},
    ]
    parameters += [{"suppress_tokens": [5, 6]}, {"sequence_bias": [[[7], 2.0], [[8, 9], -2.0]]}]
    sinks = [
        bench.add([number, 1, 2], max_new_tokens=60, eos_token_id=2, **given)[1]
        for number, given in enumerate(parameters)
    ]
    for _ in range(5):
        bench.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            bench.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    bench.run()
    bench.require_empty()
    # What raises in a step fails its requests, and would be told to them alone.
    assert all(sink.events[-1].finish_reason for sink in sinks)
