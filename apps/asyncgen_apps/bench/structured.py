"""``bench structured``: what answers in a shape cost, those that have one and those beside them.

Turns pairs of runs of one worker into ratios; measures nothing itself. Both runs of a pair are
neighbours in time, and each goes first in every other pair.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from rich.table import Table

from asyncgen_apps.bench.figures import paired_ratio, percentile
from asyncgen_apps.bench.models import checkpoint
from asyncgen_apps.bench.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from matplotlib.figure import Figure

    from asyncgen_apps.bench.figures import Ratio
    from asyncgen_apps.bench.models import Checkpoint


SIDE = "asyncgen_apps.bench.structured_sides:StructuredStreams"
ANSWERS = ("records", "text")
SCHEMAS = ("optional", "patterns", "keys")
PARTS = ("all", "beside", "compiling")
PROMPT_TOKENS = (8, 24)
GAP_STREAMS = 4
"""One in so many streams runs while schemas are compiled."""
WANTED = {"all": 0.90, "beside": 0.92, "compiling": 3.0}
TITLES = {
    "all": "{streams} streams in a shape, their tokens/s as a share of free ones'",
    "beside": "{half} free streams beside {half} in a shape, tokens/s as a share of beside free",
    "compiling": "{few} free streams while schemas are compiled, p99 gap, times the quiet one",
}
CAPTION = (
    "each a mean of the ratios of neighbouring runs, with its interval of 95 % confidence; of "
    "records keys and punctuation are forced, and count as tokens; of text nothing is"
)


@dataclass(frozen=True, slots=True)
class StructuredBench:
    """What to measure.

    Attributes:
        shape: Name of a made checkpoint, or ``demo``.
        model: A folder instead.
        dtype: Type of the weights.
        parts: Names in ``PARTS``.
        streams: Streams at a time.
        new_tokens: Tokens of each answer.
        temperature: Of the draws; 0 takes the likeliest token.
        runs: Pairs of each figure.
        threads: Compute threads, for the record; the environment sets them.
    """

    shape: str
    model: Path | None
    dtype: str
    parts: tuple[str, ...]
    streams: int
    new_tokens: int
    temperature: float
    runs: int
    threads: int


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs, one after the other.

    Attributes:
        free: Seconds of the run without a shape: all of it, or the p99 of the gaps.
        shaped: The same with it.
    """

    free: float
    shaped: float


@dataclass(slots=True)
class StructuredReport:
    """The pairs of one benchmark.

    Attributes:
        bench: What was measured.
        pairs: By part, and by answer or schema.
        compiled: Schemas that were compiled while streams ran.
    """

    bench: StructuredBench
    pairs: dict[tuple[str, str], list[Pair]] = field(default_factory=dict)
    compiled: int = 0

    @classmethod
    def of(
        cls, bench: StructuredBench, progress: Callable[[str], None] = lambda text: None
    ) -> Self:
        """Run a benchmark.

        Args:
            bench: What to measure.
            progress: Told in a few words what comes next.

        Raises:
            BenchError: The worker failed.
        """
        report = cls(bench)
        progress(f"{bench.dtype}: loading")
        with checkpoint(bench.shape, bench.model, bench.dtype) as found, Worker(SIDE) as worker:
            worker.call("load", folder=str(found.folder), dtype=bench.dtype, streams=bench.streams)
            runs = _Runs(bench, found, worker)
            for number in range(bench.runs):
                progress(f"run {number + 1} of {bench.runs}")
                for part in bench.parts:
                    for name in SCHEMAS if part == "compiling" else ANSWERS:
                        pair = runs.pair(part, name, number)
                        report.pairs.setdefault((part, name), []).append(pair)
            report.compiled = runs.compiled
        return report

    @property
    def kind(self) -> str:
        """Name of the benchmark."""
        return "structured"

    def ratio(self, part: str, name: str) -> Ratio:
        """A figure: how much is kept of the rate, or how many times as long the gaps are."""
        pairs = self.pairs[part, name]
        if part == "compiling":
            return paired_ratio([(pair.shaped, pair.free) for pair in pairs])
        return paired_ratio([(pair.free, pair.shaped) for pair in pairs])

    def settings(self) -> dict[str, object]:
        """Return what was measured, for JSON."""
        model = str(self.bench.model) if self.bench.model else None
        return {**asdict(self.bench), "model": model, "prompt_tokens": PROMPT_TOKENS}

    def results(self) -> object:
        """Return figures and runs, for JSON."""
        return {
            "figures": [
                {
                    "part": part,
                    "name": name,
                    **asdict(self.ratio(part, name)),
                    "wanted": WANTED[part],
                    "pairs": [asdict(pair) for pair in pairs],
                }
                for (part, name), pairs in self.pairs.items()
            ],
            "compiled": self.compiled,
        }

    def table(self) -> Table:
        """Lay the figures out."""
        bench = self.bench
        title = (
            f"{bench.shape if bench.model is None else bench.model.name} {bench.dtype}, "
            f"{bench.threads} threads, {bench.new_tokens} new tokens each"
        )
        table = Table(title=title, caption=self._caption())
        for column in ("", "of", "measured", "wanted"):
            table.add_column(column, justify="left" if not column else "right")
        last = None
        for part, name in self.pairs:
            sizes = {"streams": bench.streams, "half": bench.streams // 2, "few": _few(bench)}
            table.add_row(
                "" if part == last else TITLES[part].format(**sizes), name, *self._row(part, name)
            )
            last = part
        return table

    def _row(self, part: str, name: str) -> tuple[str, str]:
        """Return a figure and what is wanted of it as text."""
        found, wanted = self.ratio(part, name), WANTED[part]
        if part == "compiling":
            good, sign, form = found.mean <= wanted, "≤ {} ×", "{:.2f} ×"
        else:
            good, sign, form = found.mean >= wanted, "≥ {:.0%}", "{:.1%}"
        shown = [form.format(value) for value in (found.mean, found.low, found.high)]
        text = f"[bold {'green' if good else 'red'}]{shown[0]}[/] ({shown[1]} to {shown[2]})"
        return text, sign.format(wanted)

    def _caption(self) -> str:
        return f"{CAPTION}; schemas compiled: {self.compiled}" if self.compiled else CAPTION

    def draw(self, figure: Figure) -> None:
        """Draw each figure with its interval, one panel for each part."""
        parts = list(dict.fromkeys(part for part, _ in self.pairs))
        panels = figure.subplots(1, len(parts), squeeze=False)[0]
        for axes, part in zip(panels, parts, strict=True):
            names = [name for each, name in self.pairs if each == part]
            found = [self.ratio(part, name) for name in names]
            heights = [each.mean for each in found]
            below = [each.mean - each.low for each in found]
            above = [each.high - each.mean for each in found]
            axes.bar(names, heights, yerr=(below, above), color="#1f6feb")
            axes.axhline(WANTED[part], color="#d1242f", linewidth=1, linestyle=":")
            axes.set_title(part)
            axes.spines[["top", "right"]].set_visible(False)
        figure.suptitle("ratios with and without a shape; dotted: what is wanted")


class _Runs:
    """Makes the pairs."""

    def __init__(self, bench: StructuredBench, found: Checkpoint, worker: Worker) -> None:
        self._bench, self._found, self._worker = bench, found, worker
        self.compiled = 0

    def pair(self, part: str, name: str, number: int) -> Pair:
        """Run both of a pair, of which the one or the other goes first."""
        order = ("", name) if number % 2 else (name, "")
        times = {each: self._run(part, each, number) for each in order}
        return Pair(times[""], times[name])

    def _run(self, part: str, name: str, number: int) -> float:
        bench, found = self._bench, self._found
        tokens = bench.new_tokens
        floor: dict[str, Any] = {"new_tokens": tokens, **found.floor(tokens)}
        prompts = found.prompts(bench.streams, PROMPT_TOKENS, number)
        if part == "compiling":
            few = prompts[: _few(bench)]
            run = self._worker.call("gaps", prompts=few, compiled=name, **floor)
            self.compiled += run["compiled"]
            return percentile(run["gaps"], 0.99)
        floor["temperature"] = bench.temperature
        floor["shape"] = name or "free"
        if part == "all":
            return float(self._worker.call("run", prompts=prompts, **floor)["total"])
        half = len(prompts) // 2
        run = self._worker.call("beside", prompts=prompts[:half], others=prompts[half:], **floor)
        return float(run["total"])


def _few(bench: StructuredBench) -> int:
    """Streams that run while schemas are compiled."""
    return max(1, bench.streams // GAP_STREAMS)
