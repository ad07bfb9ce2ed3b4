"""Test that Prometheus reads the engine's counts, under the names that dashboards use."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import pytest

pytest.importorskip("prometheus_client")
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from asyncgen import AsyncLLM, InvalidRequestError
from asyncgen.engine.metrics import EngineMetrics, RequestProgress
from asyncgen.text.tokenizer import Tokenizer
from asyncgen_apps.metrics import EngineCollector, exposition
from asyncgen_apps.metrics.prometheus import COUNTERS, GAUGES, HISTOGRAMS

if TYPE_CHECKING:
    from asyncgen import MetricsSnapshot


@dataclass(eq=False)
class FakeRequest:
    """As much of a request as is measured."""

    prompt_ids: list[int] = field(default_factory=lambda: [1, 2, 3])
    accepted_at: float = 0.0
    progress: RequestProgress = field(default_factory=lambda: RequestProgress(started_at=0.02))


@dataclass
class FakeLLM:
    """An engine that two requests went through."""

    is_healthy: bool = True
    recorder: EngineMetrics = field(default_factory=EngineMetrics)

    def __post_init__(self) -> None:
        for end in ("stop", "length"):
            request = FakeRequest()
            self.recorder.queue_time.observe(0.02 - request.accepted_at)
            self.recorder.prefix_cache_queries += 3
            self.recorder.prefix_cache_hits += 2
            for now in (0.3, 0.4, 0.6):
                self.recorder.tokens(request, 1, now)
                request.progress.num_tokens += 1
                request.progress.first_token_at = request.progress.first_token_at or now
                request.progress.last_token_at = now
            self.recorder.request_finished(request, end, 0.7)
        self.recorder.requests_running, self.recorder.requests_waiting = 2, 5
        self.recorder.pages_used, self.recorder.pages_total = 3, 12
        self.recorder.preemptions = 1
        self.recorder.step_tokens.observe(40)

    def metrics(self) -> MetricsSnapshot:
        return self.recorder.snapshot()


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(*collectors: EngineCollector) -> tuple[Samples, dict[str, str]]:
    """All samples by name and labels, and the kind of each family, of the text that is served."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }
    return samples, {family.name: family.type for family in families}


def test_every_figure_is_served() -> None:
    samples, kinds = scraped(EngineCollector(FakeLLM(), model_name="demo"))
    label = ("model_name", "demo")
    expected = {
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 5,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:prefix_cache_queries_total": 6,
        "vllm:prefix_cache_hits_total": 4,
        "vllm:num_preemptions_total": 1,
        "vllm:prompt_tokens_total": 6,
        "vllm:generation_tokens_total": 6,
        "vllm:time_to_first_token_seconds_count": 2,
        "vllm:time_to_first_token_seconds_sum": 0.6,
        "vllm:inter_token_latency_seconds_count": 4,
        "vllm:e2e_request_latency_seconds_sum": 1.4,
        "vllm:request_queue_time_seconds_sum": 0.04,
        "vllm:request_prefill_time_seconds_sum": 0.56,
        "vllm:request_decode_time_seconds_sum": 0.6,
        "vllm:request_prompt_tokens_sum": 6,
        "vllm:request_generation_tokens_sum": 6,
        "vllm:iteration_tokens_total_sum": 40,
    }
    for name, value in expected.items():
        assert samples[name, (label,)] == pytest.approx(value), name
    for reason in ("stop", "length"):
        assert samples["vllm:request_success_total", (("finished_reason", reason), label)] == 1
    cache = (("block_size", "0"), label, ("num_gpu_blocks", "12"), ("cache_dtype", "auto"))
    assert samples["vllm:cache_config_info", tuple(sorted(cache))] == 1
    assert kinds["vllm:num_requests_running"] == "gauge"
    assert kinds["vllm:generation_tokens"] == "counter"
    assert kinds["vllm:inter_token_latency_seconds"] == "histogram"
    assert len(kinds) == len(GAUGES) + len(COUNTERS) + len(HISTOGRAMS) + 2


def test_buckets_are_cumulative_and_end_with_all() -> None:
    samples, _ = scraped(EngineCollector(FakeLLM(), model_name="demo"))
    buckets = {
        float(dict(labels)["le"]): value
        for (name, labels), value in samples.items()
        if name == "vllm:inter_token_latency_seconds_bucket"
    }
    bounds = sorted(buckets)
    assert [buckets[bound] for bound in bounds] == sorted(buckets.values())
    assert buckets[0.05] == 0 and buckets[0.25] == 4 and buckets[float("inf")] == 4


def test_collectors_with_different_prefixes_and_models_coexist() -> None:
    samples, _ = scraped(
        EngineCollector(FakeLLM(), model_name="a", prefix="asyncgen_"),
        EngineCollector(FakeLLM(), model_name="b", prefix="asyncgen_"),
    )
    for model in "ab":
        assert samples["asyncgen_num_requests_running", (("model_name", model),)] == 2
    with pytest.raises(ValueError, match="prefix '1x'"):
        EngineCollector(FakeLLM(), model_name="a", prefix="1x")


def test_collector_of_a_missing_engine_serves_no_samples() -> None:
    llm = FakeLLM(is_healthy=False)
    assert scraped(EngineCollector(llm, model_name="demo")) == ({}, {})
    assert scraped(EngineCollector(AsyncLLM("demo"), model_name="demo")) == ({}, {})


@pytest.mark.anyio
async def test_a_real_engine_is_read() -> None:
    async with AsyncLLM("demo") as llm:
        collector = EngineCollector(llm, model_name="demo")
        await llm.generate("Once upon a time", max_new_tokens=4, do_sample=False)
        samples, _ = scraped(collector)
    label = ("model_name", "demo")
    assert samples["vllm:generation_tokens_total", (label,)] == 4
    assert samples["vllm:request_success_total", (("finished_reason", "length"), label)] == 1


@pytest.mark.anyio
async def test_servers_reply_the_text_of_the_collector() -> None:
    async with AsyncLLM("demo", num_threads=1) as llm:
        await llm.generate("Once upon a time", max_new_tokens=4, do_sample=False)
        registry = CollectorRegistry()
        registry.register(EngineCollector(llm, model_name="demo"))
        with anyio.fail_after(60):
            told, reply = b"", b"?"
            while told != generate_latest(registry):  # the step behind the last token still counts
                told = generate_latest(registry)
                reply = await exposition(llm, "demo")
        assert reply == told
        others = EngineCollector(llm, model_name="other")
        assert (await exposition(llm, "demo", others)).count(b"vllm:num_requests_running{") == 2
    assert await exposition(llm, "demo") == b""


@pytest.mark.anyio
async def test_an_engine_that_dies_while_it_is_asked() -> None:
    class Dying(AsyncLLM):
        is_healthy = True

    assert await exposition(Dying("demo"), "demo") == b""


@pytest.mark.anyio
async def test_every_figure_that_is_published_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four requests, two at a time, in memory that is too small for two; a known prompt; a hang."""
    figures: list[Samples] = []
    prompts = [f"Once upon a time there were {count}" for count in ("one", "two", "three", "four")]
    long = " ".join(prompts * 2)  # more than a page
    page = 32 * 4608  # bytes of keys and values
    async with AsyncLLM("demo", max_running=2, page_size=32, kv_cache_memory=5 * page) as llm:
        collector = EngineCollector(llm, model_name="demo")

        async def ask(prompt: str) -> None:
            async with llm.stream(prompt, min_new_tokens=100, max_new_tokens=100) as stream:
                pieces = 0
                async for _ in stream:
                    pieces += 1
                    if pieces % 20 == 5:
                        figures.append(scraped(collector)[0])

        figures.append(scraped(collector)[0])
        async with anyio.create_task_group() as tasks:
            for prompt in prompts:
                tasks.start_soon(ask, prompt)
        for _ in range(2):
            await llm.generate(long, max_new_tokens=2)
        figures.append(scraped(collector)[0])
        hang = threading.Event()
        monkeypatch.setattr(Tokenizer, "encode_ids", lambda *_, **__: hang.wait(60))
        monkeypatch.setattr(llm._preparing, "_seconds", 0.01)
        with pytest.raises(InvalidRequestError, match="prepare_seconds"):
            await llm.generate("bad")
        figures.append(scraped(collector)[0])
        hang.set()
    names = [f"vllm:{name}" for name in GAUGES]
    names += [f"vllm:{name}_total" for name in COUNTERS]
    names += [f"vllm:{name}_{part}" for name in HISTOGRAMS for part in ("count", "sum")]
    label = (("model_name", "demo"),)
    seen = {name: {shot[name, label] for shot in figures} for name in names}
    seen["vllm:request_success_total"] = {
        sum(value for (name, _), value in shot.items() if name == "vllm:request_success_total")
        for shot in figures
    }
    names_told = {name for shot in figures for name, _ in shot}
    published = {name for name in names_told if not name.endswith(("_bucket", "_info"))}
    assert published == seen.keys()
    still = [name for name, values in seen.items() if len(values) < 2]
    assert not still, f"never moved: {still}"
