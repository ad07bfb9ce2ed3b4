"""``bench websocket``: what a WebSocket between an engine and its readers costs.

One engine on one part of the cores, read in its own process or by a client on another core, in
turns. Turns the runs into figures; measures nothing itself.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from rich.table import Table

from asyncgen_apps.bench.figures import median, percentile
from asyncgen_apps.bench.models import checkpoint
from asyncgen_apps.bench.serve_sides import cores, pin
from asyncgen_apps.bench.workers import BenchError, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

    from asyncgen_apps.bench.models import Checkpoint


SERVER = "asyncgen_apps.bench.websocket_sides:ServerSide"
CLIENT = "asyncgen_apps.bench.websocket_client:ClientSide"
WARM_UP_TOKENS = 4
SHARE = 0.95
DELAY_MS = {"p50": 1.0, "p99": 10.0}
SHARES = {"p50": 0.5, "p99": 0.99}
IDLE_KB = 30.0
SLOWER = 1.1
SEND_SECONDS = 3.0
SEND_BUFFER = 16384
WRITE_LIMIT = 65536
READERS, BURDEN = 16, 8
BURDEN_TOKENS = 1000
LATE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class WebsocketBench:
    """What to measure.

    Attributes:
        shape: Name of a made checkpoint, or ``demo``.
        model: A folder instead.
        dtype: Type of the weights.
        streams: Numbers of streams for the comparison with streams in process.
        delayed: Streams while delays are measured.
        crowds: Connections, and streams on each.
        idle: Connections without a request; 0 leaves their memory out.
        stall: Measure what a client that reads nothing does to the others.
        new_tokens: Tokens of each answer.
        prompt_tokens: Tokens of each prompt.
        runs: Pairs of runs of the comparison.
        threads: Compute threads, for the record; the environment sets them.
    """

    shape: str
    model: Path | None
    dtype: str
    streams: tuple[int, ...]
    delayed: int
    crowds: tuple[tuple[int, int], ...]
    idle: int
    stall: bool
    new_tokens: int
    prompt_tokens: int
    runs: int
    threads: int

    @property
    def most(self) -> int:
        """Most streams at a time."""
        crowds = [connections * each for connections, each in self.crowds]
        return max(*self.streams, self.delayed, READERS + BURDEN, *crowds, 1)


@dataclass(slots=True)
class Pair:
    """Runs in process and over sockets, side by side.

    Attributes:
        streams: Streams at a time.
        new_tokens: Tokens of each.
        inside: Seconds of each run in process.
        outside: Seconds of the run over sockets beside it.
    """

    streams: int
    new_tokens: int
    inside: list[float] = field(default_factory=list)
    outside: list[float] = field(default_factory=list)

    def rate(self, seconds: Sequence[float]) -> float:
        """Median tokens per second of all streams together."""
        return self.streams * self.new_tokens / median(seconds)

    @property
    def share(self) -> float:
        """What sockets leave of the tokens per second; median of the pairs."""
        return median(a / b for a, b in zip(self.inside, self.outside, strict=True))


@dataclass(frozen=True, slots=True)
class Crowd:
    """Very many streams.

    Attributes:
        connections: How many connections.
        each: Streams on each.
        lost: Streams that did not get all their tokens.
        disordered: Streams with a gap, a repetition or another text than was put in.
        rate: Tokens per second of all together.
    """

    connections: int
    each: int
    lost: int
    disordered: int
    rate: float


@dataclass(frozen=True, slots=True)
class Stall:
    """What a client that reads nothing does.

    Attributes:
        reading: Seconds between the deltas of the others while that client reads.
        stalled: The same while it does not.
        grown: Bytes that the server grew by at most.
        bound: Bytes that it may keep for that client.
        dropped: Seconds from a full socket until it was given up; ``None`` if it was not.
    """

    reading: tuple[float, ...]
    stalled: tuple[float, ...]
    grown: int
    bound: int
    dropped: float | None

    @property
    def slower(self) -> float:
        """How many times as long the others wait for a delta, in the median."""
        return median(self.stalled) / median(self.reading)


def delays(put: Mapping[str, Sequence[Any]], streams: Mapping[str, Sequence[Any]]) -> list[float]:
    """Seconds from putting a text to its receipt, for each text of each stream.

    Args:
        put: By stream: a checksum, and when how many characters had been put.
        streams: The same of what was received. Deltas merge, so there may be fewer of them.

    Raises:
        BenchError: A stream was received otherwise than it was put.
    """
    found = []
    for name, (check, texts) in put.items():
        received, deltas = streams.get(name, (None, ()))
        if received != check:
            raise BenchError(f"stream {name} was received otherwise than it was sent")
        arrivals = iter(deltas)
        moment, length = next(arrivals)
        for when, needed in texts:
            while length < needed:
                moment, length = next(arrivals)
            found.append(moment - when)
    return found


@dataclass(slots=True)
class WebsocketReport:
    """The figures of one benchmark.

    Attributes:
        bench: What was measured.
        pairs: In process and over sockets, for each number of streams.
        delay: Seconds from putting a text to its receipt.
        crowds: Very many streams.
        idle_kb: Kilobytes of a connection without requests; ``None`` if left out.
        stall: What a client that reads nothing does; ``None`` if left out.
    """

    bench: WebsocketBench
    pairs: list[Pair] = field(default_factory=list)
    delay: list[float] = field(default_factory=list)
    crowds: list[Crowd] = field(default_factory=list)
    idle_kb: float | None = None
    stall: Stall | None = None

    @classmethod
    def of(cls, bench: WebsocketBench, progress: Callable[[str], None] = lambda text: None) -> Self:
        """Run a benchmark.

        Args:
            bench: What to measure.
            progress: Told in a few words what comes next.

        Raises:
            BenchError: A side failed.
        """
        report = cls(bench)
        progress("loading")
        with (
            checkpoint(bench.shape, bench.model, bench.dtype) as found,
            Worker(SERVER) as server,
            Worker(CLIENT) as client,
        ):
            server_cpus, client_cpus = cores()
            pin(server.pid, server_cpus)
            pin(client.pid, client_cpus)
            folder = str(found.folder)
            server.call("load", folder=folder, dtype=bench.dtype, streams=bench.most)
            sides = _Sides(bench, found, server, client)
            progress(f"memory of {bench.idle} connections")
            report.idle_kb = sides.idle()  # first: what the others need would be used again
            report.pairs += sides.pairs(progress)
            progress(f"delay of {bench.delayed} streams")
            report.delay += sides.delay()
            for connections, each in bench.crowds:
                progress(f"{connections} connections with {each} streams")
                report.crowds.append(sides.crowd(connections, each))
            if bench.stall:
                progress("a client that reads nothing")
                report.stall = sides.stall()
        return report

    @property
    def kind(self) -> str:
        """Name of the benchmark."""
        return "websocket"

    def settings(self) -> dict[str, object]:
        """Return what was measured, for JSON."""
        return {**asdict(self.bench), "model": str(self.bench.model) if self.bench.model else None}

    def results(self) -> object:
        """Return the figures and the pairs of runs, for JSON."""
        stall = self.stall
        return {
            "pairs": [{**asdict(one), "share": one.share} for one in self.pairs],
            "delay_ms": {name: self.delay_ms(share) for name, share in SHARES.items()},
            "crowds": [asdict(one) for one in self.crowds],
            "idle_connection_kb": self.idle_kb,
            "stall": None
            if stall is None
            else {
                "gap_ms_reading": 1000 * median(stall.reading),
                "gap_ms_stalled": 1000 * median(stall.stalled),
                "slower": stall.slower,
                "grown": stall.grown,
                "bound": stall.bound,
                "dropped_seconds": stall.dropped,
                "send_seconds": SEND_SECONDS,
            },
        }

    def delay_ms(self, share: float) -> float:
        """Milliseconds that this share of the texts needed at most."""
        return 1000 * percentile(self.delay, share)

    def table(self) -> Table:
        """Lay the figures out."""
        bench = self.bench
        name = bench.shape if bench.model is None else bench.model.name
        table = Table(
            title=f"{name} {bench.dtype}, threads: {bench.threads}, {bench.new_tokens} new tokens "
            f"each, medians of {bench.runs} pairs",
            caption="engine and server on the same cores both ways, the client on its own",
        )
        table.add_column("what")
        for column in ("measured", "wanted"):
            table.add_column(column, justify="right")
        for row in self._rows():
            table.add_row(*row)
        return table

    def _rows(self) -> list[tuple[str, str, str]]:
        rows = []
        for one in self.pairs:
            told = f"{one.rate(one.outside):.0f} of {one.rate(one.inside):.0f}, {one.share:.1%}"
            wanted = f"≥ {SHARE:.0%}" if one.streams >= 32 else ""
            ok = not wanted or one.share >= SHARE
            rows.append((f"tokens/s, {one.streams} streams", _judged(told, ok), wanted))
        for name, share in SHARES.items():
            value = self.delay_ms(share)
            shown = _judged(f"{value:.2f} ms", value < DELAY_MS[name])
            what = f"delay {name}, {self.bench.delayed} streams"
            rows.append((what, shown, f"< {DELAY_MS[name]:.0f} ms"))
        for crowd in self.crowds:
            told = f"{crowd.lost} lost, {crowd.disordered} disordered, {crowd.rate:.0f} tokens/s"
            shown = _judged(told, not crowd.lost and not crowd.disordered)
            rows.append((f"{crowd.connections} connections × {crowd.each} streams", shown, "0, 0"))
        if self.idle_kb is not None:
            shown = _judged(f"{self.idle_kb:.1f} KB", self.idle_kb < IDLE_KB)
            rows.append(("memory of an idle connection", shown, f"< {IDLE_KB:.0f} KB"))
        return rows + self._stall_rows()

    def _stall_rows(self) -> list[tuple[str, str, str]]:
        stall = self.stall
        if stall is None:
            return []
        grown = _judged(f"{stall.grown / 1024:.0f} KiB", stall.grown <= stall.bound)
        slower = _judged(f"× {stall.slower:.2f}", stall.slower <= SLOWER)
        when = "never" if stall.dropped is None else f"{stall.dropped:.1f} s"
        in_time = stall.dropped is not None and stall.dropped <= SEND_SECONDS + LATE_SECONDS
        limit = f"{SEND_SECONDS:.0f} s"
        return [
            ("a stalled client: growth", grown, f"≤ {stall.bound / 1024:.0f} KiB"),
            ("… gaps of the others", slower, f"≤ × {SLOWER:.2f}"),
            ("… dropped after", _judged(when, in_time), limit),
        ]

    def draw(self, figure: Figure) -> None:
        """Draw the rates of both ways, and how the delays are spread."""
        rates, spread = figure.subplots(1, 2)
        places = range(len(self.pairs))
        for shift, label, color in ((-0.2, "in process", "#8250df"), (0.2, "WebSocket", "#1f6feb")):
            heights = [
                one.rate(one.inside if label == "in process" else one.outside) for one in self.pairs
            ]
            rates.bar([place + shift for place in places], heights, 0.38, color=color, label=label)
        rates.set_xticks(list(places), [str(one.streams) for one in self.pairs])
        rates.set_xlabel("streams at a time")
        rates.set_title("tokens per second")
        rates.legend(frameon=False)
        ordered = sorted(1000 * one for one in self.delay)
        shares = [100 * (rank + 1) / len(ordered) for rank in range(len(ordered))]
        spread.plot(ordered, shares, color="#1f6feb", linewidth=2)
        for name, limit in DELAY_MS.items():
            spread.plot([limit], [100 * SHARES[name]], "v", color="#d1242f", label=f"{name} wanted")
        spread.set_xscale("log")
        spread.set_xlabel(f"ms from put to receipt, {self.bench.delayed} streams")
        spread.set_title("% of the deltas")
        spread.legend(frameon=False)
        for axes in (rates, spread):
            axes.spines[["top", "right"]].set_visible(False)


class _Sides:
    """The engine's process and the client's."""

    def __init__(
        self, bench: WebsocketBench, found: Checkpoint, server: Worker, client: Worker
    ) -> None:
        self._bench = bench
        self._found = found
        self._server = server
        self._client = client
        self._port = server.call("serve")["port"]

    def idle(self) -> float | None:
        """Kilobytes of the server for a connection without requests."""
        count = self._bench.idle
        if not count:
            return None
        before = self._server.call("memory")["bytes"]
        self._client.call("hold", port=self._port, count=count)
        after = self._server.call("memory")["bytes"]
        self._client.call("release")
        grown: int = after - before
        return grown / count / 1000

    def pairs(self, progress: Callable[[str], None]) -> list[Pair]:
        """One way, the other way, in turns that change."""
        bench = self._bench
        found = {count: Pair(count, bench.new_tokens) for count in bench.streams}
        for count in sorted({max(bench.streams), 1}):
            self._inside(count, WARM_UP_TOKENS, 0)
            self._outside(count, WARM_UP_TOKENS, 0)
        for number in range(bench.runs):
            for count, pair in found.items():
                progress(f"pair {number + 1} of {bench.runs}, {count} streams")
                seed = 1000 * (number + 1) + count
                if number % 2:
                    pair.outside.append(self._outside(count, bench.new_tokens, seed)["total"])
                pair.inside.append(self._inside(count, bench.new_tokens, seed))
                if not number % 2:
                    pair.outside.append(self._outside(count, bench.new_tokens, seed)["total"])
        return list(found.values())

    def delay(self) -> list[float]:
        """Measure the delays of one run."""
        count = self._bench.delayed
        self._outside(count, WARM_UP_TOKENS, 1)
        self._server.call("note", on=True)
        got = self._outside(count, self._bench.new_tokens, 2, details=True)
        return delays(self._server.call("note", on=False), got["streams"])

    def crowd(self, connections: int, each: int) -> Crowd:
        """Run very many streams, and compare every text with what was put in."""
        count = connections * each
        self._server.call("note", on=True)
        got = self._ask(count, self._bench.new_tokens, 3, connections, details=True)
        put = self._server.call("note", on=False)
        streams = got["streams"]
        wrong = sum(put.get(name, [None])[0] != one[0] for name, one in streams.items())
        rate = count * self._bench.new_tokens / got["total"]
        return Crowd(connections, each, got["lost"], max(wrong, got["disordered"]), rate)

    def stall(self) -> Stall:
        """Measure the others beside a client that reads, and beside one that does not."""
        served = self._server.call("serve", send_seconds=SEND_SECONDS, send_buffer=SEND_BUFFER)
        self._port = served["port"]
        prompts = self._prompts(BURDEN, 4)
        params = self._params(BURDEN_TOKENS)
        gaps: list[tuple[float, ...]] = []
        for reads in (True, True, False):  # the first one warms up
            self._server.call("watch")
            burden = {"prompts": prompts, "params": params, "reads": reads}
            self._client.call("burden", port=self._port, **burden)
            gaps.append(tuple(self._outside(READERS, BURDEN_TOKENS // 2, 5)["gaps"]))
            seen = self._server.call("watched")
            self._client.call("release")
        dropped = seen["dropped"] - seen["full"] if seen["dropped"] else None
        bound = BURDEN * served["bound"] + WRITE_LIMIT
        return Stall(gaps[1], gaps[2], seen["grown"], bound, dropped)

    def _inside(self, count: int, new_tokens: int, seed: int) -> float:
        got = self._server.call(
            "run", prompts=self._prompts(count, seed), params=self._params(new_tokens)
        )
        total: float = got["total"]
        return total

    def _outside(
        self, count: int, new_tokens: int, seed: int, details: bool = False
    ) -> dict[str, Any]:
        """Ask for streams on a connection each; none may be lost."""
        got = self._ask(count, new_tokens, seed, count, details)
        if got["lost"] or got["disordered"]:
            raise BenchError(f"{got['lost']} streams were lost: {got['errors']}")
        return got

    def _ask(
        self, count: int, new_tokens: int, seed: int, connections: int, details: bool
    ) -> dict[str, Any]:
        return self._client.call(
            "run",
            port=self._port,
            prompts=self._prompts(count, seed),
            connections=connections,
            params=self._params(new_tokens),
            details=details,
        )

    def _prompts(self, count: int, seed: int) -> list[list[int]]:
        length = self._bench.prompt_tokens
        return self._found.prompts(count, (length, length), seed)

    def _params(self, new_tokens: int) -> dict[str, object]:
        floor = self._found.floor(new_tokens)
        return {"max_new_tokens": new_tokens, "do_sample": False, **floor}


def _judged(text: str, ok: bool) -> str:
    return f"[bold {'green' if ok else 'red'}]{text}[/]"
