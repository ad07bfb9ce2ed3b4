"""Count requests, tokens, pages and waiting times of an engine.

The decode thread records, one addition at a time and without a lock; any thread reads a frozen
snapshot. Plain Python: no Prometheus, no clock of its own, and no waiting.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, fields
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.runtime.user_code import UserDraws


SECONDS = tuple(step * 10.0**power for power in range(-4, 3) for step in (1.0, 2.5, 5.0))
"""Upper bounds of latencies: 0.1 ms to 500 s."""
TOKENS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))
"""Upper bounds of token counts: 1 to 500,000."""


class HasComputed(Protocol):
    """Sequence, as readers of another thread see it."""

    @property
    def num_computed(self) -> int:
        """Number of its tokens whose keys and values are there."""


@dataclass(slots=True)
class RequestProgress:
    """Times and counts of a request while it runs; times are in seconds of the engine's clock.

    Attributes:
        started_at: Time of its first turn; ``None`` before.
        first_token_at: Time of its first token; ``None`` before.
        last_token_at: Time of its newest token.
        num_tokens: Tokens generated here so far, those of all samples together.
        cached_tokens: Tokens of the prompt whose keys and values were there already.
        sequence: The sequence that reads the prompt, from its first step to the request's end.
        has_old_weights: Whether the model's weights are those with which the engine opened.
        user_draws: Random numbers of the user's code; ``None`` before any of it ran.
    """

    started_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float = 0.0
    num_tokens: int = 0
    cached_tokens: int = 0
    sequence: HasComputed | None = None
    has_old_weights: bool = True
    user_draws: UserDraws | None = None


class Measured(Protocol):
    """Request, as the recorder reads it.

    Attributes:
        prompt_ids: The prompt.
        accepted_at: Time at which it was made, in seconds of the engine's clock.
        progress: Its times and counts.
    """

    @property
    def prompt_ids(self) -> list[int]:
        """Ids of the prompt."""

    @property
    def accepted_at(self) -> float:
        """Time at which it was made."""

    @property
    def progress(self) -> RequestProgress:
        """Times and counts so far."""


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """Numbers of values between fixed bounds.

    Attributes:
        bounds: Upper bounds of the buckets, inclusive, ascending; a last bucket has no bound.
        counts: Values in each bucket, one entry more than ``bounds``.
        sum: Sum of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Mean of the values, ``None`` without any."""
        return self.sum / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """Estimate a quantile, evenly within its bucket.

        Args:
            share: From 0 to 1.

        Returns:
            The estimate, at most the last bound; ``None`` without any value.
        """
        rank, below = share * self.count, 0
        lower = 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and below + count >= rank:
                return lower + (bound - lower) * (rank - below) / count
            below, lower = below + count, bound
        return self.bounds[-1] if self.count else None


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """Metrics of an engine at one moment; counts and histograms run from its start.

    The engine works meanwhile, so two figures may lie one update apart.

    Attributes:
        requests_running: Requests that advance.
        requests_waiting: Requests that wait to run.
        pages_used: Pages of the cache that running requests hold.
        pages_total: Pages of the cache; 0 in an engine without pages.
        page_size: Tokens of a page; 0 in an engine without pages.
        cache_dtype: Type of the numbers in pages, as of ``kv_cache_dtype``: ``"auto"`` is the
            model's dtype.
        prefix_cache_queries: Prompt tokens that were looked up in the prefix cache.
        prefix_cache_hits: Prompt tokens that were found there, and so not computed.
        preemptions: Times that a running request lost its pages and went back to the queue.
        prompt_tokens: Prompt tokens of requests that got their first token, or their embedding.
        generation_tokens: Tokens generated.
        finished: Requests that ended, by finish reason; one that raised is ``"error"``.
        time_to_first_token: Seconds from acceptance to the first token.
        inter_token_latency: Seconds between two steps that gave a request tokens. A step that
            settles several at once (an accepted draft, several samples) counts once.
        queue_time: Seconds from acceptance to the first turn.
        prefill_time: Seconds from the first turn to the first token, or to the embedding.
        decode_time: Seconds from the first to the last token of a request that ended.
        e2e_latency: Seconds from acceptance to the end.
        request_prompt_tokens: Prompt length of requests that ended.
        request_generation_tokens: Tokens of requests that ended.
        step_tokens: Tokens computed in a step of the shared batch, prompts included.
        threads_abandoned: Threads that still tokenize a text though its request was given up.
    """

    requests_running: int
    requests_waiting: int
    pages_used: int
    pages_total: int
    page_size: int
    cache_dtype: str
    prefix_cache_queries: int
    prefix_cache_hits: int
    preemptions: int
    prompt_tokens: int
    generation_tokens: int
    finished: Mapping[str, int]
    time_to_first_token: HistogramSnapshot
    inter_token_latency: HistogramSnapshot
    queue_time: HistogramSnapshot
    prefill_time: HistogramSnapshot
    decode_time: HistogramSnapshot
    e2e_latency: HistogramSnapshot
    request_prompt_tokens: HistogramSnapshot
    request_generation_tokens: HistogramSnapshot
    step_tokens: HistogramSnapshot
    threads_abandoned: int = 0

    def __post_init__(self) -> None:
        """Make the mapping read-only."""
        object.__setattr__(self, "finished", MappingProxyType(dict(self.finished)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it for another process."""
        figures = {one.name: getattr(self, one.name) for one in fields(self)}
        return partial(type(self), **{**figures, "finished": dict(self.finished)}), ()

    @property
    def cache_usage(self) -> float:
        """Share of the cache's pages that running requests hold, 0 to 1."""
        return self.pages_used / self.pages_total if self.pages_total else 0.0

    @property
    def prefix_cache_hit_rate(self) -> float:
        """Share of the looked-up prompt tokens that were found, 0 to 1."""
        queries = self.prefix_cache_queries
        return self.prefix_cache_hits / queries if queries else 0.0


class Histogram:
    """Counter of values between fixed bounds; adding one allocates nothing that stays."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """Start empty.

        Args:
            bounds: Upper bounds, inclusive, ascending.
        """
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Add a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def snapshot(self) -> HistogramSnapshot:
        """Return the counts so far."""
        return HistogramSnapshot(self._bounds, tuple(self._counts), self._sum)


@dataclass(slots=True)
class EngineMetrics:
    """Recorder of an engine, with the names of a `MetricsSnapshot`.

    The decode thread alone calls its methods, but for :meth:`snapshot`, and sets its figures.
    ``now`` is the engine's clock. A request keeps its own times; the recorder keeps no request.
    """

    requests_running: int = 0
    requests_waiting: int = 0
    pages_used: int = 0
    pages_total: int = 0
    page_size: int = 0
    cache_dtype: str = "auto"
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    time_to_first_token: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    inter_token_latency: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    queue_time: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    prefill_time: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    decode_time: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    e2e_latency: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    request_prompt_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    request_generation_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    step_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))

    def tokens(self, request: Measured, count: int, now: float) -> None:
        """Record ``count`` new tokens of a request, before it updates its own times.

        The sequences of a request may be recorded one by one.
        """
        self.generation_tokens += count
        progress = request.progress
        if progress.first_token_at is None:
            self.prompt_tokens += len(request.prompt_ids)
            self.time_to_first_token.observe(now - request.accepted_at)
            if progress.started_at is not None:
                self.prefill_time.observe(now - progress.started_at)
        elif now > progress.last_token_at:
            self.inter_token_latency.observe(now - progress.last_token_at)

    def embedded(self, request: Measured, now: float) -> None:
        """Record that a request has its embedding, before its end."""
        self.prompt_tokens += len(request.prompt_ids)
        if request.progress.started_at is not None:
            self.prefill_time.observe(now - request.progress.started_at)

    def request_finished(self, request: Measured, reason: str, now: float) -> None:
        """Record the end of a request."""
        self.finished[reason] = self.finished.get(reason, 0) + 1
        self.e2e_latency.observe(now - request.accepted_at)
        self.request_prompt_tokens.observe(len(request.prompt_ids))
        progress = request.progress
        self.request_generation_tokens.observe(progress.num_tokens)
        if progress.first_token_at is not None:
            self.decode_time.observe(progress.last_token_at - progress.first_token_at)

    def snapshot(self) -> MetricsSnapshot:
        """Return all figures so far; any thread may call it."""
        figures: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        for name, figure in figures.items():
            if isinstance(figure, Histogram):
                figures[name] = figure.snapshot()
        return MetricsSnapshot(**figures)
