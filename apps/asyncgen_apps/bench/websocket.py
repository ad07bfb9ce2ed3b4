"""``bench websocket``: time and memory that WebSockets between an engine and its readers take.

One engine on one part of the cores is read in its process or by a client on another core, in turn.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.table import Table

from asyncgen_apps.bench.cores import cores, pin
from asyncgen_apps.bench.figures import percentile
from asyncgen_apps.bench.models import checkpoint
from asyncgen_apps.bench.report import Report, judged, open_frame
from asyncgen_apps.bench.settings import BURDEN, READERS, WebsocketBench
from asyncgen_apps.bench.workers import BenchError, started

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.figure import Figure

    from asyncgen_apps.bench.jobs import Job
    from asyncgen_apps.bench.models import Checkpoint
    from asyncgen_apps.bench.workers import Worker


SIDES = {
    "server": "asyncgen_apps.bench.sides.websocket:ServerSide",
    "client": "asyncgen_apps.bench.sides.websocket_client:ClientSide",
}
WARM_UP_TOKENS = 4
SHARE = 0.95
DELAY_MS = {"p50": 1.0, "p99": 10.0}
SHARES = {"p50": 0.5, "p99": 0.99}
IDLE_KB = 30.0
SLOWER = 1.1
SEND_SECONDS = 3.0
SEND_BUFFER = 16384
WRITE_LIMIT = 65536
BURDEN_TOKENS = 1000
LATE_SECONDS = 0.5


@dataclass(slots=True)
class PairedRuns:
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
        """Share of the tokens per second that sockets keep; median of the pairs."""
        return median(a / b for a, b in zip(self.inside, self.outside, strict=True))


@dataclass(frozen=True, slots=True)
class CrowdResult:
    """Figures of very many streams.

    Attributes:
        connections: Number of connections.
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
class StalledClient:
    """Effect of a client that reads nothing.

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
        """Time that the others wait for a delta, as a multiple; the median."""
        return median(self.stalled) / median(self.reading)


def delays(put: Mapping[str, Sequence[Any]], streams: Mapping[str, Sequence[Any]]) -> list[float]:
    """Return the seconds from putting a text to its receipt, for each text of each stream.

    Args:
        put: By stream: a checksum, and the characters that had been put at each time.
        streams: The same of the received text. Deltas merge, so there may be fewer of them.

    Raises:
        BenchError: A received stream differs from what was put.
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
class WebsocketReport(Report[WebsocketBench]):
    """Figures of one benchmark.

    Attributes:
        bench: Settings that were measured with.
        pairs: In process and over sockets, for each number of streams.
        delay: Seconds from putting a text to its receipt.
        crowds: Very many streams.
        idle_kb: Kilobytes of a connection without requests; ``None`` if left out.
        stall: Effect of a client that reads nothing; ``None`` if left out.
    """

    kind = "websocket"
    bench: WebsocketBench
    pairs: list[PairedRuns] = field(default_factory=list)
    delay: list[float] = field(default_factory=list)
    crowds: list[CrowdResult] = field(default_factory=list)
    idle_kb: float | None = None
    stall: StalledClient | None = None

    def measure(self, progress: Callable[[str], None]) -> None:
        """Measure memory, pairs, delays, crowds and a stalled client."""
        bench = self.bench
        progress("loading")
        with checkpoint(bench.shape, bench.model, bench.dtype) as found, started(SIDES) as workers:
            server, client = workers["server"], workers["client"]
            server_cpus, client_cpus = cores()
            pin(server.pid, server_cpus)
            pin(client.pid, client_cpus)
            folder = str(found.folder)
            server.call("load", folder=folder, dtype=bench.dtype, streams=bench.most)
            sides = _Sides(bench, found, server, client)
            progress(f"memory of {bench.idle} connections")
            self.idle_kb = sides.idle()  # first: memory that others leave would be used again
            self.pairs += sides.pairs(progress)
            progress(f"delay of {bench.delayed} streams")
            self.delay += sides.delay()
            for connections, each in bench.crowds:
                progress(f"{connections} connections with {each} streams")
                self.crowds.append(sides.crowd(connections, each))
            if bench.stall:
                progress("a client that reads nothing")
                self.stall = sides.stall()

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
        """Return the milliseconds that this share of the texts needed at most."""
        return 1000 * percentile(self.delay, share)

    def table(self) -> Table:
        """Lay the figures out."""
        bench = self.bench
        table = Table(
            title=f"{bench.name} {bench.dtype}, threads: {bench.threads}, "
            f"{bench.new_tokens} new tokens each, medians of {bench.runs} pairs",
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
            text = f"{one.rate(one.outside):.0f} of {one.rate(one.inside):.0f}, {one.share:.1%}"
            wanted = f"≥ {SHARE:.0%}" if one.streams >= 32 else ""
            ok = not wanted or one.share >= SHARE
            rows.append((f"tokens/s, {one.streams} streams", judged(text, ok), wanted))
        for name, share in SHARES.items():
            value = self.delay_ms(share)
            shown = judged(f"{value:.2f} ms", value < DELAY_MS[name])
            what = f"delay {name}, {self.bench.delayed} streams"
            rows.append((what, shown, f"< {DELAY_MS[name]:.0f} ms"))
        for crowd in self.crowds:
            text = f"{crowd.lost} lost, {crowd.disordered} disordered, {crowd.rate:.0f} tokens/s"
            shown = judged(text, not crowd.lost and not crowd.disordered)
            rows.append((f"{crowd.connections} connections × {crowd.each} streams", shown, "0, 0"))
        if self.idle_kb is not None:
            shown = judged(f"{self.idle_kb:.1f} KB", self.idle_kb < IDLE_KB)
            rows.append(("memory of an idle connection", shown, f"< {IDLE_KB:.0f} KB"))
        return rows + self._stall_rows()

    def _stall_rows(self) -> list[tuple[str, str, str]]:
        stall = self.stall
        if stall is None:
            return []
        grown = judged(f"{stall.grown / 1024:.0f} KiB", stall.grown <= stall.bound)
        slower = judged(f"× {stall.slower:.2f}", stall.slower <= SLOWER)
        when = "never" if stall.dropped is None else f"{stall.dropped:.1f} s"
        in_time = stall.dropped is not None and stall.dropped <= SEND_SECONDS + LATE_SECONDS
        limit = f"{SEND_SECONDS:.0f} s"
        return [
            ("a stalled client: growth", grown, f"≤ {stall.bound / 1024:.0f} KiB"),
            ("… gaps of the others", slower, f"≤ × {SLOWER:.2f}"),
            ("… dropped after", judged(when, in_time), limit),
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
        open_frame(rates, spread)


class _Sides:
    """Processes of the engine and the client."""

    def __init__(
        self, bench: WebsocketBench, found: Checkpoint, server: Worker, client: Worker
    ) -> None:
        self._bench = bench
        self._found = found
        self._server = server
        self._client = client
        self._port = server.call("serve")["port"]

    def idle(self) -> float | None:
        """Return the kilobytes of the server for a connection without requests."""
        count = self._bench.idle
        if not count:
            return None
        before = self._server.call("memory")["bytes"]
        self._client.call("hold", port=self._port, count=count)
        after = self._server.call("memory")["bytes"]
        self._client.call("release")
        grown: int = after - before
        return grown / count / 1000

    def pairs(self, progress: Callable[[str], None]) -> list[PairedRuns]:
        """Run both ways in turn; each goes first in every other pair."""
        bench = self._bench
        found = {count: PairedRuns(count, bench.new_tokens) for count in bench.streams}
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

    def crowd(self, connections: int, each: int) -> CrowdResult:
        """Run very many streams, and compare every text with what was put in."""
        count = connections * each
        self._server.call("note", on=True)
        got = self._ask(count, self._bench.new_tokens, 3, connections, details=True)
        put = self._server.call("note", on=False)
        streams = got["streams"]
        wrong = sum(put.get(name, [None])[0] != one[0] for name, one in streams.items())
        rate = count * self._bench.new_tokens / got["total"]
        return CrowdResult(connections, each, got["lost"], max(wrong, got["disordered"]), rate)

    def stall(self) -> StalledClient:
        """Measure the others beside a client that reads, and beside one that does not."""
        served = self._server.call("serve", send_seconds=SEND_SECONDS, send_buffer=SEND_BUFFER)
        self._port = served["port"]
        burden = self._job(BURDEN, BURDEN_TOKENS, 4)
        gaps: list[tuple[float, ...]] = []
        for reads in (True, True, False):  # the first one warms up
            self._server.call("watch")
            self._client.call("burden", port=self._port, job=burden, reads=reads)
            gaps.append(tuple(self._outside(READERS, BURDEN_TOKENS // 2, 5)["gaps"]))
            seen = self._server.call("watched")
            self._client.call("release")
        dropped = seen["dropped"] - seen["full"] if seen["dropped"] else None
        bound = BURDEN * served["bound"] + WRITE_LIMIT
        return StalledClient(gaps[1], gaps[2], seen["grown"], bound, dropped)

    def _inside(self, count: int, new_tokens: int, seed: int) -> float:
        return self._server.run(self._job(count, new_tokens, seed)).total

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
            job=self._job(count, new_tokens, seed),
            connections=connections,
            details=details,
        )

    def _job(self, count: int, new_tokens: int, seed: int) -> Job:
        length = self._bench.prompt_tokens
        return self._found.job(self._found.prompts(count, (length, length), seed), new_tokens)
