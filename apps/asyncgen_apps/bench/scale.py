"""``bench scale``: streams that one loop can carry, and the host time of each token."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.table import Table

from asyncgen_apps.bench.figures import percentile
from asyncgen_apps.bench.models import checkpoint
from asyncgen_apps.bench.report import Report, judged, open_frame
from asyncgen_apps.bench.settings import ScaleBench
from asyncgen_apps.bench.workers import started

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from matplotlib.figure import Figure

    from asyncgen_apps.bench.models import Checkpoint


SIDE = {"asyncgen": "asyncgen_apps.bench.sides.scale:ScaleSide"}
PROMPT_TOKENS = (16, 64)
SHARES = {"p50": 0.5, "p99": 0.99, "max": 1.0}
WARM_UP_STREAMS = 16
WARM_UP_TOKENS = 4
LATE_MS = 50.0
COST_US = 40.0
WAITING_KB = 50.0
CAPTION = (
    "host: CPU time of the decode thread and the loop's thread without the model's forward; "
    f"wanted: none lost, p99 below {LATE_MS:.0f} ms, host below {COST_US:.0f} µs"
)


@dataclass(slots=True)
class Level:
    """Figures of one number of streams.

    Attributes:
        streams: Streams at a time.
        new_tokens: Tokens of each stream.
        totals: Seconds of each run, with a ticker or without.
        lost: Streams that did not get all their tokens, over all runs.
        lateness: Lateness of every tick of the loop in seconds, of the runs with a ticker.
        loop: CPU seconds of the event loop's thread, of each run without one.
        decode: CPU seconds of the decode thread outside of the model, likewise.
        outside: Wall seconds in which no forward pass ran, likewise.
    """

    streams: int
    new_tokens: int
    totals: list[float] = field(default_factory=list)
    lost: int = 0
    lateness: list[float] = field(default_factory=list)
    loop: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    outside: list[float] = field(default_factory=list)

    def add(self, run: Mapping[str, Any]) -> None:
        """Take in the figures of a run."""
        self.totals.append(run["total"])
        self.lost += run["lost"]
        if "lateness" in run:
            self.lateness += run["lateness"]
            return
        self.loop.append(run["loop"])
        self.decode.append(run["decode"])
        self.outside.append(run["outside"])

    @property
    def tokens_per_second(self) -> float:
        """Median rate of all streams together."""
        return self.streams * self.new_tokens / median(self.totals)

    def late_ms(self, share: float) -> float:
        """Milliseconds that this share of the ticks was late at most."""
        return 1000 * percentile(self.lateness, share)

    def cost_us(self, seconds: list[float]) -> float:
        """Microseconds of each token, median of the runs."""
        return 1e6 * median(seconds) / (self.streams * self.new_tokens)

    @property
    def host_us(self) -> float:
        """Microseconds of CPU time for each token on both threads, without the model."""
        return self.cost_us(self.loop) + self.cost_us(self.decode)

    def data(self) -> dict[str, object]:
        """Return figures and runs for JSON."""
        return {
            "streams": self.streams,
            "lost": self.lost,
            "tokens_per_second": self.tokens_per_second,
            "lateness_ms": {name: self.late_ms(share) for name, share in SHARES.items()},
            "host_us_per_token": self.host_us,
            "decode_thread_us_per_token": self.cost_us(self.decode),
            "loop_thread_us_per_token": self.cost_us(self.loop),
            "outside_forward_us_per_token": self.cost_us(self.outside),
            "totals": self.totals,
        }


@dataclass(slots=True)
class ScaleReport(Report[ScaleBench]):
    """Levels of one benchmark.

    Attributes:
        bench: Settings that were measured with.
        levels: One for each number of streams.
        waiting_kb: Kilobytes of a stream that waits for its turn; ``None`` if not known.
    """

    kind = "scale"
    bench: ScaleBench
    levels: list[Level] = field(default_factory=list)
    waiting_kb: float | None = None

    def measure(self, progress: Callable[[str], None]) -> None:
        """Run each number of streams with a ticker and without, then measure memory."""
        bench, most = self.bench, max(self.bench.streams)
        progress("loading")
        with checkpoint(bench.shape, bench.model, bench.dtype) as found, started(SIDE) as workers:
            worker = workers["asyncgen"]
            worker.call("load", folder=str(found.folder), dtype=bench.dtype, streams=most)

            def run(streams: int, new_tokens: int, seed: int, ticks: bool) -> dict[str, Any]:
                prompts = found.prompts(streams, PROMPT_TOKENS, seed)
                return worker.call("run", job=found.job(prompts, new_tokens), ticks=ticks)

            run(WARM_UP_STREAMS, WARM_UP_TOKENS, 0, False)
            for streams in bench.streams:
                level = Level(streams, bench.new_tokens)
                self.levels.append(level)
                for number in range(bench.runs):
                    for ticks in (True, False):
                        what = "lateness" if ticks else "cost"
                        progress(f"{streams} streams, run {number + 1} of {bench.runs}: {what}")
                        # Other prompts each time: an engine may remember those it has seen.
                        seed = 2 * (1000 * number + streams) + ticks
                        level.add(run(streams, bench.new_tokens, seed, ticks))
            progress(f"memory of {most} waiting streams")
            self.waiting_kb = _waiting_kb(found, bench.dtype, most)

    def settings(self) -> dict[str, Any]:
        """Return the settings of the benchmark, for JSON."""
        return {**self.bench.data(), "prompt_tokens": PROMPT_TOKENS}

    def results(self) -> object:
        """Return figures and runs, for JSON."""
        return {
            "levels": [level.data() for level in self.levels],
            "waiting_stream_kb": self.waiting_kb,
        }

    def table(self) -> Table:
        """Lay the figures out."""
        bench = self.bench
        table = Table(
            title=f"{bench.name} {bench.dtype}, {bench.threads} threads, prompts of "
            f"{PROMPT_TOKENS[0]}-{PROMPT_TOKENS[1]} tokens, {bench.new_tokens} new each",
            caption=self._caption(),
        )
        for column in (
            "streams",
            "lost",
            "tokens/s",
            "loop late, ms\np50 / p99 / max",
            "host, µs/token",
            "decode thread",
            "loop thread",
            "no forward, wall",
        ):
            table.add_column(column, justify="right")
        for level in self.levels:
            late = [level.late_ms(share) for share in SHARES.values()]
            table.add_row(
                str(level.streams),
                judged(f"{level.lost}", not level.lost),
                f"{level.tokens_per_second:.0f}",
                judged(" / ".join(f"{one:.1f}" for one in late), late[1] <= LATE_MS),
                judged(f"{level.host_us:.1f}", level.host_us <= COST_US),
                *(f"{level.cost_us(one):.1f}" for one in (level.decode, level.loop, level.outside)),
            )
        return table

    def _caption(self) -> str:
        """Explain the columns and give the memory."""
        lines = [CAPTION]
        if self.waiting_kb is not None:
            shown = judged(f"{self.waiting_kb:.1f} KB", self.waiting_kb <= WAITING_KB)
            lines.append(f"a waiting stream: {shown}, wanted below {WAITING_KB:.0f} KB")
        return "\n".join(lines)

    def draw(self, figure: Figure) -> None:
        """Draw the cost of a token, and the lateness of the loop, over the number of streams."""
        cost, late = figure.subplots(1, 2)
        places = [level.streams for level in self.levels]
        cost.plot(places, [one.host_us for one in self.levels], "o-", color="#1f6feb", linewidth=2)
        cost.axhline(COST_US, color="#d1242f", linewidth=1, linestyle=":")
        cost.set_title("host µs for each token, without the model")
        for (name, share), marker in zip(SHARES.items(), "os^", strict=True):
            values = [one.late_ms(share) for one in self.levels]
            late.plot(places, values, marker + "-", color="#1f6feb", linewidth=1, label=name)
        late.axhline(LATE_MS, color="#d1242f", linewidth=1, linestyle=":")
        late.set_title("lateness of the event loop, ms")
        late.legend(frameon=False)
        for axes in (cost, late):
            axes.set_xlabel("streams at a time; dotted: what is wanted")
            axes.set_ylim(bottom=0)
            open_frame(axes)
        figure.suptitle(f"{self.bench.name} {self.bench.dtype}")


def _waiting_kb(found: Checkpoint, dtype: str, streams: int) -> float | None:
    """Measure in a fresh process: one that has run streams would use its freed memory again."""
    with started(SIDE) as workers:
        worker = workers["asyncgen"]
        worker.call("load", folder=str(found.folder), dtype=dtype, streams=1)
        prompts = found.prompts(streams, PROMPT_TOKENS, seed=0)
        size = worker.call("waiting", prompts=prompts, has_end=found.has_end)["bytes"]
    return None if size is None else size / 1000
