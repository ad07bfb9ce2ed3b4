"""Shows a report as a table, a JSON file and a chart.

Knows the terminal and files; what a report says is its own business.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol

from rich.console import Console

from asyncgen_apps.bench.figures import hardware, versions

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure
    from rich.console import RenderableType


class Report(Protocol):
    """What every benchmark's report can do."""

    @property
    def kind(self) -> str:
        """Name of the benchmark."""

    def settings(self) -> dict[str, object]:
        """Return what was measured."""

    def results(self) -> object:
        """Return the figures, and every run."""

    def table(self) -> RenderableType:
        """Lay the figures out."""

    def draw(self, figure: Figure) -> None:
        """Draw the figures."""


def emit(report: Report, json_file: Path | None, plot_file: Path | None) -> None:
    """Print a report, and write it where asked.

    Args:
        report: A finished report.
        json_file: Gets settings, machine, versions, figures and every run.
        plot_file: Gets the chart; its suffix says the format.
    """
    console = Console()
    console.print(report.table())
    if json_file is not None:
        write_json(report, json_file)
        console.print(f"written to {json_file}", markup=False)
    if plot_file is not None:
        _plot(report, plot_file)
        console.print(f"drawn to {plot_file}", markup=False)


def write_json(report: Report, file: Path) -> None:
    """Write settings, machine, versions, figures and every run."""
    file.write_text(json.dumps(as_object(report), indent=1) + "\n")


def as_object(report: Report) -> dict[str, object]:
    """Return everything that somebody needs to judge the figures."""
    return {
        "benchmark": report.kind,
        "settings": report.settings(),
        "hardware": hardware(),
        "versions": versions(),
        "results": report.results(),
    }


def _plot(report: Report, file: Path) -> None:
    """Draw without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    report.draw(figure)
    figure.savefig(file, dpi=150)
