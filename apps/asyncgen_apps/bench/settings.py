"""Define the settings of each benchmark; its command gets an option for each.

Imports no torch, so that ``asyncgen --help`` stays fast.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from asyncgen_apps.bench.cases import CASES, GREEDY, GROUNDED_GREEDY, Case
from asyncgen_apps.bench.checkpoints import MADE, SHAPES

STORED_SHAPES = tuple(name for name in SHAPES if name != "0.5b")
"""Checkpoints that are made without a download; 0.5b is for ``bench peers`` alone."""
ALL_SHAPES = (*STORED_SHAPES, "demo")
PRECISIONS = ("float32", "bfloat16")
PARTS = ("all", "beside", "compiling")
READERS, BURDEN = 16, 8
"""Streams beside a stalled client, and streams of that client."""
MOST_EACH = 64
"""Streams of one WebSocket connection at most."""


class SettingsError(ValueError):
    """Value of an option that the benchmark does not take."""


def option(
    default: Any,
    help: str,
    *names: str,
    choices: tuple[str, ...] = (),
    min: float | None = None,
    read: Callable[[str], Any] | None = None,
) -> Any:
    """Describe a field as an option of the command line.

    Args:
        default: Value of the option; a tuple makes it repeatable.
        help: Text of ``--help``.
        *names: Names of the option; by default that of the field, with dashes.
        choices: Allowed values.
        min: Smallest allowed number.
        read: Function that turns each text of a repeatable option into a value of the field.
    """
    about = {"help": help, "names": names, "choices": choices, "min": min, "read": read}
    value = default if read is None else tuple(map(read, default))
    return field(default=value, metadata={**about, "default": default})


def _shape(default: str, choices: tuple[str, ...] = ALL_SHAPES) -> Any:
    """Describe the option that names a checkpoint with random weights."""
    also = ", or the demo model" if "demo" in choices else ""
    return option(default, f"Random weights of this size{also}.", choices=choices)


def _model() -> Any:
    """Describe the option that names a folder."""
    return option(None, "A checkpoint folder instead of --shape.", "--model", "-m")


def _dtype() -> Any:
    """Describe the option of one data type."""
    return option("float32", "Data type of the weights.", choices=PRECISIONS)


def _dtypes(*default: str) -> Any:
    """Describe the option of several data types."""
    return option(default, "Repeatable.", "--dtype", choices=PRECISIONS)


def _streams(*default: int) -> Any:
    """Describe the option of several numbers of streams."""
    return option(default, "Streams at a time; repeatable.", min=1)


def _new_tokens(default: int) -> Any:
    """Describe the option of the length of an answer."""
    return option(default, "Tokens of each answer.", min=2)


def _prompt_tokens() -> Any:
    """Describe the option of the length of a prompt."""
    return option(32, "Tokens of the prompt.", min=1)


def _runs(default: int) -> Any:
    """Describe the option of the number of runs."""
    return option(default, "Runs of each side; medians are reported.", min=1)


class Settings:
    """Base of all settings.

    Attributes:
        report: ``module:Class`` of the report, in this package.
        needs: Modules that the benchmark imports besides ours.
        is_pinned: True if a client has the last core, and the library all others.
        shape: Name of a checkpoint that is made on the spot, or ``demo``.
        model: A folder instead of ``shape``.
        threads: Compute threads of each side, for the record; the environment sets them.
    """

    __slots__ = ()
    report: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ("transformers",)
    is_pinned: ClassVar[bool] = False
    shape: str
    model: Path | None
    threads: int

    @property
    def name(self) -> str:
        """Name of the checkpoint."""
        return self.shape if self.model is None else self.model.name

    @property
    def threads_text(self) -> str:
        """Number of compute threads in words."""
        return f"{self.threads} thread" + ("" if self.threads == 1 else "s")

    def data(self) -> dict[str, Any]:
        """Return all settings for JSON."""
        found = asdict(self)  # type: ignore[call-overload]
        return {**found, "model": str(self.model) if self.model else None}

    def check(self) -> None:
        """Refuse values that exclude each other.

        Raises:
            SettingsError: Names the option.
        """


@dataclass(frozen=True, slots=True)
class StreamBench(Settings):
    """Measure tokens per second and time to first token, as the reader of a stream sees them.

    Example: asyncgen bench stream --shape 135m --dtype bfloat16
    """

    report = "stream:StreamReport"
    shape: str = _shape("135m")
    model: Path | None = _model()
    dtypes: tuple[str, ...] = _dtypes("float32")
    new_tokens: int = _new_tokens(128)
    prompt_tokens: int = _prompt_tokens()
    runs: int = _runs(5)
    threads: int = 1


@dataclass(frozen=True, slots=True)
class StrategiesBench(Settings):
    """Measure tokens per second of every decoding strategy, beside transformers or greedy.

    Example: asyncgen bench strategies --strategy greedy --runs 1
    """

    report = "strategies:StrategiesReport"
    shape: str = _shape("135m")
    model: Path | None = _model()
    dtypes: tuple[str, ...] = _dtypes("float32")
    strategies: tuple[str, ...] = option((), "Repeatable; all without it.", "--strategy")
    new_tokens: int = _new_tokens(64)
    prompt_tokens: int = _prompt_tokens()
    runs: int = _runs(3)
    threads: int = 1

    @property
    def cases(self) -> tuple[Case, ...]:
        """The chosen strategies, and greedy decoding, which they are compared with."""
        chosen = [case for case in CASES if not self.strategies or case.name in self.strategies]
        for greedy in (GREEDY, GROUNDED_GREEDY):
            if any(case.is_grounded == greedy.is_grounded for case in chosen) and (
                greedy not in chosen
            ):
                chosen.insert(0, greedy)
        return tuple(chosen)

    def check(self) -> None:
        """Refuse unknown strategies."""
        known = [case.name for case in CASES]
        for name in self.strategies:
            if name not in known:
                raise SettingsError(f"--strategy {name}: must be one of {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class LoopBench(Settings):
    """Measure how late the event loop is while a model loads, tokenizes, prefills and decodes.

    Example: asyncgen bench loop --shape demo
    """

    report = "loop:LoopReport"
    shape: str = _shape("135m")
    model: Path | None = _model()
    dtype: str = _dtype()
    new_tokens: int = _new_tokens(128)
    runs: int = _runs(3)
    threads: int = 1


@dataclass(frozen=True, slots=True)
class ConcurrencyBench(Settings):
    """Measure tokens per second of many streams at once, beside both batchings of transformers.

    Example: asyncgen bench concurrency --streams 1 --streams 32 --dtype bfloat16
    """

    report = "concurrency:ConcurrencyReport"
    shape: str = _shape("135m", (*STORED_SHAPES, *MADE, "demo"))
    model: Path | None = _model()
    dtypes: tuple[str, ...] = _dtypes("float32", "bfloat16")
    streams: tuple[int, ...] = _streams(1, 4, 8, 16, 32, 64)
    new_tokens: int = _new_tokens(64)
    prompt_tokens: tuple[int, int] = option((16, 64), "Shortest and longest prompt.", min=1)
    runs: int = _runs(3)
    threads: int = 1
    against: tuple[str, ...] = option(
        ("continuous", "padded"), "Repeatable.", choices=("continuous", "padded")
    )
    device: str = option("cpu", "Where all sides compute.", choices=("cpu", "cuda"))

    @property
    def sides(self) -> tuple[str, ...]:
        """All sides, ours first."""
        return ("asyncgen", *self.against)

    @property
    def made(self) -> bool:
        """True if the weights are drawn on the device."""
        return self.model is None and self.shape in MADE

    @property
    def length(self) -> int:
        """Most tokens of a stream."""
        return self.prompt_tokens[1] + self.new_tokens

    @property
    def where(self) -> str:
        """Name of the device, or number of compute threads in words."""
        return self.threads_text if self.device == "cpu" else self.device

    def check(self) -> None:
        """Refuse prompts in the wrong order, and large models on a CPU."""
        if self.prompt_tokens[0] > self.prompt_tokens[1]:
            raise SettingsError("--prompt-tokens: the shortest prompt comes first")
        if self.made and self.device == "cpu":
            raise SettingsError(f"--shape {self.shape}: a CPU takes too long; add --device cuda")


@dataclass(frozen=True, slots=True)
class ScaleBench(Settings):
    """Measure very many streams: lateness of the loop, host time per token, memory.

    Example: asyncgen bench scale --streams 1000
    """

    report = "scale:ScaleReport"
    shape: str = _shape("5m")
    model: Path | None = _model()
    dtype: str = _dtype()
    streams: tuple[int, ...] = _streams(100, 300, 1000)
    new_tokens: int = _new_tokens(64)
    runs: int = _runs(1)
    threads: int = 1


@dataclass(frozen=True, slots=True)
class ServeBench(Settings):
    """Measure tokens per second and time to first token over HTTP, beside `transformers serve`.

    A server uses all cores but the last; the clients use that one. The default is one compute
    thread for each core of the server.

    Example: asyncgen bench serve --clients 8
    """

    report = "serve:ServeReport"
    is_pinned = True
    shape: str = _shape("135m", STORED_SHAPES)
    model: Path | None = _model()
    dtype: str = _dtype()
    clients: tuple[int, ...] = option((1, 8, 32), "Clients at a time; repeatable.", min=1)
    in_process: int = option(64, "Streams with and without a server; 0 leaves it out.", min=0)
    new_tokens: int = _new_tokens(64)
    prompt_tokens: int = _prompt_tokens()
    runs: int = _runs(3)
    threads: int = 1
    against: tuple[str, ...] = option(
        ("continuous", "plain"), "Repeatable.", choices=("continuous", "plain")
    )

    @property
    def most(self) -> int:
        """Most streams at a time."""
        return max(*self.clients, self.in_process)


def _crowd(text: str) -> tuple[int, int]:
    """Read ``500x1``."""
    connections, cross, each = text.partition("x")
    if not cross or not all(one.isdecimal() and int(one) > 0 for one in (connections, each)):
        raise SettingsError(f"--crowd {text}: must be connections x streams on each, as in 50x20")
    if int(each) > MOST_EACH:
        raise SettingsError(f"--crowd {text}: a connection has at most {MOST_EACH} streams")
    return int(connections), int(each)


@dataclass(frozen=True, slots=True)
class WebsocketBench(Settings):
    """Measure WebSockets: tokens per second beside streams in process, delay, memory, stalls.

    Engine and server use all cores but the last, both ways; the client, another process, uses that
    one. The default is one compute thread for each core of the engine.

    Example: asyncgen bench websocket --crowd 50x20
    """

    report = "websocket:WebsocketReport"
    is_pinned = True
    shape: str = _shape("5m")
    model: Path | None = _model()
    dtype: str = _dtype()
    streams: tuple[int, ...] = _streams(1, 8, 32)
    delayed: int = option(100, "Streams while delays are measured.", min=1)
    crowds: tuple[tuple[int, int], ...] = option(
        ("500x1", "50x20"), "Connections x streams on each; repeatable.", "--crowd", read=_crowd
    )
    idle: int = option(500, "Idle connections; 0 leaves them out.", min=0)
    stall: bool = option(True, "Measure beside a client that reads nothing.")
    new_tokens: int = _new_tokens(64)
    prompt_tokens: int = _prompt_tokens()
    runs: int = _runs(5)
    threads: int = 1

    @property
    def most(self) -> int:
        """Most streams at a time."""
        crowds = [connections * each for connections, each in self.crowds]
        return max(*self.streams, self.delayed, READERS + BURDEN, *crowds, 1)


@dataclass(frozen=True, slots=True)
class StructuredBench(Settings):
    """Measure structured output: its own speed, and that of free streams beside it.

    Example: asyncgen bench structured --part all
    """

    report = "structured:StructuredReport"
    needs = ("llguidance",)
    shape: str = _shape("135m")
    model: Path | None = _model()
    dtype: str = _dtype()
    parts: tuple[str, ...] = option(PARTS, "What to measure; repeatable.", "--part", choices=PARTS)
    streams: int = option(32, "Streams at a time.", min=2)
    new_tokens: int = _new_tokens(64)
    temperature: float = option(0.0, "0 takes the likeliest tokens.", min=0.0)
    runs: int = option(5, "Pairs of runs of each figure.", min=1)
    threads: int = 1


BENCHES: dict[str, type[Settings]] = {
    "stream": StreamBench,
    "strategies": StrategiesBench,
    "loop": LoopBench,
    "concurrency": ConcurrencyBench,
    "scale": ScaleBench,
    "serve": ServeBench,
    "websocket": WebsocketBench,
    "structured": StructuredBench,
}
"""Settings of each benchmark, by the name of its command."""
