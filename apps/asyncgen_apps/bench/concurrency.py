"""``bench concurrency``: many streams at once, beside both ways of transformers to batch them.

Interleaves the runs of the sides and turns them into figures; measures nothing itself.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from rich.box import SIMPLE_HEAD
from rich.table import Table

from asyncgen_apps.bench.checkpoints import MADE
from asyncgen_apps.bench.figures import median, percentile
from asyncgen_apps.bench.models import checkpoint
from asyncgen_apps.bench.neighbours import CpuBackoff
from asyncgen_apps.bench.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from matplotlib.figure import Figure

    from asyncgen_apps.bench.models import Checkpoint


SIDES = {
    "asyncgen": "asyncgen_apps.bench.concurrency_sides:AsyncgenStreams",
    "continuous": "asyncgen_apps.bench.concurrency_sides:TransformersContinuous",
    "padded": "asyncgen_apps.bench.concurrency_sides:TransformersPadded",
}
COLORS = {"asyncgen": "#1f6feb", "continuous": "#9aa5b1", "padded": "#d4a72c"}
TARGETS = {
    "float32": {8: 1.5, 16: 1.7, 32: 2.0},
    "bfloat16": {16: 2.5},
}
"""How many times as fast as transformers' continuous batching, from so many streams on."""
WARM_UP_TOKENS = 4
DISTURBING = 0.15
"""Cores; a desktop at rest stays below."""
HEADERS = {"asyncgen": "asyncgen", "continuous": "contin.", "padded": "padded"}
CAPTION = (
    "tokens/s of all streams together, prompts included; contin.: transformers' continuous "
    "batching; padded: its generate over a padded batch; ×: how many times as fast we are, and "
    "≥ what is wanted; first and gap: to our first token and between tokens, as readers saw them"
)


@dataclass(frozen=True, slots=True)
class ConcurrencyBench:
    """What to measure.

    Attributes:
        shape: Name of a made checkpoint, or ``demo``.
        model: A folder instead.
        dtypes: Types of the weights.
        streams: Numbers of streams at a time.
        new_tokens: Tokens of each answer.
        prompt_tokens: Shortest and longest prompt.
        runs: Measured runs of each side.
        threads: Compute threads of each side, for the record; the environment sets them.
        device: Where to compute.
        against: The other sides, ``continuous`` and ``padded``.
    """

    shape: str
    model: Path | None
    dtypes: tuple[str, ...]
    streams: tuple[int, ...]
    new_tokens: int
    prompt_tokens: tuple[int, int]
    runs: int
    threads: int
    device: str = "cpu"
    against: tuple[str, ...] = ("continuous", "padded")

    @property
    def sides(self) -> tuple[str, ...]:
        """All sides, ours first."""
        return ("asyncgen", *self.against)

    @property
    def made(self) -> bool:
        """Whether the weights are drawn on the device."""
        return self.model is None and self.shape in MADE

    @property
    def length(self) -> int:
        """Most tokens of a stream."""
        return self.prompt_tokens[1] + self.new_tokens


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """All streams of one side, once.

    Attributes:
        total: Seconds from the first request to the last token.
        first: Seconds to each stream's first token, as its reader saw it; ours only.
        gaps: Seconds between the tokens of each stream, as its reader saw them; ours only.
        others: Cores that other processes used meanwhile; ``None`` if not known.
    """

    total: float
    first: tuple[float, ...] = ()
    gaps: tuple[float, ...] = ()
    others: float | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """The runs of all sides with one number of streams and one data type.

    Attributes:
        dtype: Type of the weights.
        streams: Streams at a time.
        new_tokens: Tokens of each stream.
        runs: For each side its runs, in the order they were made.
    """

    dtype: str
    streams: int
    new_tokens: int
    runs: dict[str, list[RoundTimes]]

    def tokens_per_second(self, side: str) -> float:
        """Median rate of all streams of a side together."""
        return self.streams * self.new_tokens / median(run.total for run in self.runs[side])

    def ratio(self, side: str) -> float:
        """How many times as fast as another side we are."""
        return self.tokens_per_second("asyncgen") / self.tokens_per_second(side)

    def first_ms(self, share: float) -> float:
        """Milliseconds to the first token that this share of our streams needed at most."""
        return 1000 * percentile([one for run in self.runs["asyncgen"] for one in run.first], share)

    def gap_ms(self, share: float) -> float:
        """Milliseconds between tokens that this share of our gaps took at most."""
        return 1000 * percentile([one for run in self.runs["asyncgen"] for one in run.gaps], share)

    def data(self) -> dict[str, object]:
        """Return figures and runs for JSON; first tokens and gaps as percentiles only."""
        shares = {"p50": 0.5, "p99": 0.99}
        return {
            "dtype": self.dtype,
            "streams": self.streams,
            "tokens_per_second": {side: self.tokens_per_second(side) for side in self.runs},
            "ratio": {side: self.ratio(side) for side in self.runs if side != "asyncgen"},
            "target": target(self.dtype, self.streams),
            "first_token_ms": {name: self.first_ms(share) for name, share in shares.items()},
            "between_tokens_ms": {name: self.gap_ms(share) for name, share in shares.items()},
            "runs": {
                side: [{"total": run.total, "others": run.others} for run in runs]
                for side, runs in self.runs.items()
            },
        }


def target(dtype: str, streams: int) -> float | None:
    """Return how many times as fast as continuous batching we want to be, ``None`` if not said."""
    wanted = [times for least, times in TARGETS.get(dtype, {}).items() if streams >= least]
    return max(wanted, default=None)


@dataclass(slots=True)
class ConcurrencyReport:
    """The cells of one benchmark.

    Attributes:
        bench: What was measured.
        cells: One for each data type and number of streams.
        limits: On an accelerator, for each data type, the bytes of weights that a token needs and
            the bytes per second that the memory moves.
    """

    bench: ConcurrencyBench
    cells: list[Cell] = field(default_factory=list)
    limits: dict[str, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, bench: ConcurrencyBench, progress: Callable[[str], None] = lambda text: None
    ) -> Self:
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
                runs = _Runs(bench, dtype, found, progress)
                if bench.device == "cpu":
                    runs.interleaved()
                else:
                    # Two models side by side would share the memory that each plans its cache in.
                    runs.one_side_after_another()
                report.cells += runs.cells()
                if runs.limits:
                    report.limits[dtype] = runs.limits
        return report

    @property
    def kind(self) -> str:
        """Name of the benchmark."""
        return "concurrency"

    def scaling(self, cell: Cell) -> float | None:
        """How many times the tokens of our one stream all streams get; ``None`` if not measured."""
        ones = [one for one in self.cells if one.dtype == cell.dtype and one.streams == 1]
        if not ones:
            return None
        return cell.tokens_per_second("asyncgen") / ones[0].tokens_per_second("asyncgen")

    def bandwidth_share(self, dtype: str) -> float | None:
        """Share of the memory's bandwidth that our one stream uses; ``None`` if not measured."""
        ones = [one for one in self.cells if one.dtype == dtype and one.streams == 1]
        limits = self.limits.get(dtype)
        if not ones or limits is None:
            return None
        return limits["bytes_per_token"] / (ones[0].gap_ms(0.5) / 1000) / limits["bandwidth"]

    def settings(self) -> dict[str, object]:
        """Return what was measured, for JSON."""
        return {**asdict(self.bench), "model": str(self.bench.model) if self.bench.model else None}

    def results(self) -> object:
        """Return figures and runs, for JSON."""
        return {
            "cells": [{**cell.data(), "scaling": self.scaling(cell)} for cell in self.cells],
            "memory": {
                dtype: {**limits, "share_at_one_stream": self.bandwidth_share(dtype)}
                for dtype, limits in self.limits.items()
            },
        }

    def table(self) -> Table:
        """Lay the medians out."""
        bench = self.bench
        shortest, longest = bench.prompt_tokens
        title = (
            f"{_name(bench)}, {_where(bench)}, prompts of {shortest}-{longest} tokens, "
            f"{bench.new_tokens} new each, medians of {bench.runs} runs"
        )
        # Narrow, so that nothing wraps in a terminal of 80 columns.
        table = Table(
            title=title,
            caption=self._caption(),
            box=SIMPLE_HEAD,
            padding=0,
        )
        for column in (
            "streams",
            *(HEADERS[side] for side in bench.sides),
            *(f"×\n{HEADERS[side]}" for side in bench.against),
            "× one\nstream",
            "first ms\np50/p99",
            "gap ms\np50/p99",
        ):
            table.add_column(column, justify="right", no_wrap=True)
        for dtype in bench.dtypes:
            table.add_row(f"[bold]{dtype}")
            for cell in self.cells:
                if cell.dtype == dtype:
                    table.add_row(*self._row(cell))
            table.add_section()
        return table

    def _row(self, cell: Cell) -> list[str]:
        """Return the figures of one cell as text."""
        row = [str(cell.streams)]
        row += [f"{cell.tokens_per_second(side):.1f}" for side in self.bench.sides]
        for side in self.bench.against:
            ratio = cell.ratio(side)
            wanted = target(cell.dtype, cell.streams) if side == "continuous" else 1.0
            color = "bold" if wanted is None else "bold green" if ratio >= wanted else "bold red"
            asked = f" ≥ {wanted:.1f}" if wanted is not None and side == "continuous" else ""
            row.append(f"[{color}]{ratio:.2f}[/]{asked}")
        scaling = self.scaling(cell)
        row.append("" if scaling is None else f"{scaling:.1f}")
        row.append(f"{cell.first_ms(0.5):.0f}/{cell.first_ms(0.99):.0f}")
        row.append(f"{cell.gap_ms(0.5):.0f}/{cell.gap_ms(0.99):.0f}")
        return row

    def _caption(self) -> str:
        """Explain the columns; add the memory, and whether the machine was busy."""
        lines = [CAPTION]
        for dtype in self.limits:
            share = self.bandwidth_share(dtype)
            if share is not None:
                rate = self.limits[dtype]["bandwidth"] / 1e9
                lines.append(f"{dtype}, one stream: {100 * share:.0f} % of {rate:.0f} GB/s")
        runs = [run for cell in self.cells for side in cell.runs.values() for run in side]
        busy = [run for run in runs if run.others is not None and run.others > DISTURBING]
        if busy:
            lines.append(f"{len(busy)} of {len(runs)} runs shared the cores with other processes")
        return "\n".join(lines)

    def draw(self, figure: Figure) -> None:
        """Draw the rate of each side over the number of streams, one panel for each data type."""
        dtypes = self.bench.dtypes
        panels = figure.subplots(1, len(dtypes), squeeze=False)[0]
        for axes, dtype in zip(panels, dtypes, strict=True):
            cells = [cell for cell in self.cells if cell.dtype == dtype]
            places = [cell.streams for cell in cells]
            for side in self.bench.sides:
                rates = [cell.tokens_per_second(side) for cell in cells]
                label = side if side == "asyncgen" else f"transformers, {side}"
                axes.plot(places, rates, "o-", color=COLORS[side], linewidth=2, label=label)
            axes.set_xscale("log", base=2)
            axes.set_xticks(places, [str(place) for place in places])
            axes.set_xlabel("streams at a time")
            axes.set_title(dtype)
            axes.set_ylim(bottom=0)
            axes.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylabel("tokens per second, all streams together")
        panels[0].legend(frameon=False)
        figure.suptitle(f"{_name(self.bench)}, {_where(self.bench)}")


class _Runs:
    """Makes the runs of one data type and keeps them."""

    def __init__(
        self,
        bench: ConcurrencyBench,
        dtype: str,
        found: Checkpoint,
        progress: Callable[[str], None],
    ) -> None:
        self._bench = bench
        self._dtype = dtype
        self._found = found
        self._progress = progress
        self._runs: dict[tuple[int, str], list[RoundTimes]] = {
            (streams, side): [] for streams in bench.streams for side in bench.sides
        }
        self.limits: dict[str, float] = {}

    def interleaved(self) -> None:
        """A, B, C with the same prompts, for each number of streams, again and again."""
        with ExitStack() as stack:
            workers = {side: stack.enter_context(Worker(SIDES[side])) for side in self._bench.sides}
            for worker in workers.values():
                self._prepare(worker)
            for number in range(self._bench.runs):
                for streams in self._bench.streams:
                    self._say(number, streams)
                    for side, worker in workers.items():
                        self._measure(worker, side, streams, number)

    def one_side_after_another(self) -> None:
        """All runs of A, then all of B: each has the device to itself."""
        for side in self._bench.sides:
            with Worker(SIDES[side]) as worker:
                self._progress(f"{self._dtype}: {side}")
                self._prepare(worker)
                if side == "asyncgen" and self._bench.made:
                    self.limits = worker.call("limits")
                for number in range(self._bench.runs):
                    for streams in self._bench.streams:
                        self._say(number, streams)
                        self._measure(worker, side, streams, number)

    def cells(self) -> Iterable[Cell]:
        """Return what was measured."""
        for streams in self._bench.streams:
            runs = {side: self._runs[streams, side] for side in self._bench.sides}
            yield Cell(self._dtype, streams, self._bench.new_tokens, runs)

    def _prepare(self, worker: Worker) -> None:
        """Load, and let everything be used once at full size."""
        bench = self._bench
        worker.call(
            "load",
            folder=str(self._found.folder),
            dtype=self._dtype,
            streams=max(bench.streams),
            length=bench.length,
            device=bench.device,
            made=bench.made,
        )
        for streams in (max(bench.streams), 1):
            self._run(worker, streams, WARM_UP_TOKENS, seed=0)

    def _measure(self, worker: Worker, side: str, streams: int, number: int) -> None:
        """Make one run."""
        neighbours = CpuBackoff(worker.pid)
        got = self._run(worker, streams, self._bench.new_tokens, seed=1000 * (number + 1) + streams)
        first, gaps = tuple(got.get("first", ())), tuple(got.get("gaps", ()))
        run = RoundTimes(got["total"], first, gaps, neighbours.cores())
        self._runs[streams, side].append(run)

    def _run(self, worker: Worker, streams: int, new_tokens: int, seed: int) -> dict[str, Any]:
        """Answer the prompts of one seed; all sides get the same."""
        prompts = self._found.prompts(streams, self._bench.prompt_tokens, seed)
        floor = self._found.floor(new_tokens)
        return worker.call("run", prompts=prompts, new_tokens=new_tokens, **floor)

    def _say(self, number: int, streams: int) -> None:
        self._progress(f"{self._dtype}: run {number + 1} of {self._bench.runs}, {streams} streams")


def _name(bench: ConcurrencyBench) -> str:
    """Name the checkpoint."""
    return bench.shape if bench.model is None else bench.model.name


def _where(bench: ConcurrencyBench) -> str:
    """Name the device, or count the compute threads."""
    if bench.device != "cpu":
        return bench.device
    return f"{bench.threads} thread" + ("" if bench.threads == 1 else "s")
