"""Lay out the table of packed weights: ours beside ours in 16 bits, and beside each peer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen_apps.bench.peers.contenders import CONTENDERS, OURS, PACKINGS
from asyncgen_apps.bench.peers.rows import FIGURES, SECTIONS
from asyncgen_apps.bench.peers.tables import (
    NONE,
    SUMMARY,
    Grid,
    best_peer,
    cell_text,
    ratio,
    share,
    times,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from asyncgen_apps.bench.peers.rounds import Cell, Results


HEAD = ("", OURS, "of its 16 bits", "of its int8", "of the limit", "peers", "ours / best peer")


def packed_grid(results: Results, names: Sequence[str]) -> Grid | None:
    """Lay out the first figure of each row for each number of bits; ``None``: nothing is packed.

    Args:
        results: Results of all rows.
        names: Contenders, in the order of the columns.
    """
    rows = tuple(
        row for cell in results.cells for row in _rows(results, cell, names) if row is not None
    )
    return Grid("Packed weights", HEAD, rows) if rows else None


def _rows(results: Results, cell: Cell, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Return one row for each number of bits that was measured."""
    figure = SECTIONS[cell.row.section].figures[0]
    for bits in PACKINGS:
        ours = f"{OURS}-{bits}"
        if ours not in names:
            continue
        peers = [name for name in names if CONTENDERS[name].bits == bits and name != ours]
        found = best_peer(cell, figure, peers)
        said = SUMMARY[cell.row.section][1].format(size=f"{cell.row.size:,}")
        yield (
            f"{bits}, {said}, {cell.row.shape}, {FIGURES[figure].unit}",
            cell_text(cell, figure, ours),
            times(ratio(cell, figure, cell.figure(figure, OURS), ours)),
            times(ratio(cell, figure, cell.figure(figure, f"{OURS}-int8"), ours))
            if bits != "int8"
            else NONE,
            _of_limit(results, cell, figure, bits),
            "; ".join(_beside(cell, figure, name, ours) for name in peers) or NONE,
            times(ratio(cell, figure, found and found[1], ours)),
        )


def _beside(cell: Cell, figure: str, name: str, ours: str) -> str:
    """Return a peer's figure, and ours as a multiple of it."""
    text = f"{CONTENDERS[name].title} {cell_text(cell, figure, name)}"
    better = ratio(cell, figure, cell.figure(figure, name), ours)
    return text if better is None else f"{text} ({times(better)})"


def _of_limit(results: Results, cell: Cell, figure: str, bits: str) -> str:
    """Return the share of the limit that memory sets to one stream."""
    limit = results.limits.get(f"{cell.row.shape} {bits}")
    if cell.row.section != "one" or limit is None:
        return NONE
    return share(cell.figure(figure, f"{OURS}-{bits}"), limit.rate)
