"""Pages in 8 bits under everything that moves pages: the tokens are those of a text alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen import native
from asyncgen.cache.paged_storage import page_bytes
from asyncgen.engine.options import EngineOptions
from asyncgen.engine.setup.assembly import plan_room
from asyncgen.errors import InvalidRequestError
from asyncgen.families.plans.attention_options import AttentionOptions
from asyncgen.llm.fingerprint import fingerprint_of
from asyncgen.models.attention.paged.native_attention import NativeAttention
from tests.cases import for_each
from tests.engine.batches import Bench, ids_of
from tests.families.arch.families import make

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACKED: dict[str, Any] = {"kv_cache_dtype": "int8"}
ROOM: dict[str, Any] = {"position_bytes": 1 << 16, **PACKED}
GREEDY: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False}


@pytest.fixture(scope="module", params=["chosen", "torch"], autouse=True)
def _attention(request: pytest.FixtureRequest) -> Iterator[None]:
    """Use the attention of this machine, then torch's where that differs."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            if not native.supports_packed_pages():
                pytest.skip("chosen anyway")
            patch.setattr(NativeAttention, "serves", lambda storage: False)
        yield


@pytest.fixture(scope="module")
def demo() -> Any:
    return asyncgen.load_model("demo", progress=False)


def alone(model: Any, prompt: list[int], **given: Any) -> list[list[int]]:
    """Tokens of each sample of a request that has packed pages for itself, in one chunk."""
    bench = Bench(model, pages=256, prefill_chunk_size=1000, page_size=32, **ROOM)
    request, sink = bench.add(prompt, **given)
    bench.run()
    return [ids_of(sink, index) for index in range(request.params.num_samples)]


def prompts(count: int) -> list[list[int]]:
    return [[40 + number, *range(60, 61 + 11 * number)] for number in range(count)]


def test_a_mix_and_preemption_change_no_token(demo: Any) -> None:
    each = page_bytes(demo.core.config, 1, demo.dtype, is_packed=True)
    bench = Bench(demo, pages=22, page_size=4, position_bytes=each, prefix_caching=False, **PACKED)
    assert bench.pool.num_pages == 22
    added = [(prompt, bench.add(prompt, **GREEDY)[1]) for prompt in prompts(4)]
    bench.run()
    assert bench.batch.scheduler.num_preemptions
    for prompt, sink in added:
        assert [ids_of(sink)] == alone(demo, prompt, **GREEDY)
    bench.require_empty()


def test_samples_drafts_and_the_next_turn_read_packed_pages(demo: Any) -> None:
    bench = Bench(demo, **ROOM)
    text, sampled = [*range(50, 71)], {"do_sample": True, "n": 3, "seed": 5, "max_new_tokens": 9}
    _, sink = bench.add(text, **sampled)
    _, drafted = bench.add(text * 2, prompt_lookup_num_tokens=4, **GREEDY)
    bench.run()
    assert [ids_of(sink, index) for index in range(3)] == alone(demo, text, **sampled)
    assert [ids_of(drafted)] == alone(demo, text * 2, **GREEDY)
    text = [*text, *ids_of(sink), 3, 4]
    request, sink = bench.add(text, **GREEDY)
    bench.run()
    assert request.progress.cached_tokens >= 24
    assert [ids_of(sink)] == alone(demo, text, **GREEDY)
    bench.require_empty()


@pytest.mark.parametrize(
    "name",
    [
        "qwen3_5_text",  # states beside pages
        *(
            pytest.param(name, marks=pytest.mark.soak)
            for name in (
                "deepseek_v3",  # heads of latent rows, values narrower than keys
                "mimo_v2_flash",  # sinks, repeated heads, narrower values
                "gemma4_text",  # heads of two sizes, shared keys and values
                "gpt_oss",
                "gemma2",  # soft caps, windows
                "bloom",  # slopes
                "llama4_text",  # windows in chunks
            )
        ),
    ],
)
def test_families_keep_their_tokens_in_a_mix(name: str, tmp_path: Path) -> None:
    make(name, tmp_path)
    model = asyncgen.load_model(tmp_path, dtype="float32", progress=False)
    given = {"max_new_tokens": 9, "do_sample": False}
    # A hybrid's state is kept in the step of a page's end, so its chunks are cut there alone.
    bench = Bench(model, page_size=4, **ROOM)
    added = [([5, 6 + n, *range(7, 9 + 5 * n)], n) for n in range(3)]
    sinks = [bench.add(prompt, **given)[1] for prompt, _ in added]
    bench.run()
    again = [
        bench.add([*prompt, *ids_of(sink), 9], **given)
        for (prompt, _), sink in zip(added, sinks, strict=True)
    ]
    bench.run()
    assert any(request.progress.cached_tokens for request, _ in again)
    for (prompt, _), sink, (request, other) in zip(added, sinks, again, strict=True):
        assert [ids_of(sink)] == alone(model, prompt, **given)
        assert [ids_of(other)] == alone(model, request.prompt_ids, **given)
    bench.require_empty()


def test_same_memory_has_more_pages_and_the_lane_its_share(demo: Any) -> None:
    config, size = demo.core.config, demo.core.config.head_dim
    room = {
        dtype: plan_room(demo, EngineOptions(kv_cache_memory=8 << 20, kv_cache_dtype=dtype))
        for dtype in ("auto", "int8")
    }
    assert room["int8"].num_pages == (8 << 20) // page_bytes(config, 32, demo.dtype, is_packed=True)
    assert room["int8"].num_pages / room["auto"].num_pages > 0.99 * 4 * size / (size + 4)
    # A cache beside the pages is not packed: it takes as many bytes as ever.
    outside = room["int8"].outside
    packed = page_bytes(config, 32, demo.dtype, is_packed=True)
    assert outside * packed == page_bytes(config, 32, demo.dtype)
    assert room["int8"].pages(320) == -(-10 * outside.numerator // outside.denominator)
    assert room["int8"].pages(room["int8"].positions(2)) * 2 <= room["int8"].num_pages
    assert room["auto"].pages(320) == 10


def test_metrics_and_fingerprint_report_the_cache_dtype(demo: Any) -> None:
    bench = Bench(demo, **ROOM)
    assert bench.engine.metrics.snapshot().cache_dtype == "int8"
    if native.supports_packed_pages():
        known = {fingerprint_of(demo, None), fingerprint_of(demo, None, "int8")}
        assert len(known) == 2 and None not in known


@for_each(
    ("fields", "said"),
    [
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"attending": ()}, "keep states, and no keys"),
        ({"attention": (AttentionOptions(is_bidirectional=True),)}, "in both directions"),
    ],
)
def test_models_without_such_pages_are_refused(fields: dict[str, Any], said: str) -> None:
    known = {"is_encoder_decoder": False, "attending": (0,), "attention": (), **fields}
    model = SimpleNamespace(
        core=SimpleNamespace(config=SimpleNamespace(**known)), device=torch.device("cpu")
    )
    with pytest.raises(InvalidRequestError, match=f"`kv_cache_dtype` is 'int8': .*{said}.*'auto'"):
        plan_room(model, EngineOptions(kv_cache_dtype="int8"))


def test_other_values_and_recorded_steps_are_refused(demo: Any) -> None:
    with pytest.raises(InvalidRequestError, match="`kv_cache_dtype` is 'fp8'"):
        asyncgen.AsyncLLM("demo", kv_cache_dtype="fp8")
    with pytest.raises(InvalidRequestError, match="`use_cuda_graph` is True.*8 bits"):
        plan_room(demo, EngineOptions(kv_cache_dtype="int8", use_cuda_graph=True))
    with pytest.raises(InvalidRequestError, match="not ours keeps its own"):
        Bench(torch.nn.Linear(1, 1), **ROOM)


def test_documented_functions_accept_cache_dtype_with_a_config(demo: Any) -> None:
    config = asyncgen.GenerationConfig(max_new_tokens=4, do_sample=False)
    batching = asyncgen.ContinuousBatchingConfig(num_blocks=8)
    given = {"inputs": [[5, 6, 7]], "generation_config": config, **PACKED}
    found = [
        next(iter(demo.generate_batch(**given, **more).values())).generated_tokens
        for more in ({}, {"continuous_batching_config": batching})
    ]
    assert found[0] == found[1] == alone(demo, [5, 6, 7], max_new_tokens=4, do_sample=False)[0]
