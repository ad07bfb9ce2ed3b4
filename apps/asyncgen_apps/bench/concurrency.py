"""``bench concurrency``: many streams at once, beside both ways of transformers to batch them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from statistics import median
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from asyncgen_apps.bench.figures import percentile
from asyncgen_apps.bench.models import checkpoint
from asyncgen_apps.bench.report import Report, busy_note, judged, open_frame
from asyncgen_apps.bench.settings import ConcurrencyBench
from asyncgen_apps.bench.workers import started

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure

    from asyncgen_apps.bench.jobs import Run
    from asyncgen_apps.bench.models import Checkpoint
    from asyncgen_apps.bench.workers import Worker


SIDES = {
    "asyncgen": "asyncgen_apps.bench.sides.streams:AsyncgenStreams",
    "continuous": "asyncgen_apps.bench.sides.transformers:TransformersContinuous",
    "padded": "asyncgen_apps.bench.sides.transformers:TransformersPadded",
}
COLORS = {"asyncgen": "#1f6feb", "continuous": "#9aa5b1", "padded": "#d4a72c"}
TARGETS = {
    "float32": {8: 1.5, 16: 1.7, 32: 2.0},
    "bfloat16": {16: 2.5},
}
"""Wanted multiple of the rate of transformers' continuous batching, from so many streams on."""
WARM_UP_TOKENS = 4
HEADERS = {"asyncgen": "asyncgen", "continuous": "contin.", "padded": "padded"}
CAPTION = (
    "tokens/s of all streams together, prompts included; contin.: transformers' continuous "
    "batching; padded: its generate over a padded batch; ×: how many times as fast we are, and "
    "≥ what is wanted; first and gap: to our first token and between tokens, as readers saw them"
)


@dataclass(frozen=True, slots=True)
class Cell:
    """Runs of all sides with one number of streams and one data type.

    Attributes:
        dtype: Type of the weights.
        streams: Streams at a time.
        new_tokens: Tokens of each stream.
        runs: For each side its runs, in the order they were made.
    """

    dtype: str
    streams: int
    new_tokens: int
    runs: dict[str, list[Run]]

    def tokens_per_second(self, side: str) -> float:
        """Median rate of all streams of a side together."""
        return self.streams * self.new_tokens / median(run.total for run in self.runs[side])

    def ratio(self, side: str) -> float:
        """Our rate as a multiple of another side's."""
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
            "runs": {side: [run.data() for run in runs] for side, runs in self.runs.items()},
        }


def target(dtype: str, streams: int) -> float | None:
    """Return the wanted multiple of continuous batching's rate, ``None`` if there is none."""
    wanted = [times for least, times in TARGETS.get(dtype, {}).items() if streams >= least]
    return max(wanted, default=None)


@dataclass(slots=True)
class ConcurrencyReport(Report[ConcurrencyBench]):
    """Cells of one benchmark.

    Attributes:
        bench: Settings that were measured with.
        cells: One for each data type and number of streams.
        limits: On an accelerator, for each data type, the bytes of weights that a token needs and
            the bytes per second that the memory moves.
    """

    kind = "concurrency"
    bench: ConcurrencyBench
    cells: list[Cell] = field(default_factory=list)
    limits: dict[str, dict[str, float]] = field(default_factory=dict)

    def measure(self, progress: Callable[[str], None]) -> None:
        """Run all sides in turn; on an accelerator one side after the other.

        Two models there would share the memory that each plans its cache in.
        """
        bench = self.bench
        groups = [bench.sides] if bench.device == "cpu" else [(side,) for side in bench.sides]
        for dtype in bench.dtypes:
            progress(f"{dtype}: loading")
            cells = [Cell(dtype, streams, bench.new_tokens, {}) for streams in bench.streams]
            self.cells += cells
            with checkpoint(bench.shape, bench.model, dtype) as found:
                for group in groups:
                    self._run(found, group, cells, progress)

    def _run(
        self,
        found: Checkpoint,
        sides: Sequence[str],
        cells: Sequence[Cell],
        progress: Callable[[str], None],
    ) -> None:
        """Run some sides in turn with the same prompts, for each number of streams."""
        bench, dtype = self.bench, cells[0].dtype
        with started({side: SIDES[side] for side in sides}) as workers:
            for worker in workers.values():
                self._prepare(worker, found, dtype)
            if "asyncgen" in workers and bench.made:
                self.limits[dtype] = workers["asyncgen"].call("limits")
            for number, cell in product(range(bench.runs), cells):
                progress(f"{dtype}: run {number + 1} of {bench.runs}, {cell.streams} streams")
                for side, worker in workers.items():
                    run = self._answer(worker, found, cell.streams, bench.new_tokens, number + 1)
                    cell.runs.setdefault(side, []).append(run)

    def _prepare(self, worker: Worker, found: Checkpoint, dtype: str) -> None:
        """Load, and let everything be used once at full size."""
        bench = self.bench
        most = max(bench.streams)
        worker.call(
            "load",
            folder=str(found.folder),
            dtype=dtype,
            streams=most,
            length=bench.length,
            device=bench.device,
            made=bench.made,
        )
        for streams in (most, 1):
            self._answer(worker, found, streams, WARM_UP_TOKENS, 0)

    def _answer(
        self, worker: Worker, found: Checkpoint, streams: int, new_tokens: int, number: int
    ) -> Run:
        """Answer the prompts of one run; all sides get the same."""
        seed = 1000 * number + streams if number else 0
        prompts = found.prompts(streams, self.bench.prompt_tokens, seed)
        return worker.run(found.job(prompts, new_tokens))

    def scaling(self, cell: Cell) -> float | None:
        """Return all streams' rate as a multiple of one stream's; ``None`` if not measured."""
        ones = [one for one in self.cells if one.dtype == cell.dtype and one.streams == 1]
        if not ones:
            return None
        return cell.tokens_per_second("asyncgen") / ones[0].tokens_per_second("asyncgen")

    def bandwidth_share(self, dtype: str) -> float | None:
        """Return the share of the memory's bandwidth that one stream uses, if known."""
        ones = [one for one in self.cells if one.dtype == dtype and one.streams == 1]
        limits = self.limits.get(dtype)
        if not ones or limits is None:
            return None
        return limits["bytes_per_token"] / (ones[0].gap_ms(0.5) / 1000) / limits["bandwidth"]

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
            f"{bench.name}, {bench.where}, prompts of {shortest}-{longest} tokens, "
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
            asked = f" ≥ {wanted:.1f}" if wanted is not None and side == "continuous" else ""
            is_good = None if wanted is None else ratio >= wanted
            row.append(judged(f"{ratio:.2f}", is_good) + asked)
        scaling = self.scaling(cell)
        row.append("" if scaling is None else f"{scaling:.1f}")
        row.append(f"{cell.first_ms(0.5):.0f}/{cell.first_ms(0.99):.0f}")
        row.append(f"{cell.gap_ms(0.5):.0f}/{cell.gap_ms(0.99):.0f}")
        return row

    def _caption(self) -> str:
        """Explain the columns; add the memory, and warn if the machine was busy."""
        lines = [CAPTION]
        for dtype in self.limits:
            share = self.bandwidth_share(dtype)
            if share is not None:
                rate = self.limits[dtype]["bandwidth"] / 1e9
                lines.append(f"{dtype}, one stream: {100 * share:.0f} % of {rate:.0f} GB/s")
        runs = [run for cell in self.cells for side in cell.runs.values() for run in side]
        return "\n".join([*lines, *busy_note(runs)])

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
            open_frame(axes)
        panels[0].set_ylabel("tokens per second, all streams together")
        panels[0].legend(frameon=False)
        figure.suptitle(f"{self.bench.name}, {self.bench.where}")
