"""``bench serve``: our server beside ``transformers serve``, and beside no server.

All sides answer the same prompts from the same checkpoint in turn. The client has the last core,
and every server has the others.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import anyio
from rich.box import SIMPLE_HEAD
from rich.table import Table

from asyncgen_apps.bench.cores import cores, pin
from asyncgen_apps.bench.figures import percentile
from asyncgen_apps.bench.models import checkpoint
from asyncgen_apps.bench.report import Report, busy_note, judged, open_frame
from asyncgen_apps.bench.settings import ServeBench
from asyncgen_apps.bench.sides.http_client import ask_all
from asyncgen_apps.bench.sides.servers import ServerOptions, ServerProcess
from asyncgen_apps.bench.workers import BenchError, Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

    from asyncgen_apps.bench.jobs import Run
    from asyncgen_apps.bench.models import Checkpoint


IN_PROCESS = "in process"
WORKER = "asyncgen_apps.bench.sides.streams:AsyncgenStreams"
WARM_UP_TOKENS = 4
TARGETS = {8: 2.0, 32: 2.0}
"""Wanted multiple of the faster of the two ways of transformers, from so many clients on."""
SHARE = 0.9
"""Wanted share of the tokens per second without a server."""
COLORS = {"asyncgen": "#1f6feb", "continuous": "#9aa5b1", "plain": "#d4a72c", IN_PROCESS: "#8250df"}


@dataclass(slots=True)
class Cell:
    """Rounds of all sides with one number of clients.

    Attributes:
        clients: Clients at a time.
        new_tokens: Tokens of each stream.
        rounds: For each side its rounds.
    """

    clients: int
    new_tokens: int
    rounds: dict[str, list[Run]] = field(default_factory=dict)

    def rate(self, side: str) -> float:
        """Median tokens per second of all streams of a side together."""
        return self.clients * self.new_tokens / median(one.total for one in self.rounds[side])

    def first_ms(self, side: str, share: float = 0.5) -> float:
        """Milliseconds to the first text that this share of a side's streams needed at most."""
        return 1000 * percentile([t for one in self.rounds[side] for t in one.first], share)

    def ratio(self) -> float | None:
        """Our rate as a multiple of the faster way of transformers; ``None`` without one."""
        others = [self.rate(side) for side in self.rounds if side in ("continuous", "plain")]
        return self.rate("asyncgen") / max(others) if others else None

    def share(self) -> float | None:
        """Share of the tokens per second without a server that ours keeps; median of the pairs."""
        if IN_PROCESS not in self.rounds:
            return None
        pairs = zip(self.rounds["asyncgen"], self.rounds[IN_PROCESS], strict=True)
        return median(inside.total / served.total for served, inside in pairs)

    def data(self) -> dict[str, object]:
        """Return figures and rounds for JSON; first texts as percentiles only."""
        return {
            "clients": self.clients,
            "tokens_per_second": {side: self.rate(side) for side in self.rounds},
            "first_ms_p50": {side: self.first_ms(side) for side in self.rounds},
            "first_ms_p99": {side: self.first_ms(side, 0.99) for side in self.rounds},
            "ratio": self.ratio(),
            "share_of_in_process": self.share(),
            "rounds": {
                side: [one.data() for one in rounds] for side, rounds in self.rounds.items()
            },
        }


@dataclass(slots=True)
class ServeReport(Report[ServeBench]):
    """Cells of one benchmark.

    Attributes:
        bench: Settings that were measured with.
        cells: One for each number of clients.
    """

    kind = "serve"
    bench: ServeBench
    cells: list[Cell] = field(default_factory=list)

    def measure(self, progress: Callable[[str], None]) -> None:
        """Run all sides in turn.

        Raises:
            BenchError: A side failed, or the model ends by itself.
        """
        bench = self.bench
        with checkpoint(bench.shape, bench.model, bench.dtype) as found, ExitStack() as stack:
            if found.has_end:
                raise BenchError("this model ends by itself: bench serve needs equal lengths")
            self.cells += _Sides(bench, found, progress, stack).measure()

    def results(self) -> object:
        """Return figures and rounds, for JSON."""
        return [cell.data() for cell in self.cells]

    def table(self) -> Table:
        """Lay the medians out."""
        bench = self.bench
        title = (
            f"{bench.name} {bench.dtype}, {bench.threads} threads, prompts of "
            f"{bench.prompt_tokens} tokens, {bench.new_tokens} new each, medians of "
            f"{bench.runs} runs"
        )
        table = Table(title=title, caption=self._caption(), box=SIMPLE_HEAD, padding=0)
        for column in ("clients", "", "tokens/s", "first ms\np50/p99", "asyncgen is"):
            table.add_column(column, justify="left" if column == "" else "right")
        for cell in self.cells:
            for number, side in enumerate(cell.rounds):
                first = f"{cell.first_ms(side):.0f}/{cell.first_ms(side, 0.99):.0f}"
                clients = "" if number else str(cell.clients)
                comparison = _comparison(cell, side)
                table.add_row(clients, _title(side), f"{cell.rate(side):.1f}", first, comparison)
            table.add_section()
        return table

    def _caption(self) -> str:
        rounds = [one for cell in self.cells for side in cell.rounds.values() for one in side]
        wanted = f"wanted: {SHARE:.0%} of in process, {TARGETS[8]:.0f} × transformers from 8 on"
        return "\n".join([wanted, *busy_note(rounds)])

    def draw(self, figure: Figure) -> None:
        """Draw the rate and the time to the first text of each side over the clients."""
        rates, firsts = figure.subplots(1, 2)
        for side in dict.fromkeys(side for cell in self.cells for side in cell.rounds):
            cells = [cell for cell in self.cells if side in cell.rounds]
            places = [cell.clients for cell in cells]
            style = {"color": COLORS[side], "label": _title(side), "linewidth": 2}
            rates.plot(places, [cell.rate(side) for cell in cells], "o-", **style)
            firsts.plot(places, [cell.first_ms(side) for cell in cells], "o-", **style)
        for axes, label in ((rates, "tokens per second"), (firsts, "ms to the first text, p50")):
            axes.set_xscale("log", base=2)
            axes.set_xlabel("clients at a time")
            axes.set_ylabel(label)
            open_frame(axes)
        firsts.set_yscale("log")
        rates.set_ylim(bottom=0)
        rates.legend(frameon=False)


class _Sides:
    """Servers, loaded side by side; all but one of them wait at any time."""

    def __init__(
        self,
        bench: ServeBench,
        found: Checkpoint,
        progress: Callable[[str], None],
        stack: ExitStack,
    ) -> None:
        self._bench = bench
        self._found = found
        self._progress = progress
        self._servers: dict[str, ServerProcess] = {}
        self._worker: Worker | None = None
        server_cpus, client_cpus = cores()
        length = 2 * bench.prompt_tokens + bench.new_tokens
        wanted = ServerOptions(found.folder, bench.dtype, bench.threads, bench.most, length)
        for name in ("asyncgen", *bench.against):
            progress(f"starting {_title(name)}")
            server = stack.enter_context(ServerProcess(name, wanted, server_cpus))
            self._servers[name] = server
        if bench.in_process:
            progress("loading in process")
            self._worker = stack.enter_context(Worker(WORKER))
            pin(self._worker.pid, server_cpus)
            sizes = {"streams": bench.most, "length": length}
            self._worker.call("load", folder=str(found.folder), dtype=bench.dtype, **sizes)
        if client_cpus:
            stack.callback(pin, 0, frozenset(os.sched_getaffinity(0)))
            pin(0, client_cpus)

    def measure(self) -> list[Cell]:
        """Run all sides again and again, each number of clients in each round."""
        bench = self._bench
        counts = sorted({*bench.clients, *([bench.in_process] if bench.in_process else [])})
        cells = {count: Cell(count, bench.new_tokens) for count in counts}
        for count in (max(counts), 1):
            for side in self._of(count):
                self._round(side, count, WARM_UP_TOKENS, seed=0)
        for number in range(bench.runs):
            for count in counts:
                self._progress(f"run {number + 1} of {bench.runs}, {count} clients")
                for side in self._of(count):
                    one = self._round(side, count, bench.new_tokens, 1000 * (number + 1) + count)
                    cells[count].rounds.setdefault(side, []).append(one)
        return list(cells.values())

    def _of(self, count: int) -> list[str]:
        """Return the sides that take part with this number of clients."""
        bench = self._bench
        others = bench.against if count in bench.clients or count == 1 else ()
        inside = (IN_PROCESS,) if self._worker is not None and count == bench.in_process else ()
        return ["asyncgen", *others, *inside]

    def _round(self, side: str, count: int, new_tokens: int, seed: int) -> Run:
        """Answer the prompts of one seed; all sides get the same."""
        texts, prompts = _prompts(self._found, self._bench.prompt_tokens, count, seed)
        if side == IN_PROCESS:
            assert self._worker is not None
            return self._worker.run(self._found.job(prompts, new_tokens))
        server = self._servers[side]
        bodies = [_body(side, self._found, text, new_tokens) for text in texts]
        try:
            return anyio.run(partial(ask_all, server.port, bodies, new_tokens))
        except* (RuntimeError, OSError) as errors:
            raise BenchError(f"{_title(side)}: {errors.exceptions[0]}") from errors


def _prompts(
    found: Checkpoint, length: int, count: int, seed: int
) -> tuple[list[str], list[list[int]]]:
    """Draw prompts as texts, which all servers take, and as the ids that those texts have."""
    from asyncgen import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(found.folder))
    drawn = found.prompts(count, (length, length), seed)
    texts = [tokenizer.decode(ids) for ids in drawn]
    return texts, [tokenizer.encode(text) for text in texts]


def _body(side: str, found: Checkpoint, text: str, new_tokens: int) -> dict[str, object]:
    """Return the body of one request."""
    ours = {"stream_options": {"include_usage": True}} if side == "asyncgen" else {}
    body = {"model": str(found.folder), "prompt": text, "max_tokens": new_tokens}
    return {**body, "temperature": 0, "stream": True, **ours}


def _comparison(cell: Cell, side: str) -> str:
    """Compare our figures with those of a side, in words."""
    if side == "asyncgen":
        ratio = cell.ratio()
        if ratio is None:
            return ""
        wanted = max((v for least, v in TARGETS.items() if cell.clients >= least), default=None)
        is_good = None if wanted is None else ratio >= wanted
        return judged(f"{ratio:.2f} × transformers", is_good)
    if side != IN_PROCESS:
        return ""
    share = cell.share()
    assert share is not None
    return judged(f"{share:.0%} of it", share >= SHARE)


def _title(side: str) -> str:
    names = {"asyncgen": "asyncgen serve", "plain": "transformers serve", IN_PROCESS: "no server"}
    return names.get(side, "transformers serve, continuous")
