"""``bench loop``: lateness of an event loop beside a model at work, ours and transformers'."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from asyncgen_apps.bench.checkpoints import write_checkpoint
from asyncgen_apps.bench.figures import percentile
from asyncgen_apps.bench.models import checkpoint
from asyncgen_apps.bench.report import Report, open_frame
from asyncgen_apps.bench.settings import LoopBench
from asyncgen_apps.bench.shape import ModelShape
from asyncgen_apps.bench.sides.loop import PHASES
from asyncgen_apps.bench.ticker import PERIOD
from asyncgen_apps.bench.workers import started

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from matplotlib.figure import Figure

    from asyncgen_apps.bench.models import Checkpoint
    from asyncgen_apps.bench.workers import Worker


SIDES = {
    "asyncgen": "asyncgen_apps.bench.sides.loop:AsyncgenApplication",
    "transformers": "asyncgen_apps.bench.sides.loop:TransformersApplication",
}
SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
CHARACTERS = 200_000
PREFILL_TOKENS = 1000
PROMPT_TOKENS = 32
WARM_UP = ModelShape(hidden=32, layers=1, heads=4, kv_heads=2, ffn=32, vocab=512)


@dataclass(slots=True)
class LoopReport(Report[LoopBench]):
    """Lateness of every tick.

    Attributes:
        bench: Settings that were measured with.
        runs: For each side its runs; a run is the lateness in seconds for each phase.
    """

    kind = "loop"
    bench: LoopBench
    runs: dict[str, list[dict[str, list[float]]]] = field(default_factory=dict)

    def measure(self, progress: Callable[[str], None]) -> None:
        """Run both sides in turn; every run loads anew."""
        bench = self.bench
        self.runs = {side: [] for side in SIDES}
        progress("loading")
        with checkpoint(bench.shape, bench.model, bench.dtype) as found, started(SIDES) as workers:
            _warm_up(workers.values())
            arguments = _arguments(bench, found)
            for number in range(bench.runs):
                for side, worker in workers.items():
                    progress(f"run {number + 1} of {bench.runs}: {side}")
                    self.runs[side].append(worker.call("phases", **arguments))

    def settings(self) -> dict[str, Any]:
        """Return the settings of the benchmark, for JSON."""
        fixed = {"period": PERIOD, "characters": CHARACTERS, "prefill_tokens": PREFILL_TOKENS}
        return {**self.bench.data(), **fixed}

    def results(self) -> object:
        """Return figures and all ticks of all runs, for JSON."""
        return {
            side: {
                "lateness_ms": {phase: self.lateness_ms(side, phase) for phase in PHASES},
                "runs": runs,
            }
            for side, runs in self.runs.items()
        }

    def ticks(self, side: str, phase: str) -> list[float]:
        """Return the ticks of all runs of a side in a phase, in seconds."""
        return [tick for run in self.runs[side] for tick in run[phase]]

    def lateness_ms(self, side: str, phase: str) -> dict[str, float]:
        """Return p50, p99, p99.9 and the maximum of a side in a phase, in milliseconds."""
        ticks = self.ticks(side, phase)
        return {name: 1000 * percentile(ticks, share) for name, share in SHARES.items()}

    def table(self) -> Table:
        """Lay the percentiles out, both sides of a phase below each other."""
        bench = self.bench
        title = (
            f"lateness of a {PERIOD * 1000:.0f} ms ticker, ms: {bench.name} {bench.dtype}, "
            f"{bench.threads} threads, {bench.runs} runs"
        )
        table = Table("phase", "", title=title)
        for column in ("ticks", *SHARES):
            table.add_column(column, justify="right")
        for phase in PHASES:
            for side in self.runs:
                late = self.lateness_ms(side, phase)
                shown = (f"{late[share]:.2f}" for share in SHARES)
                table.add_row(phase, side, str(len(self.ticks(side, phase))), *shown)
            table.add_section()
        return table

    def draw(self, figure: Figure) -> None:
        """Draw p50 to maximum of each phase as a line with dots, on a logarithmic axis."""
        axes = figure.subplots()
        markers = dict(zip(SHARES, ("o", "s", "D", "^"), strict=True))
        for offset, side, color in (
            (0.15, "asyncgen", "#1f6feb"),
            (-0.15, "transformers", "#9aa5b1"),
        ):
            for place, phase in enumerate(PHASES):
                late = self.lateness_ms(side, phase)
                # A tick cannot be early, but it can be on time to the microsecond.
                values = [max(value, 0.01) for value in late.values()]
                heights = [offset - place] * len(values)
                label = side if place == 0 else None
                axes.plot(values, heights, color=color, linewidth=2, label=label)
                for value, height, marker in zip(values, heights, markers.values(), strict=True):
                    axes.plot(value, height, marker, color=color, markersize=7)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_yticks([-place for place in range(len(PHASES))], PHASES)
        axes.axvline(50, color="#d1242f", linewidth=1, linestyle=":")
        axes.set_xlabel("lateness in ms, logarithmic: p50 ● p99 ■ p99.9 ◆ maximum ▲; dotted: 50 ms")
        axes.set_title("Lateness of the event loop while a model works")
        open_frame(axes)
        axes.legend(frameon=False)


def _warm_up(workers: Iterable[Worker]) -> None:
    """Use a tiny model on both sides, so that late imports are done."""
    with tempfile.TemporaryDirectory(prefix="asyncgen-bench-") as folder:
        write_checkpoint(Path(folder), WARM_UP, "float32")
        for worker in workers:
            worker.call("warm_up", folder=folder)


def _arguments(bench: LoopBench, found: Checkpoint) -> dict[str, object]:
    """Return the work of both sides."""
    words = found.prompt(CHARACTERS // 2, seed=3)
    # Letters and spaces in the proportions of a text.
    text = " ".join(f"{word:x}".translate(LETTERS) for word in words)[:CHARACTERS]
    return {
        "folder": str(found.folder),
        "dtype": bench.dtype,
        "text": text,
        "long_prompt": found.prompt(PREFILL_TOKENS, seed=1),
        "job": found.job([found.prompt(PROMPT_TOKENS, seed=2)], bench.new_tokens),
    }


LETTERS = str.maketrans("0123456789abcdef", "etaoinshrdlucmfw")
