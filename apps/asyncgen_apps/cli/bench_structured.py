"""``asyncgen bench structured``: its options."""

from enum import StrEnum
from typing import Annotated

import typer

from asyncgen_apps.cli.arguments import Debug, Threads
from asyncgen_apps.cli.bench import (
    Json,
    ModelOption,
    NewTokens,
    Plot,
    Precision,
    Shape,
    ShapeOption,
    check,
    say,
    worker_errors,
)
from asyncgen_apps.cli.guard import one_line_errors
from asyncgen_apps.cli.process import prepare_process


class Part(StrEnum):
    """What is measured of answers in a shape."""

    ALL = "all"
    BESIDE = "beside"
    COMPILING = "compiling"


def structured(
    shape: ShapeOption = Shape.MEDIUM,
    model: ModelOption = None,
    dtype: Annotated[Precision, typer.Option(help="Data type of the weights.")] = Precision.FLOAT32,
    part: Annotated[list[Part], typer.Option(help="What to measure; repeatable.")] = [  # noqa: B006
        Part.ALL,
        Part.BESIDE,
        Part.COMPILING,
    ],
    streams: Annotated[int, typer.Option(min=2, help="Streams at a time.")] = 32,
    new_tokens: NewTokens = 64,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0 takes the likeliest tokens.")
    ] = 0.0,
    runs: Annotated[int, typer.Option(min=1, help="Pairs of runs of each figure.")] = 5,
    threads: Threads = None,
    json: Json = None,
    plot: Plot = None,
    debug: Debug = False,
) -> None:
    """What answers in a shape cost: their own speed, and that of free streams beside them."""
    with one_line_errors(debug), worker_errors():
        check(model, plot, "llguidance")
        chosen = prepare_process(threads)
        from asyncgen_apps.bench.report import emit
        from asyncgen_apps.bench.structured import StructuredBench, StructuredReport

        report = StructuredReport.of(
            StructuredBench(
                shape=shape.value,
                model=model,
                dtype=dtype.value,
                parts=tuple(dict.fromkeys(each.value for each in part)),
                streams=streams,
                new_tokens=new_tokens,
                temperature=temperature,
                runs=runs,
                threads=chosen,
            ),
            say,
        )
        emit(report, json, plot)
