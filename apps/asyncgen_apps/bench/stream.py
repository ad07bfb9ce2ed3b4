"""``bench stream``: what a reader of our stream gets, beside a reader of transformers' streamer.

Interleaves the runs of the sides and turns them into figures; measures nothing itself.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from rich.table import Table

from asyncgen_apps.bench.figures import median, overhead
from asyncgen_apps.bench.models import checkpoint
from asyncgen_apps.bench.neighbours import CpuBackoff
from asyncgen_apps.bench.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from matplotlib.figure import Figure

    from asyncgen_apps.bench.models import Checkpoint


SIDES = {
    "asyncgen": "asyncgen_apps.bench.stream_sides:AsyncgenReader",
    "transformers": "asyncgen_apps.bench.stream_sides:TransformersReader",
    "loop": "asyncgen_apps.bench.stream_sides:AsyncgenLoop",
}
WARM_UP_TOKENS = 16
DISTURBING = 0.15
"""Cores; a desktop at rest stays below."""
CAPTION = "overhead: reading the stream, beside draining the same steps in a loop"


@dataclass(frozen=True, slots=True)
class StreamBench:
    """What to measure.

    Attributes:
        shape: Name of a made checkpoint, or ``demo``.
        model: A folder instead.
        dtypes: Types of the weights, one comparison each.
        new_tokens: Tokens of each answer.
        prompt_tokens: Tokens of each prompt.
        runs: Measured runs of each side.
        threads: Compute threads of each side, for the record; the environment sets them.
    """

    shape: str
    model: Path | None
    dtypes: tuple[str, ...]
    new_tokens: int
    prompt_tokens: int
    runs: int
    threads: int


@dataclass(frozen=True, slots=True)
class AnswerTimes:
    """One answer.

    Attributes:
        first: Seconds to the first text, as its reader saw it.
        total: Seconds to the end.
        others: Cores that other processes used meanwhile; ``None`` if not known.
    """

    first: float
    total: float
    others: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The runs of all sides at one data type.

    Attributes:
        dtype: Type of the weights.
        new_tokens: Tokens of each answer.
        runs: For each side its runs, in the order they were made.
        same_text: Whether the readers of both libraries got the same text every time.
    """

    dtype: str
    new_tokens: int
    runs: dict[str, list[AnswerTimes]]
    same_text: bool

    def tokens_per_second(self, side: str) -> float:
        """Median rate of a side, from the request to the end of the text."""
        return self.new_tokens / median(run.total for run in self.runs[side])

    def first_token_ms(self, side: str) -> float:
        """Median milliseconds to the first text of a side."""
        return 1000 * median(run.first for run in self.runs[side])

    @property
    def ratio(self) -> float:
        """How many times as fast as transformers our reader is."""
        return self.tokens_per_second("asyncgen") / self.tokens_per_second("transformers")

    @property
    def streaming_overhead(self) -> float:
        """What streaming adds to draining the same steps in a loop, as a share."""
        ours, bare = ([run.total for run in self.runs[side]] for side in ("asyncgen", "loop"))
        return overhead(ours, bare)

    def data(self) -> dict[str, object]:
        """Return figures and runs for JSON."""
        return {
            "dtype": self.dtype,
            "tokens_per_second": {side: self.tokens_per_second(side) for side in self.runs},
            "first_token_ms": {
                side: self.first_token_ms(side) for side in ("asyncgen", "transformers")
            },
            "ratio": self.ratio,
            "streaming_overhead": self.streaming_overhead,
            "same_text": self.same_text,
            "runs": {side: [asdict(run) for run in runs] for side, runs in self.runs.items()},
        }


@dataclass(slots=True)
class StreamReport:
    """The comparisons of one benchmark.

    Attributes:
        bench: What was measured.
        comparisons: One for each data type.
    """

    bench: StreamBench
    comparisons: list[Comparison] = field(default_factory=list)

    @classmethod
    def of(cls, bench: StreamBench, progress: Callable[[str], None] = lambda text: None) -> Self:
        """Run a benchmark.

        Args:
            bench: What to measure.
            progress: Told in a few words what comes next.

        Raises:
            BenchError: A side failed.
        """
        report = cls(bench)
        for dtype in bench.dtypes:
            progress(f"{dtype}: loading")
            with checkpoint(bench.shape, bench.model, dtype) as found:
                report.comparisons.append(_compare(bench, dtype, found, progress))
        return report

    @property
    def kind(self) -> str:
        """Name of the benchmark."""
        return "stream"

    def settings(self) -> dict[str, object]:
        """Return what was measured, for JSON."""
        return {**asdict(self.bench), "model": str(self.bench.model) if self.bench.model else None}

    def results(self) -> object:
        """Return figures and runs, for JSON."""
        return [comparison.data() for comparison in self.comparisons]

    def table(self) -> Table:
        """Lay the medians out."""
        bench = self.bench
        title = (
            f"{_name(bench)}, {_threads(bench)}, {bench.prompt_tokens} + "
            f"{bench.new_tokens} tokens, medians of {bench.runs} runs"
        )
        table = Table("dtype", title=title, caption=self._caption())
        table.add_column("reader of", no_wrap=True, min_width=len("transformers"))
        for column in ("tokens/s", "ratio", "first text, ms", "overhead", "same text"):
            table.add_column(column, justify="right")
        for one in self.comparisons:
            share = f"{100 * one.streaming_overhead:+.1f} %"
            same = "yes" if one.same_text else "no"
            cells = {"asyncgen": (f"[bold]{one.ratio:.2f} ×", share, same)}
            for side in ("asyncgen", "transformers"):
                ratio, share, same = cells.get(side, ("1", "", ""))
                rate, first = one.tokens_per_second(side), one.first_token_ms(side)
                table.add_row(one.dtype, side, f"{rate:.1f}", ratio, f"{first:.1f}", share, same)
            table.add_section()
        return table

    def _caption(self) -> str:
        """Explain a column, and say if the machine was too busy for the figures to mean much."""
        runs = [run for one in self.comparisons for side in one.runs.values() for run in side]
        busy = [run for run in runs if run.others is not None and run.others > DISTURBING]
        if not busy:
            return CAPTION
        return f"{CAPTION}\n{len(busy)} of {len(runs)} runs shared the cores with other processes"

    def draw(self, figure: Figure) -> None:
        """Draw the rates as bars, one group for each data type."""
        axes = figure.subplots()
        for offset, side, color in (
            (-0.2, "transformers", "#9aa5b1"),
            (0.2, "asyncgen", "#1f6feb"),
        ):
            places = [index + offset for index in range(len(self.comparisons))]
            rates = [one.tokens_per_second(side) for one in self.comparisons]
            bars = axes.bar(places, rates, width=0.38, color=color, label=side)
            axes.bar_label(bars, labels=[f"{rate:.0f}" for rate in rates], padding=2)
        labels = [f"{one.dtype}\n{one.ratio:.2f} × as fast" for one in self.comparisons]
        axes.set_xticks(range(len(labels)), labels)
        axes.set_ylabel("tokens per second, to the reader")
        axes.set_title(f"Streaming {_name(self.bench)} with {_threads(self.bench)}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(y=0.15)
        axes.legend(frameon=False)


def _name(bench: StreamBench) -> str:
    """Name the checkpoint."""
    return bench.shape if bench.model is None else bench.model.name


def _threads(bench: StreamBench) -> str:
    """Count the compute threads in words."""
    return f"{bench.threads} thread" + ("" if bench.threads == 1 else "s")


def _compare(
    bench: StreamBench, dtype: str, found: Checkpoint, progress: Callable[[str], None]
) -> Comparison:
    """Run the sides in turn: A, B, C, A, B, C."""
    runs: dict[str, list[AnswerTimes]] = {side: [] for side in SIDES}
    texts: dict[str, list[str]] = {side: [] for side in SIDES}
    with ExitStack() as stack:
        workers = {side: stack.enter_context(Worker(name)) for side, name in SIDES.items()}
        for worker in workers.values():
            worker.call("load", folder=str(found.folder), dtype=dtype)
            _run(worker, found, bench.prompt_tokens, WARM_UP_TOKENS, seed=0)
        for number in range(bench.runs):
            progress(f"{dtype}: run {number + 1} of {bench.runs}")
            for side, worker in workers.items():
                neighbours = CpuBackoff(worker.pid)
                got = _run(worker, found, bench.prompt_tokens, bench.new_tokens, seed=number + 1)
                runs[side].append(AnswerTimes(got["first"], got["total"], neighbours.cores()))
                texts[side].append(got["text"])
    same = texts["asyncgen"] == texts["transformers"]
    return Comparison(dtype, bench.new_tokens, runs, same)


def _run(
    worker: Worker, found: Checkpoint, prompt_tokens: int, new_tokens: int, seed: int
) -> dict[str, Any]:
    """Generate one answer; all sides get the same prompt in the same round."""
    prompt = found.prompt(prompt_tokens, seed)
    return worker.call("run", prompt=prompt, new_tokens=new_tokens, **found.floor(new_tokens))
