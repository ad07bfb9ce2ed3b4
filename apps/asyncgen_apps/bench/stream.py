"""``bench stream``: a reader of our stream beside a reader of transformers' streamer."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from rich.table import Table

from asyncgen_apps.bench.figures import overhead
from asyncgen_apps.bench.models import checkpoint
from asyncgen_apps.bench.report import Report, busy_note, open_frame
from asyncgen_apps.bench.settings import StreamBench
from asyncgen_apps.bench.workers import started

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

    from asyncgen_apps.bench.jobs import Run
    from asyncgen_apps.bench.models import Checkpoint


SIDES = {
    "asyncgen": "asyncgen_apps.bench.sides.llm:AsyncgenReader",
    "transformers": "asyncgen_apps.bench.sides.transformers:TransformersReader",
    "loop": "asyncgen_apps.bench.sides.llm:AsyncgenLoop",
}
WARM_UP_TOKENS = 16
CAPTION = "overhead: reading the stream, beside draining the same steps in a loop"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs of all sides at one data type.

    Attributes:
        dtype: Type of the weights.
        new_tokens: Tokens of each answer.
        runs: For each side its runs, in the order they were made.
        same_text: True if the readers of both libraries got the same text every time.
    """

    dtype: str
    new_tokens: int
    runs: dict[str, list[Run]]
    same_text: bool

    def tokens_per_second(self, side: str) -> float:
        """Median rate of a side, from the request to the end of the text."""
        return self.new_tokens / median(run.total for run in self.runs[side])

    def first_token_ms(self, side: str) -> float:
        """Median milliseconds to the first text of a side."""
        return 1000 * median(run.first[0] for run in self.runs[side])

    @property
    def ratio(self) -> float:
        """Our rate as a multiple of transformers'."""
        return self.tokens_per_second("asyncgen") / self.tokens_per_second("transformers")

    @property
    def streaming_overhead(self) -> float:
        """Time that streaming adds to draining the same steps in a loop, as a share."""
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
            "runs": {
                side: [{"first": run.first[0], **run.data()} for run in runs]
                for side, runs in self.runs.items()
            },
        }


@dataclass(slots=True)
class StreamReport(Report[StreamBench]):
    """Comparisons of both readers.

    Attributes:
        bench: Settings that were measured with.
        comparisons: One for each data type.
    """

    kind = "stream"
    bench: StreamBench
    comparisons: list[Comparison] = field(default_factory=list)

    def measure(self, progress: Callable[[str], None]) -> None:
        """Run the sides in turn at each data type."""
        for dtype in self.bench.dtypes:
            progress(f"{dtype}: loading")
            with checkpoint(self.bench.shape, self.bench.model, dtype) as found:
                self.comparisons.append(_compare(self.bench, dtype, found, progress))

    def results(self) -> object:
        """Return figures and runs, for JSON."""
        return [comparison.data() for comparison in self.comparisons]

    def table(self) -> Table:
        """Lay the medians out."""
        bench = self.bench
        title = (
            f"{bench.name}, {bench.threads_text}, {bench.prompt_tokens} + "
            f"{bench.new_tokens} tokens, medians of {bench.runs} runs"
        )
        runs = [run for one in self.comparisons for side in one.runs.values() for run in side]
        caption = "\n".join([CAPTION, *busy_note(runs)])
        table = Table("dtype", title=title, caption=caption)
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
        axes.set_title(f"Streaming {self.bench.name} with {self.bench.threads_text}")
        open_frame(axes)
        axes.margins(y=0.15)
        axes.legend(frameon=False)


def _compare(
    bench: StreamBench, dtype: str, found: Checkpoint, progress: Callable[[str], None]
) -> Comparison:
    """Run the sides in turn, A, B, C, A, B, C, with the same prompt in the same round."""
    runs: dict[str, list[Run]] = {side: [] for side in SIDES}
    with started(SIDES) as workers:
        warm_up = found.job([found.prompt(bench.prompt_tokens, seed=0)], WARM_UP_TOKENS)
        for worker in workers.values():
            worker.call("load", folder=str(found.folder), dtype=dtype)
            worker.run(warm_up)
        for number in range(bench.runs):
            progress(f"{dtype}: run {number + 1} of {bench.runs}")
            job = found.job([found.prompt(bench.prompt_tokens, seed=number + 1)], bench.new_tokens)
            for side, worker in workers.items():
                runs[side].append(worker.run(job))
    ours, theirs = ([run.text for run in runs[side]] for side in ("asyncgen", "transformers"))
    return Comparison(dtype, bench.new_tokens, runs, ours == theirs)
