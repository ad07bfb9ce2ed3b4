"""Export the metrics of an engine to Prometheus, under the names of vLLM.

A snapshot is read at each scrape and costs nothing in between. :class:`EngineCollector` is for a
registry of your own; :func:`exposition` makes the reply of the servers. Existing dashboards, alerts
and autoscalers use the names and labels of vLLM; ``prefix`` changes their beginning. A value that
an engine does not have (pages, in a model that decodes by itself) is 0.

===========================================  =========  ============================================
name after the prefix                        kind       meaning
===========================================  =========  ============================================
``num_requests_running``                     gauge      requests that advance
``num_requests_waiting``                     gauge      requests that wait for a place
``kv_cache_usage_perc``                      gauge      share of the pages in use, 0 to 1
``num_threads_abandoned``                    gauge      threads that hang over a text
``cache_config_info``                        info       ``block_size``, ``num_gpu_blocks``: pages;
                                                        ``cache_dtype``: what they hold
``prefix_cache_queries_total``               counter    prompt tokens looked up
``prefix_cache_hits_total``                  counter    prompt tokens found, not computed
``num_preemptions_total``                    counter    requests that lost their pages
``prompt_tokens_total``                      counter    prompt tokens
``generation_tokens_total``                  counter    generated tokens
``request_success_total``                    counter    ended requests, by ``finished_reason``
``time_to_first_token_seconds``              histogram  acceptance to first token
``inter_token_latency_seconds``              histogram  between two steps that gave tokens
``request_queue_time_seconds``               histogram  acceptance to first turn
``request_prefill_time_seconds``             histogram  first turn to first token, or vector
``request_decode_time_seconds``              histogram  first to last token
``e2e_request_latency_seconds``              histogram  acceptance to end
``request_prompt_tokens``                    histogram  prompt length of ended requests
``request_generation_tokens``                histogram  tokens of ended requests
``iteration_tokens_total``                   histogram  tokens computed in a step
===========================================  =========  ============================================
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector

from asyncgen import AsyncgenError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.core import Metric

    from asyncgen import HistogramSnapshot, MetricsSnapshot
    from asyncgen_apps.engine import Engine

__all__ = ["EngineCollector", "exposition", "exposition_of", "families"]


PREFIX = "vllm:"

GAUGES = {
    "num_requests_running": ("requests_running", "Requests that advance."),
    "num_requests_waiting": ("requests_waiting", "Requests that wait for a place."),
    "kv_cache_usage_perc": ("cache_usage", "Share of the cache's pages in use, 0 to 1."),
    "num_threads_abandoned": ("threads_abandoned", "Threads that hang over a text."),
}
COUNTERS = {
    "prefix_cache_queries": ("prefix_cache_queries", "Prompt tokens looked up among kept pages."),
    "prefix_cache_hits": ("prefix_cache_hits", "Prompt tokens found among kept pages."),
    "num_preemptions": ("preemptions", "Running requests that lost their pages."),
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of requests that got a token or a vector."),
    "generation_tokens": ("generation_tokens", "Tokens generated."),
}
HISTOGRAMS = {
    "time_to_first_token_seconds": ("time_to_first_token", "From acceptance to the first token."),
    "inter_token_latency_seconds": ("inter_token_latency", "Between two steps that gave tokens."),
    "request_queue_time_seconds": ("queue_time", "From acceptance to the first turn."),
    "request_prefill_time_seconds": (
        "prefill_time",
        "From the first turn to a token or vector.",
    ),
    "request_decode_time_seconds": ("decode_time", "From the first to the last token."),
    "e2e_request_latency_seconds": ("e2e_latency", "From acceptance to the end."),
    "request_prompt_tokens": ("request_prompt_tokens", "Prompt length of ended requests."),
    "request_generation_tokens": ("request_generation_tokens", "Tokens of ended requests."),
    "iteration_tokens_total": ("step_tokens", "Tokens computed in a step."),
}


class MetricsSource(Protocol):
    """Engine in this process, such as an ``AsyncLLM``."""

    @property
    def is_healthy(self) -> bool:
        """True if the engine is loaded."""

    def metrics(self) -> MetricsSnapshot:
        """Return its metrics."""


class EngineCollector(Collector):
    """Gives Prometheus the metrics of an engine at each scrape.

    Register it once for each model. A scrape before the model is loaded or after it was closed has
    no metrics of it.

    Example:
        ```python
        registry = CollectorRegistry()
        registry.register(EngineCollector(llm, model_name="demo"))
        text = generate_latest(registry)
        ```
    """

    def __init__(self, llm: MetricsSource, *, model_name: str, prefix: str = PREFIX) -> None:
        """Keep the engine; nothing is read yet.

        Args:
            llm: The engine.
            model_name: Value of the label ``model_name``.
            prefix: Beginning of every name: letters, digits, ``_`` and ``:``.

        Raises:
            ValueError: No metric name may begin with the prefix.
        """
        if not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", prefix):
            raise ValueError(
                f"prefix {prefix!r}: letters, digits, `_` and `:` only, and no digit in front"
            )
        self._llm = llm
        self._model_name = model_name
        self._prefix = prefix

    def collect(self) -> Iterable[Metric]:
        """Read the engine once."""
        if self._llm.is_healthy:
            yield from families(self._llm.metrics(), self._model_name, self._prefix)

    def describe(self) -> Iterable[Metric]:
        """Name no metrics in advance, so that several models can be registered."""
        return ()


async def exposition(llm: Engine, model_name: str, *others: Collector) -> bytes:
    """Return the reply to ``GET /metrics``; the engine may run in another process.

    Args:
        llm: The engine; a dead one adds no metrics.
        model_name: Value of the label ``model_name``.
        *others: Collectors of other metrics.
    """
    registry = CollectorRegistry()
    if llm.is_healthy:
        with suppress(AsyncgenError):  # it may die while it is asked
            registry.register(_Families(families(await llm.measure(), model_name, PREFIX)))
    for other in others:
        registry.register(other)
    return generate_latest(registry)


def exposition_of(engines: Mapping[str, MetricsSnapshot], model_name: str) -> bytes:
    """Return the reply to ``GET /metrics`` for several engines, with the label ``replica``.

    Args:
        engines: Metrics by the name of the engine.
        model_name: Value of the label ``model_name``.
    """
    found: dict[str, Metric] = {}
    for replica, snapshot in engines.items():
        for family in families(snapshot, model_name, PREFIX, replica=replica):
            if family.name in found:
                found[family.name].samples += family.samples
            else:
                found[family.name] = family
    registry = CollectorRegistry()
    registry.register(_Families(found.values()))
    return generate_latest(registry)


class _Families(Collector):
    """Collector of given metric families."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def collect(self) -> Iterable[Metric]:
        return self._found


def families(
    snapshot: MetricsSnapshot, model_name: str, prefix: str, *, replica: str | None = None
) -> Iterator[Metric]:
    """Convert a snapshot to metric families of one sample each.

    Args:
        snapshot: Metrics of an engine.
        model_name: Value of the label ``model_name``.
        prefix: Beginning of every name.
        replica: Value of the label ``replica``; ``None`` for no such label.
    """
    labels, values = ["model_name"], [model_name]
    if replica is not None:
        labels, values = [*labels, "replica"], [*values, replica]
    config = InfoMetricFamily(f"{prefix}cache_config", "The cache.", labels=labels)
    sizes = {"block_size": snapshot.page_size, "num_gpu_blocks": snapshot.pages_total}
    texts = {name: str(size) for name, size in sizes.items()}
    config.add_metric(values, {**texts, "cache_dtype": snapshot.cache_dtype})
    yield config
    for kind, table in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
        for name, (field, help_text) in table.items():
            family = kind(prefix + name, help_text, labels=labels)
            family.add_metric(values, getattr(snapshot, field))
            yield family
    ended = CounterMetricFamily(
        f"{prefix}request_success", "Requests that ended.", labels=[*labels, "finished_reason"]
    )
    for reason, count in snapshot.finished.items():
        ended.add_metric([*values, reason], count)
    yield ended
    for name, (field, help_text) in HISTOGRAMS.items():
        histogram = HistogramMetricFamily(prefix + name, help_text, labels=labels)
        counted: HistogramSnapshot = getattr(snapshot, field)
        histogram.add_metric(values, _buckets(counted), counted.sum)
        yield histogram


def _buckets(counted: HistogramSnapshot) -> list[tuple[str, float]]:
    """Return the cumulative counts, each with its upper bound."""
    total, found = 0, []
    for bound, count in zip((*counted.bounds, float("inf")), counted.counts, strict=True):
        total += count
        found.append(("+Inf" if bound == float("inf") else f"{bound:.12g}", float(total)))
    return found
