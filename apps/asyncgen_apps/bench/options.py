"""Options and checks that all commands of ``asyncgen bench`` share."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from asyncgen_apps.cli.errors import UserError, one_line_errors, require_installed

Json = Annotated[Path | None, typer.Option("--json", help="Write every run to this file.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw a chart: .png, .svg or .pdf.")]


@contextmanager
def bench_errors(debug: bool) -> Iterator[None]:
    """Run a benchmark; print an error, also one of a worker, in one line."""
    from asyncgen_apps.bench.workers import BenchError

    with one_line_errors(debug):
        try:
            yield
        except BenchError as error:
            raise UserError(str(error)) from error


def say(text: str) -> None:
    """Print on standard error what comes next."""
    typer.echo(text, err=True)


def check_plot(plot: Path | None, *needed: str) -> None:
    """Check before any work that the chart can be drawn, and that ``needed`` is installed.

    Raises:
        UserError: A module is missing, or the name of the chart has another ending.
    """
    require_installed(needed if plot is None else (*needed, "matplotlib"), extra="bench")
    if plot is not None and plot.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--plot {plot}: the name must end in .png, .svg or .pdf")
