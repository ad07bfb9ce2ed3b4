"""Report of ``bench peers``: tables, JSON, Markdown and a chart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table

from asyncgen_apps.bench.figures import hardware
from asyncgen_apps.bench.jobs import DISTURBING
from asyncgen_apps.bench.peers import tables
from asyncgen_apps.bench.peers.contenders import CONTENDERS
from asyncgen_apps.bench.peers.packed_table import packed_grid
from asyncgen_apps.bench.peers.rounds import Results, as_data, measure, read_results
from asyncgen_apps.bench.peers.rows import FIGURES, SECTIONS
from asyncgen_apps.bench.report import Emitted, open_frame

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from asyncgen_apps.bench.peers.rounds import Cell, PeersBench


BEGIN = "<!-- written by `asyncgen bench peers --summary`: begin -->"
END = "<!-- written by `asyncgen bench peers --summary`: end -->"
PANEL = (5.5, 3.6)
"""Inches of one panel of the picture."""


@dataclass(slots=True)
class PeersReport(Emitted):
    """Results of all contenders on one machine.

    Attributes:
        about: Settings, as JSON has them: threads, rounds, data type on disk, contenders.
        machine: Processor, cores, kernels, system.
        found: Results of all rows.
    """

    kind = "peers"
    about: dict[str, Any]
    machine: dict[str, Any]
    found: Results = field(default_factory=Results)

    @classmethod
    def of(
        cls,
        bench: PeersBench,
        progress: Callable[[str], None] = lambda text: None,
        keep: Callable[[Self], None] = lambda report: None,
    ) -> Self:
        """Run a benchmark.

        Args:
            bench: Settings to measure with.
            progress: Called with a few words about what comes next.
            keep: Called with the report so far, after each shape and data type.
        """
        settings = {
            "contenders": list(bench.pythons),
            "missing": list(bench.missing),
            "rounds": bench.rounds,
            "threads": bench.threads,
            "stored": bench.stored,
            "patience": bench.patience,
        }
        machine = hardware()
        found = measure(bench, progress, lambda results: keep(cls(settings, machine, results)))
        return cls(settings, machine, found)

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read the JSON file of an earlier run."""
        data, found = read_results(file)
        return cls(data["settings"], data["hardware"], found)

    @property
    def names(self) -> list[str]:
        """Names of the contenders, in the order of the columns."""
        names: list[str] = self.about["contenders"]
        return names

    def settings(self) -> dict[str, Any]:
        """Return the settings of the benchmark, for JSON."""
        return self.about

    def results(self) -> object:
        """Return figures and runs, for JSON."""
        return as_data(self.found)

    def introduction(self) -> str:
        """Describe the measurement in one sentence."""
        threads, rounds = self.about["threads"], self.about["rounds"]
        machine = self.machine
        versions = ", ".join(
            f"{CONTENDERS[name].title} {versions['version']}"
            for name, versions in self.found.versions.items()
            if not name.startswith("transformers-")
        )
        return (
            f"Measured by `asyncgen bench peers` on {machine['cores']} cores of {machine['cpu']} "
            f"(kernels: {machine['kernels']}), {threads} threads each, medians of {rounds} "
            f"interleaved rounds, greedy, random weights stored as {self.about['stored']}: "
            f"{versions}."
        )

    def notes(self) -> list[str]:
        """Return the notes below the tables."""
        lines = [
            *tables.limits(self.found),
            "rates count every token that was generated; ours, until its reader had it",
            *(
                f"{CONTENDERS[name].title}: not installed (`.ci/peers`)"
                for name in self.about["missing"]
            ),
            *tables.failures(self.found),
        ]
        runs = [run for cell in self.found.cells for one in cell.runs.values() for run in one]
        busy = [run for run in runs if run.get("others", 0.0) > DISTURBING]
        if busy:
            lines.append(f"{len(busy)} of {len(runs)} runs shared the cores with other processes")
        return lines

    def table(self) -> RenderableType:
        """Lay the medians out."""
        shown = []
        for grid in self._grids():
            table = Table(title=grid.title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
            for number, name in enumerate(grid.head):
                table.add_column(name, justify="right" if number else "left")
            for row in grid.rows:
                table.add_row(*row)
            shown.append(table)
        return Group(*shown, *self.notes())

    def _grids(self) -> list[tables.Grid]:
        """Return all tables, that of packed weights first."""
        packed = packed_grid(self.found, self.names)
        return [*([] if packed is None else [packed]), *tables.grids(self.found, self.names)]

    def markdown(self) -> str:
        """Return all tables as Markdown, with an introduction and notes."""
        parts = [self.introduction() + "\n"]
        parts += [tables.markdown(grid) for grid in self._grids()]
        parts.append("".join(f"- {line}\n" for line in self.notes()))
        return "\n".join(parts)

    def summary(self) -> str:
        """Return the short table as Markdown, with an introduction."""
        return f"{self.introduction()}\n\n{tables.markdown(tables.summary(self.found))}"

    def draw(self, figure: Figure) -> None:
        """Draw a panel for each section and data type: bars where it has one size, lines else."""
        panels = [
            (section, where, cells)
            for section in SECTIONS
            for where, cells in self._panels(section)
        ]
        columns = min(2, max(1, len(panels)))
        lines = max(1, -(-len(panels) // columns))
        figure.set_size_inches(PANEL[0] * columns, PANEL[1] * lines)
        places = figure.subplots(lines, columns, squeeze=False).flatten()
        for axes in places[len(panels) :]:
            axes.remove()
        for axes, (section, where, cells) in zip(places, panels, strict=False):
            self._draw_panel(axes, section, where, cells)

    def _panels(self, section: str) -> list[tuple[str, list[Cell]]]:
        """Name the panels of a section; that of one stream has a group of bars for each shape."""
        by_kind: dict[str, list[Cell]] = {}
        for (shape, dtype), cells in tables.table_cells(self.found, section).items():
            by_kind.setdefault(dtype if section == "one" else f"{shape} {dtype}", []).extend(cells)
        return list(by_kind.items())

    def _draw_panel(self, axes: Axes, section: str, where: str, cells: list[Cell]) -> None:
        figure = SECTIONS[section].figures[0]
        unit = FIGURES[figure].unit
        labels = [cell.row.shape if section == "one" else f"{cell.row.size:,}" for cell in cells]
        width = 0.8 / max(1, len(self.names))
        for number, name in enumerate(self.names):
            one = CONTENDERS[name]
            values = [self._height(cell, figure, name) for cell in cells]
            if len(cells) > 2 and section != "one":
                axes.plot(labels, values, "o-", color=one.color, label=one.title)
            else:
                offset = (number - (len(self.names) - 1) / 2) * width
                places = [place + offset for place in range(len(cells))]
                axes.bar(places, values, width=width, color=one.color, label=one.title)
                axes.set_xticks(range(len(cells)), labels)
        if section == "one":
            unit = "% of what memory allows"
        elif section in ("streams", "first"):
            axes.set_yscale("log")
        axes.set_ylabel(unit)
        axes.set_xlabel("" if section == "one" else SECTIONS[section].size)
        axes.set_title(f"{section}, {where}")
        open_frame(axes)
        axes.legend(frameon=False, fontsize="x-small")

    def _height(self, cell: Cell, figure: str, name: str) -> float:
        value = cell.figure(figure, name)
        if value is None:
            return float("nan")
        if cell.row.section == "one":
            return 100 * value / self.found.limits[cell.row.shape].rate
        return value


def put_between_marks(page: str, text: str) -> str:
    """Replace the text between the two marks of a page.

    Raises:
        ValueError: The page does not have each mark once.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"it needs these lines once each, in this order: {BEGIN} {END}")
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}"
