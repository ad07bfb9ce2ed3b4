"""``asyncgen bench``: measures this library beside others on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from asyncgen_apps.cli.arguments import Debug, Threads
from asyncgen_apps.cli.guard import UserError, one_line_errors
from asyncgen_apps.cli.listing import App
from asyncgen_apps.cli.process import prepare_process

bench = App(help="Measure speed and smoothness beside others.", no_args_is_help=True)


class Shape(StrEnum):
    """Checkpoints that need no download."""

    SMALL = "5m"
    MEDIUM = "135m"
    MOE = "moe"
    GEMMA2 = "gemma2"
    GEMMA3 = "gemma3"
    PHI3 = "phi3"
    QWEN3_MOE = "qwen3-moe"
    GPT_OSS = "gpt-oss"
    MAMBA2 = "mamba2"
    QWEN3_5 = "qwen3_5"
    DEMO = "demo"


class ConcurrencyShape(StrEnum):
    """Checkpoints that need no download; the large ones are drawn on an accelerator."""

    SMALL = "5m"
    MEDIUM = "135m"
    MOE = "moe"
    GEMMA2 = "gemma2"
    GEMMA3 = "gemma3"
    PHI3 = "phi3"
    QWEN3_MOE = "qwen3-moe"
    GPT_OSS = "gpt-oss"
    MAMBA2 = "mamba2"
    QWEN3_5 = "qwen3_5"
    LARGE = "1b"
    LARGER = "8b"
    DEMO = "demo"


class Device(StrEnum):
    """Where all sides compute."""

    CPU = "cpu"
    CUDA = "cuda"


class Other(StrEnum):
    """How transformers batches."""

    CONTINUOUS = "continuous"
    PADDED = "padded"


class MadeShape(StrEnum):
    """Checkpoints that need no download and have no end of sequence."""

    SMALL = "5m"
    MEDIUM = "135m"
    MOE = "moe"
    GEMMA2 = "gemma2"
    GEMMA3 = "gemma3"
    PHI3 = "phi3"
    QWEN3_MOE = "qwen3-moe"
    GPT_OSS = "gpt-oss"
    MAMBA2 = "mamba2"
    QWEN3_5 = "qwen3_5"


class Server(StrEnum):
    """How ``transformers serve`` is started."""

    CONTINUOUS = "continuous"
    PLAIN = "plain"


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
PromptTokens = Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")]
Runs = Annotated[int, typer.Option(min=1, help="Runs of each side; medians are reported.")]
Streams = Annotated[list[int], typer.Option(min=1, help="Streams at a time; repeatable.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write every run to this file.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw a chart: .png, .svg or .pdf.")]


@bench.command("stream")
def stream(
    shape: ShapeOption = Shape.MEDIUM,
    model: ModelOption = None,
    dtype: Precisions = [Precision.FLOAT32],  # noqa: B006
    new_tokens: NewTokens = 128,
    prompt_tokens: PromptTokens = 32,
    runs: Runs = 5,
    threads: Threads = None,
    json: Json = None,
    plot: Plot = None,
    debug: Debug = False,
) -> None:
    """Tokens per second and time to first token, as the reader of the stream sees them."""
    with one_line_errors(debug), worker_errors():
        check(model, plot)
        chosen = prepare_process(threads)
        from asyncgen_apps.bench.report import emit
        from asyncgen_apps.bench.stream import StreamBench, StreamReport

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
            say,
        )
        emit(report, json, plot)


@bench.command("strategies")
def strategies(
    shape: ShapeOption = Shape.MEDIUM,
    model: ModelOption = None,
    dtype: Precisions = [Precision.FLOAT32],  # noqa: B006
    strategy: Annotated[
        list[str] | None, typer.Option("--strategy", help="Repeatable; all without it.")
    ] = None,
    new_tokens: NewTokens = 64,
    prompt_tokens: PromptTokens = 32,
    runs: Runs = 3,
    threads: Threads = None,
    json: Json = None,
    plot: Plot = None,
    debug: Debug = False,
) -> None:
    """Tokens per second of every decoding strategy beside transformers, or beside greedy."""
    with one_line_errors(debug), worker_errors():
        check(model, plot)
        _check_strategies(strategy or [])
        chosen = prepare_process(threads)
        from asyncgen_apps.bench.report import emit
        from asyncgen_apps.bench.strategies import StrategiesBench, StrategiesReport

        report = StrategiesReport.of(
            StrategiesBench(
                shape=shape.value,
                model=model,
                dtypes=tuple(precision.value for precision in dtype),
                strategies=tuple(strategy or ()),
                new_tokens=new_tokens,
                prompt_tokens=prompt_tokens,
                runs=runs,
                threads=chosen,
            ),
            say,
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
    with one_line_errors(debug), worker_errors():
        check(model, plot)
        chosen = prepare_process(threads)
        from asyncgen_apps.bench.loop import LoopBench, LoopReport
        from asyncgen_apps.bench.report import emit

        report = LoopReport.of(
            LoopBench(
                shape=shape.value,
                model=model,
                dtype=dtype.value,
                new_tokens=new_tokens,
                runs=runs,
                threads=chosen,
            ),
            say,
        )
        emit(report, json, plot)


@bench.command("concurrency")
def concurrency(
    shape: Annotated[
        ConcurrencyShape, typer.Option(help="Random weights of this size, or the demo model.")
    ] = ConcurrencyShape.MEDIUM,
    model: ModelOption = None,
    dtype: Precisions = [Precision.FLOAT32, Precision.BFLOAT16],  # noqa: B006
    streams: Streams = [1, 4, 8, 16, 32, 64],  # noqa: B006
    new_tokens: NewTokens = 64,
    prompt_tokens: Annotated[
        tuple[int, int], typer.Option(min=1, help="Shortest and longest prompt.")
    ] = (16, 64),
    runs: Runs = 3,
    against: Annotated[list[Other], typer.Option(help="Repeatable.")] = [  # noqa: B006
        Other.CONTINUOUS,
        Other.PADDED,
    ],
    device: Annotated[Device, typer.Option(help="Where all sides compute.")] = Device.CPU,
    threads: Threads = None,
    json: Json = None,
    plot: Plot = None,
    debug: Debug = False,
) -> None:
    """Tokens per second of many streams at once, beside both ways of transformers to batch."""
    with one_line_errors(debug), worker_errors():
        check(model, plot)
        if prompt_tokens[0] > prompt_tokens[1]:
            raise UserError("--prompt-tokens: the shortest prompt comes first")
        is_drawn = shape in (ConcurrencyShape.LARGE, ConcurrencyShape.LARGER)
        if is_drawn and model is None and device is Device.CPU:
            raise UserError(f"--shape {shape.value}: a CPU takes too long; add --device cuda")
        chosen = prepare_process(threads)
        from asyncgen_apps.bench.concurrency import ConcurrencyBench, ConcurrencyReport
        from asyncgen_apps.bench.report import emit

        report = ConcurrencyReport.of(
            ConcurrencyBench(
                shape=shape.value,
                model=model,
                dtypes=tuple(precision.value for precision in dtype),
                streams=tuple(streams),
                new_tokens=new_tokens,
                prompt_tokens=prompt_tokens,
                runs=runs,
                threads=chosen,
                device=device.value,
                against=tuple(other.value for other in against),
            ),
            say,
        )
        emit(report, json, plot)


@bench.command("scale")
def scale(
    shape: ShapeOption = Shape.SMALL,
    model: ModelOption = None,
    dtype: Annotated[Precision, typer.Option(help="Data type of the weights.")] = Precision.FLOAT32,
    streams: Streams = [100, 300, 1000],  # noqa: B006
    new_tokens: NewTokens = 64,
    runs: Runs = 1,
    threads: Threads = None,
    json: Json = None,
    plot: Plot = None,
    debug: Debug = False,
) -> None:
    """What very many streams cost: lateness of the loop, host time per token, memory."""
    with one_line_errors(debug), worker_errors():
        check(model, plot)
        chosen = prepare_process(threads)
        from asyncgen_apps.bench.report import emit
        from asyncgen_apps.bench.scale import ScaleBench, ScaleReport

        report = ScaleReport.of(
            ScaleBench(
                shape=shape.value,
                model=model,
                dtype=dtype.value,
                streams=tuple(streams),
                new_tokens=new_tokens,
                runs=runs,
                threads=chosen,
            ),
            say,
        )
        emit(report, json, plot)


@bench.command("serve")
def serve(
    shape: Annotated[MadeShape, typer.Option(help="Random weights of this size.")] = (
        MadeShape.MEDIUM
    ),
    model: ModelOption = None,
    dtype: Annotated[Precision, typer.Option(help="Data type of the weights.")] = Precision.FLOAT32,
    clients: Annotated[list[int], typer.Option(min=1, help="Clients at a time; repeatable.")] = [  # noqa: B006
        1,
        8,
        32,
    ],
    in_process: Annotated[
        int, typer.Option(min=0, help="Streams with and without a server; 0 leaves it out.")
    ] = 64,
    new_tokens: NewTokens = 64,
    prompt_tokens: PromptTokens = 32,
    runs: Runs = 3,
    against: Annotated[list[Server], typer.Option(help="Repeatable.")] = [  # noqa: B006
        Server.CONTINUOUS,
        Server.PLAIN,
    ],
    threads: Threads = None,
    json: Json = None,
    plot: Plot = None,
    debug: Debug = False,
) -> None:
    """Tokens per second and time to first token over HTTP, beside `transformers serve`.

    A server has all cores but the last, and the clients have that one. By default one compute
    thread for each core of the server.
    """
    with one_line_errors(debug), worker_errors():
        check(model, plot)
        from asyncgen_apps.bench.serve_sides import cores

        chosen = prepare_process(threads or len(cores()[0]) or None)
        from asyncgen_apps.bench.report import emit
        from asyncgen_apps.bench.serve import ServeBench, ServeReport

        report = ServeReport.of(
            ServeBench(
                shape=shape.value,
                model=model,
                dtype=dtype.value,
                clients=tuple(clients),
                in_process=in_process,
                new_tokens=new_tokens,
                prompt_tokens=prompt_tokens,
                runs=runs,
                threads=chosen,
                against=tuple(other.value for other in against),
            ),
            say,
        )
        emit(report, json, plot)


@bench.command("websocket")
def websocket(
    shape: ShapeOption = Shape.SMALL,
    model: ModelOption = None,
    dtype: Annotated[Precision, typer.Option(help="Data type of the weights.")] = Precision.FLOAT32,
    streams: Streams = [1, 8, 32],  # noqa: B006
    delayed: Annotated[int, typer.Option(min=1, help="Streams while delays are measured.")] = 100,
    crowd: Annotated[list[str], typer.Option(help="Connections x streams on each; repeatable.")] = [  # noqa: B006
        "500x1",
        "50x20",
    ],
    idle: Annotated[int, typer.Option(min=0, help="Idle connections; 0 leaves them out.")] = 500,
    stall: Annotated[bool, typer.Option(help="Measure beside a client that reads nothing.")] = True,
    new_tokens: NewTokens = 64,
    prompt_tokens: PromptTokens = 32,
    runs: Runs = 5,
    threads: Threads = None,
    json: Json = None,
    plot: Plot = None,
    debug: Debug = False,
) -> None:
    """What WebSockets cost: tokens per second beside streams in process, delay, memory, stalls.

    Engine and server share all cores but the last, both ways; the client, a process of its own,
    has the last one. By default one compute thread for each core of the engine.
    """
    with one_line_errors(debug), worker_errors():
        check(model, plot)
        crowds = tuple(_crowd(one) for one in crowd)
        from asyncgen_apps.bench.serve_sides import cores

        chosen = prepare_process(threads or len(cores()[0]) or None)
        from asyncgen_apps.bench.report import emit
        from asyncgen_apps.bench.websocket import WebsocketBench, WebsocketReport

        report = WebsocketReport.of(
            WebsocketBench(
                shape=shape.value,
                model=model,
                dtype=dtype.value,
                streams=tuple(streams),
                delayed=delayed,
                crowds=crowds,
                idle=idle,
                stall=stall,
                new_tokens=new_tokens,
                prompt_tokens=prompt_tokens,
                runs=runs,
                threads=chosen,
            ),
            say,
        )
        emit(report, json, plot)


def _crowd(text: str) -> tuple[int, int]:
    """Read ``500x1``."""
    connections, cross, each = text.partition("x")
    if not cross or not all(one.isdecimal() and int(one) > 0 for one in (connections, each)):
        raise UserError(f"--crowd {text}: must be connections x streams on each, as in 50x20")
    if int(each) > 64:
        raise UserError(f"--crowd {text}: a connection has at most 64 streams")
    return int(connections), int(each)


@contextmanager
def worker_errors() -> Iterator[None]:
    """Say what went wrong in a worker as it was said there."""
    from asyncgen_apps.bench.workers import BenchError

    try:
        yield
    except BenchError as error:
        raise UserError(str(error)) from error


def say(text: str) -> None:
    """Tell what comes next."""
    typer.echo(text, err=True)


def check(model: Path | None, plot: Path | None, needed: str = "transformers") -> None:
    """Find out before any work whether all that is needed is there."""
    check_plot(plot, needed)
    if model is not None and not (model / "config.json").is_file():
        raise UserError(f"{model} holds no config.json: --model takes a checkpoint folder")


def check_plot(plot: Path | None, *needed: str) -> None:
    """Find out before any work whether the chart can be drawn, and what else is needed is there."""
    from importlib.util import find_spec

    names = needed if plot is None else (*needed, "matplotlib")
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise UserError(f'{" and ".join(missing)} not installed: pip install "asyncgen[bench]"')
    if plot is not None and plot.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--plot {plot}: the name must end in .png, .svg or .pdf")


def _check_strategies(names: list[str]) -> None:
    """Find out before any work whether these are strategies."""
    from asyncgen_apps.bench.cases import CASES

    known = [case.name for case in CASES]
    for name in names:
        if name not in known:
            raise UserError(f"--strategy {name}: must be one of {', '.join(known)}")
