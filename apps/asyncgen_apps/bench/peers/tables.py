"""Lay out the figures of ``bench peers``: tables as rows of text, and Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncgen_apps.bench.peers.contenders import CONTENDERS, OURS
from asyncgen_apps.bench.peers.rows import FIGURES, SECTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from asyncgen_apps.bench.peers.rounds import Cell, Results


NONE = "–"
FAILED = "failed"
SUMMARY = {
    "one": (1, "one stream"),
    "streams": (32, "{size} streams"),
    "first": (2048, "first token of {size} tokens"),
    "turn": (1024, "first token of a chat's next turn"),
    "behind": (8192, "decoding behind {size} tokens"),
    "arrivals": (40, "Poisson arrivals"),
    "neighbour": (1, "one stream beside a busy process"),
}
"""Size of the row of each section in the summary, and its name."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Table of texts.

    Attributes:
        title: Title above it.
        head: Names of the columns.
        rows: Texts of each row; the first names it.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def best_peer(
    cell: Cell, figure: str, names: Iterable[str] | None = None
) -> tuple[str, float] | None:
    """Return the peer with the best median of a figure, and the median; ``None`` without one.

    Args:
        cell: The runs of one row.
        figure: Key of ``FIGURES``.
        names: Contenders to choose from; by default all peers whose weights are not packed.
    """
    pick = min if FIGURES[figure].is_time else max
    if names is None:
        names = [name for name in cell.runs if CONTENDERS[name].bits is None]
    found = {
        name: value
        for name in names
        if not CONTENDERS[name].is_ours and (value := cell.figure(figure, name)) is not None
    }
    if not found:
        return None
    best = pick(found, key=found.__getitem__)
    return best, found[best]


def ratio(cell: Cell, figure: str, peer: float | None, name: str = OURS) -> float | None:
    """Return our figure as a multiple of a peer's; above 1 ours is better."""
    ours = cell.figure(figure, name)
    if ours is None or peer is None or not ours or not peer:
        return None
    return peer / ours if FIGURES[figure].is_time else ours / peer


def grids(results: Results, names: Sequence[str]) -> Iterator[Grid]:
    """Lay out every figure of every section, a column for each of the contenders ``names``."""
    for section, what in SECTIONS.items():
        cells = [cell for cell in results.cells if cell.row.section == section]
        for figure in what.figures if cells else ():
            yield _grid(results, section, figure, cells, names)


def _grid(
    results: Results, section: str, figure: str, cells: Sequence[Cell], names: Sequence[str]
) -> Grid:
    """Lay out one figure of one section."""
    what, one = SECTIONS[section], FIGURES[figure]
    has_limit = section == "one"
    size = "" if has_limit else f", {what.size}"
    head = [f"shape, dtype{size}", *(CONTENDERS[name].title for name in names)]
    if has_limit:
        head += ["limit", "ours of it"]
    if OURS in names:
        head.append("ours / best peer")
    rows = []
    for cell in cells:
        texts = [cell.row.label, *(cell_text(cell, figure, name) for name in names)]
        if has_limit:
            limit = results.limits[cell.row.shape].rate
            texts += [f"{limit:,.1f}", share(cell.figure(figure, OURS), limit)]
        if OURS in names:
            found = best_peer(cell, figure)
            texts.append(times(ratio(cell, figure, found and found[1])))
        rows.append(tuple(texts))
    return Grid(f"{what.title}; {one.name}, {one.unit}", tuple(head), tuple(rows))


def cell_text(cell: Cell, figure: str, name: str) -> str:
    """Render a median, a failure, or a missing figure."""
    if name in cell.failures:
        return FAILED
    value = cell.figure(figure, name)
    return NONE if value is None else f"{value:,.{FIGURES[figure].digits}f}"


def share(value: float | None, whole: float) -> str:
    """Render a share of the whole."""
    return NONE if value is None else f"{100 * value / whole:.0f} %"


def times(value: float | None) -> str:
    """Render a ratio."""
    return NONE if value is None else f"{value:.2f} ×"


def failures(results: Results) -> list[str]:
    """Return the reasons of missing figures: one line for each contender and reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for cell in results.cells:
        for name, reason in cell.failures.items():
            where = f"{cell.row.section} {cell.row.label}"
            reasons.setdefault((name, " ".join(reason.split())), []).append(where)
    return [
        f"{CONTENDERS[name].title} failed ({_places(where)}): {reason}"
        for (name, reason), where in reasons.items()
    ]


def _places(rows: Sequence[str]) -> str:
    """Name some rows, or count many."""
    return "; ".join(rows) if len(rows) <= 3 else f"{len(rows)} rows"


def limits(results: Results) -> list[str]:
    """Return the limits that memory sets, one line each."""
    return [
        f"{name}: a token reads {one.token_bytes / 1e6:,.1f} MB of weights, this machine reads "
        f"{one.bytes_per_second / 1e9:.1f} GB/s of such a block, so {one.rate:,.1f} tokens/s "
        "are the most for one stream"
        for name, one in results.limits.items()
    ]


def summary(results: Results) -> Grid:
    """Lay out the summary: ours, the best of transformers, the best peer."""
    kin = [one for one in CONTENDERS if one.startswith("transformers")]
    rows = []
    for section, (size, name) in SUMMARY.items():
        figure = SECTIONS[section].figures[0]
        for cell in results.cells:
            if (cell.row.section, cell.row.size) != (section, size):
                continue
            unit = FIGURES[figure].unit
            said = name.format(size=f"{cell.row.size:,}")
            theirs, best = best_peer(cell, figure, kin), best_peer(cell, figure)
            rows.append(
                (
                    f"{said}, {cell.row.shape} {cell.row.dtype}, {unit}",
                    cell_text(cell, figure, OURS),
                    cell_text(cell, figure, theirs[0]) if theirs else NONE,
                    times(ratio(cell, figure, theirs and theirs[1])),
                    f"{cell_text(cell, figure, best[0])} ({CONTENDERS[best[0]].title})"
                    if best
                    else NONE,
                    times(ratio(cell, figure, best and best[1])),
                )
            )
    head = ("", "asyncgen", "transformers, its best", "ratio", "best of all peers", "ratio")
    return Grid("", head, tuple(rows))


def markdown(grid: Grid) -> str:
    """Write a table as Markdown, its title above."""
    lines = [f"**{grid.title}**", ""] if grid.title else []
    lines.append(f"| {' | '.join(grid.head)} |")
    lines.append(f"|{'---|' * len(grid.head)}")
    lines += [f"| {' | '.join(row)} |" for row in grid.rows]
    return "\n".join(lines) + "\n"


def table_cells(results: Results, section: str) -> dict[tuple[str, str], list[Cell]]:
    """Return the cells of a section by shape and data type."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in results.cells:
        if cell.row.section == section:
            found.setdefault((cell.row.shape, cell.row.dtype), []).append(cell)
    return found
