"""``asyncgen bench``: measures this library beside others on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from apps.cli.arguments import Debug, Threads
from apps.cli.guard import UserError, one_line_errors
from apps.cli.process import prepare_process

__all__ = ["bench"]

bench = typer.Typer(help="Measure speed and smoothness beside transformers.", no_args_is_help=True)


class Shape(StrEnum):
    """Checkpoints that need no download."""

    SMALL = "5m"
    MEDIUM = "135m"
    DEMO = "demo"


class Precision(StrEnum):
    """Data types of weights that both sides run on a CPU."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


ShapeOption = Annotated[Shape, typer.Option(help="Random weights of this size, or the demo model.")]
ModelOption = Annotated[
    Path | None, typer.Option("--model", "-m", help="A checkpoint folder instead of --shape.")
]
Precisions = Annotated[list[Precision], typer.Option("--dtype", help="Repeatable.")]
NewTokens = Annotated[int, typer.Option(min=2, help="Tokens of each answer.")]
Runs = Annotated[int, typer.Option(min=1, help="Runs of each side; medians are reported.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write every run to this file.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw a chart: .png, .svg or .pdf.")]


@bench.command("stream")
def stream(
    shape: ShapeOption = Shape.MEDIUM,
    model: ModelOption = None,
    dtype: Precisions = [Precision.FLOAT32],  # noqa: B006
    new_tokens: NewTokens = 128,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 32,
    runs: Runs = 5,
    threads: Threads = None,
    json: Json = None,
    plot: Plot = None,
    debug: Debug = False,
) -> None:
    """Tokens per second and time to first token, as the reader of the stream sees them."""
    with one_line_errors(debug), _worker_errors():
        _check(model, plot)
        chosen = prepare_process(threads)
        from apps.bench.report import emit
        from apps.bench.stream import StreamBench, StreamReport

        report = StreamReport.of(
            StreamBench(
                shape=shape.value,
                model=model,
                dtypes=tuple(precision.value for precision in dtype),
                new_tokens=new_tokens,
                prompt_tokens=prompt_tokens,
                runs=runs,
                threads=chosen,
            ),
            _say,
        )
        emit(report, json, plot)


@bench.command("loop")
def loop(
    shape: ShapeOption = Shape.MEDIUM,
    model: ModelOption = None,
    dtype: Annotated[Precision, typer.Option(help="Data type of the weights.")] = Precision.FLOAT32,
    new_tokens: NewTokens = 128,
    runs: Runs = 3,
    threads: Threads = None,
    json: Json = None,
    plot: Plot = None,
    debug: Debug = False,
) -> None:
    """How late the event loop is while a model loads, tokenizes, prefills and decodes."""
    with one_line_errors(debug), _worker_errors():
        _check(model, plot)
        chosen = prepare_process(threads)
        from apps.bench.loop import LoopBench, LoopReport
        from apps.bench.report import emit

        report = LoopReport.of(
            LoopBench(
                shape=shape.value,
                model=model,
                dtype=dtype.value,
                new_tokens=new_tokens,
                runs=runs,
                threads=chosen,
            ),
            _say,
        )
        emit(report, json, plot)


@contextmanager
def _worker_errors() -> Iterator[None]:
    """Say what went wrong in a worker as it was said there."""
    from apps.bench.workers import BenchError

    try:
        yield
    except BenchError as error:
        raise UserError(str(error)) from error


def _say(text: str) -> None:
    """Tell what comes next."""
    typer.echo(text, err=True)


def _check(model: Path | None, plot: Path | None) -> None:
    """Find out before any work whether all that is needed is there."""
    from importlib.util import find_spec

    needed = ["transformers"] if plot is None else ["transformers", "matplotlib"]
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise UserError(f'{" and ".join(missing)} not installed: pip install "asyncgen[bench]"')
    if model is not None and not (model / "config.json").is_file():
        raise UserError(f"{model} holds no config.json: --model takes a checkpoint folder")
    if plot is not None and plot.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--plot {plot}: the name must end in .png, .svg or .pdf")
