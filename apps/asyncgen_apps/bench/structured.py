"""``bench structured``: speed of structured output, and of free streams beside it.

Both runs of a pair come one after the other, and each goes first in every other pair.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rich.table import Table

from asyncgen_apps.bench.figures import paired_ratio, percentile
from asyncgen_apps.bench.models import checkpoint
from asyncgen_apps.bench.report import Report, judged, open_frame
from asyncgen_apps.bench.settings import StructuredBench
from asyncgen_apps.bench.workers import started

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

    from asyncgen_apps.bench.figures import Ratio
    from asyncgen_apps.bench.models import Checkpoint
    from asyncgen_apps.bench.workers import Worker


SIDE = {"asyncgen": "asyncgen_apps.bench.sides.structured:StructuredStreams"}
ANSWERS = ("records", "text")
SCHEMAS = ("optional", "patterns", "keys")
PROMPT_TOKENS = (8, 24)
GAP_STREAMS = 4
"""One of this many streams runs while schemas are compiled."""
WANTED = {"all": 0.90, "beside": 0.92, "compiling": 3.0}
TITLES = {
    "all": "{streams} structured streams, their tokens/s as a share of free ones'",
    "beside": "{half} free streams beside {half} structured, tokens/s as a share of beside free",
    "compiling": "{few} free streams while schemas are compiled, p99 gap, times the quiet one",
}
CAPTION = (
    "each a mean of the ratios of adjacent runs, with its interval of 95 % confidence; of "
    "records keys and punctuation are forced, and count as tokens; of text nothing is"
)


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
class StructuredReport(Report[StructuredBench]):
    """Pairs of one benchmark.

    Attributes:
        bench: Settings that were measured with.
        pairs: By part, and by answer or schema.
        compiled: Schemas that were compiled while streams ran.
    """

    kind = "structured"
    bench: StructuredBench
    pairs: dict[tuple[str, str], list[Pair]] = field(default_factory=dict)
    compiled: int = 0

    def measure(self, progress: Callable[[str], None]) -> None:
        """Run all pairs of each part, again and again."""
        bench = self.bench
        progress(f"{bench.dtype}: loading")
        with checkpoint(bench.shape, bench.model, bench.dtype) as found, started(SIDE) as workers:
            worker = workers["asyncgen"]
            worker.call("load", folder=str(found.folder), dtype=bench.dtype, streams=bench.streams)
            for number in range(bench.runs):
                progress(f"run {number + 1} of {bench.runs}")
                for part in bench.parts:
                    for name in SCHEMAS if part == "compiling" else ANSWERS:
                        # Each goes first in every other pair.
                        order = ("", name) if number % 2 else (name, "")
                        times = {one: self._time(worker, found, part, one, number) for one in order}
                        pair = Pair(times[""], times[name])
                        self.pairs.setdefault((part, name), []).append(pair)

    def _time(self, worker: Worker, found: Checkpoint, part: str, name: str, number: int) -> float:
        """Make one run of a pair, with a shape or schemas of that name, or without."""
        bench = self.bench
        prompts = found.prompts(bench.streams, PROMPT_TOKENS, number)
        if part == "compiling":
            few = found.job(prompts[: _few(bench)], bench.new_tokens)
            run = worker.call("gaps", job=few, compiled=name)
            self.compiled += run["compiled"]
            return percentile(run["gaps"], 0.99)
        given: dict[str, Any] = {"shape": name or "free", "temperature": bench.temperature}
        if part == "all":
            return worker.run(found.job(prompts, bench.new_tokens), **given).total
        half = len(prompts) // 2
        job = found.job(prompts[:half], bench.new_tokens)
        return float(worker.call("beside", job=job, others=prompts[half:], **given)["total"])

    def ratio(self, part: str, name: str) -> Ratio:
        """Return a figure: the share of the rate that is kept, or the multiple of the gaps."""
        pairs = self.pairs[part, name]
        if part == "compiling":
            return paired_ratio([(pair.shaped, pair.free) for pair in pairs])
        return paired_ratio([(pair.free, pair.shaped) for pair in pairs])

    def settings(self) -> dict[str, Any]:
        """Return the settings of the benchmark, for JSON."""
        return {**self.bench.data(), "prompt_tokens": PROMPT_TOKENS}

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
            f"{bench.name} {bench.dtype}, {bench.threads} threads, "
            f"{bench.new_tokens} new tokens each"
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
        """Return a figure and its wanted value as text."""
        found, wanted = self.ratio(part, name), WANTED[part]
        if part == "compiling":
            good, sign, form = found.mean <= wanted, "≤ {} ×", "{:.2f} ×"
        else:
            good, sign, form = found.mean >= wanted, "≥ {:.0%}", "{:.1%}"
        shown = [form.format(value) for value in (found.mean, found.low, found.high)]
        return f"{judged(shown[0], good)} ({shown[1]} to {shown[2]})", sign.format(wanted)

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
            open_frame(axes)
        figure.suptitle("ratios with and without a shape; dotted: what is wanted")


def _few(bench: StructuredBench) -> int:
    """Return the number of streams that run while schemas are compiled."""
    return max(1, bench.streams // GAP_STREAMS)
