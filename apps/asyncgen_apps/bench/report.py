"""Define the base of all reports: measure, print a table, write JSON, draw a chart."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from rich.console import Console

from asyncgen_apps.bench.figures import hardware, versions
from asyncgen_apps.bench.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from asyncgen_apps.bench.jobs import Run

S = TypeVar("S", bound=Settings)


class Emitted(ABC):
    """Figures that are printed, written as JSON and drawn.

    Attributes:
        kind: Name of the benchmark.
    """

    __slots__ = ()
    kind: ClassVar[str]

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the settings of the benchmark, for JSON."""

    @abstractmethod
    def results(self) -> object:
        """Return the figures and every run, for JSON."""

    @abstractmethod
    def table(self) -> RenderableType:
        """Lay the figures out."""

    @abstractmethod
    def draw(self, figure: Figure) -> None:
        """Draw the figures."""


class Report(Emitted, Generic[S]):
    """Figures of one benchmark.

    Attributes:
        bench: Settings that were measured with.
    """

    __slots__ = ()
    bench: S

    @classmethod
    def of(cls, bench: S, progress: Callable[[str], None] = lambda text: None) -> Self:
        """Run a benchmark.

        Args:
            bench: Settings to measure with.
            progress: Called with a few words about what comes next.

        Raises:
            BenchError: A side failed.
        """
        report = cls(bench)  # type: ignore[call-arg]
        report.measure(progress)
        return report

    @abstractmethod
    def measure(self, progress: Callable[[str], None]) -> None:
        """Run all sides in turn, and keep their figures."""

    def settings(self) -> dict[str, Any]:
        """Return the settings of the benchmark, for JSON."""
        return self.bench.data()


def busy_note(runs: Iterable[Run]) -> list[str]:
    """Return a line of a caption if other processes used the cores during some runs."""
    disturbed = [run.is_disturbed for run in runs]
    count = sum(disturbed)
    if not count:
        return []
    return [f"{count} of {len(disturbed)} runs shared the cores with other processes"]


def judged(text: str, is_good: bool | None) -> str:
    """Color a figure of a table: green if it is as wanted, red if not, bold if nothing is."""
    color = {None: "bold", True: "bold green", False: "bold red"}[is_good]
    return f"[{color}]{text}[/]"


def open_frame(*panels: Axes) -> None:
    """Take the upper and right edge of the frame away."""
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)


def emit(report: Emitted, json_file: Path | None, plot_file: Path | None) -> None:
    """Print a report, and write it to the files that are given.

    Args:
        report: A finished report.
        json_file: Gets settings, machine, versions, figures and every run.
        plot_file: Gets the chart, in the format that its suffix names.
    """
    console = Console()
    console.print(report.table())
    if json_file is not None:
        write_json(report, json_file)
        console.print(f"written to {json_file}", markup=False)
    if plot_file is not None:
        _plot(report, plot_file)
        console.print(f"drawn to {plot_file}", markup=False)


def write_json(report: Emitted, file: Path) -> None:
    """Write settings, machine, versions, figures and every run."""
    file.write_text(json.dumps(as_object(report), indent=1) + "\n")


def as_object(report: Emitted) -> dict[str, object]:
    """Return all that a reader needs to judge the figures."""
    return {
        "benchmark": report.kind,
        "settings": report.settings(),
        "hardware": hardware(),
        "versions": versions(),
        "results": report.results(),
    }


def _plot(report: Emitted, file: Path) -> None:
    """Draw without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    report.draw(figure)
    figure.savefig(file, dpi=150)
