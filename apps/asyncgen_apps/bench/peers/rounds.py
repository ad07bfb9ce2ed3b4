"""Let the contenders answer in turn, round after round, and keep the figures of each run."""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import asdict, dataclass, field, fields, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from asyncgen_apps.bench.checkpoints import SHAPES, write_checkpoint
from asyncgen_apps.bench.models import Checkpoint
from asyncgen_apps.bench.other_processes import OtherProcesses
from asyncgen_apps.bench.peers.contenders import CONTENDERS
from asyncgen_apps.bench.peers.processes import PeerProcesses, busy_process, read_bandwidth
from asyncgen_apps.bench.peers.rows import Row, ShortAnswerError, figures
from asyncgen_apps.bench.workers import BenchError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from asyncgen_apps.bench.peers.programs.protocol import Request, Task
    from asyncgen_apps.bench.shape import ModelShape


ITEM_BYTES = {"float32": 4, "bfloat16": 2}
PACKED_BYTES = {"int8": 34 / 32, "int4": 19 / 32}
"""Bytes of a weight that this library packed, with its share of scales and zero points."""
CONTEXT = 32768
"""Tokens of the longest text, of all shapes."""
CACHE_SLACK = 1.25
"""Memory of keys and values, as a multiple of the need of the largest row."""
LEAST_CACHE_BYTES = 1 << 28
WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True)
class PeersBench:
    """Settings of the benchmark.

    Attributes:
        pythons: The interpreter of each contender, by its key, in the order of the columns.
        missing: Contenders that were asked for and are not installed.
        rows: Workloads of each.
        rounds: Runs of each row.
        threads: Compute threads of each.
        stored: Data type of the weights on disk; published checkpoints have ``bfloat16``.
        patience: Seconds that an answer may take.
        folder: Folder of checkpoints and converted files; it stays for the next time.
    """

    pythons: Mapping[str, str]
    missing: tuple[str, ...]
    rows: tuple[Row, ...]
    rounds: int
    threads: int
    stored: str
    patience: float
    folder: Path


@dataclass(slots=True)
class Cell:
    """All runs of one row.

    Attributes:
        row: The workload.
        runs: Figures of the runs of each contender, in order, with ``others``, the cores that other
            processes used meanwhile, if known.
        failures: Reason that a contender lacks figures of this row.
    """

    row: Row
    runs: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def figure(self, name: str, contender: str) -> float | None:
        """Return the median of a figure, ``None`` where a contender has none or has failed."""
        if contender in self.failures:
            return None
        key, pick = ("kept", min) if name == "least_kept" else (name, median)
        found = [run[key] for run in self.runs.get(contender, []) if key in run]
        return pick(found) if found else None


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Limit that memory sets to one stream of a shape.

    Attributes:
        token_bytes: Bytes of stored weights that a token must read.
        bytes_per_second: Bytes that this machine reads a second, from a block of that size.
    """

    token_bytes: int
    bytes_per_second: float

    @property
    def rate(self) -> float:
        """Most tokens a second that memory allows."""
        return self.bytes_per_second / self.token_bytes


def token_bytes(shape: ModelShape, dtype: str, bits: str | None = None) -> int:
    """Return the bytes of weights that one token of one stream must read.

    That is every weight but the embedding table, of which a token reads a row; a head that is the
    table counts.

    Args:
        shape: The model.
        dtype: Type of the weights.
        bits: Format of packed matrices; the head takes 8 bits then.
    """
    table = shape.vocab * shape.hidden
    layers = shape.num_active - table * (1 if shape.tied else 2)
    if bits is None:
        return (layers + table) * ITEM_BYTES[dtype]
    return int(layers * PACKED_BYTES[bits] + table * PACKED_BYTES["int8"])


def cache_bytes(shape: ModelShape, dtype: str, rows: Sequence[Row]) -> int:
    """Return the memory that each contender gets for keys and values of these rows."""
    token = 2 * shape.layers * shape.kv_heads * shape.head_dim * ITEM_BYTES[dtype]
    tokens = max(row.tokens for row in rows)
    return max(LEAST_CACHE_BYTES, int(CACHE_SLACK * token * tokens))


def made_checkpoint(folder: Path, name: str, stored: str) -> Checkpoint:
    """Make a checkpoint, unless the folder has it from an earlier time."""
    shape = replace(SHAPES[name], context=CONTEXT)
    mark = zlib.crc32(f"{shape}".encode())
    target = folder / f"{name}-{stored}-{mark:08x}"
    if not (target / "model").exists():
        half = target / "part"
        half.mkdir(parents=True, exist_ok=True)
        write_checkpoint(half, shape, stored)
        half.rename(target / "model")
    (target / "work").mkdir(exist_ok=True)
    return Checkpoint.at(target / "model")


@dataclass(slots=True)
class Results:
    """Results of all rows.

    Attributes:
        cells: One for each row.
        limits: Limit of each shape, and by ``shape bits`` for packed weights.
        versions: Versions that each contender reported.
    """

    cells: list[Cell] = field(default_factory=list)
    limits: dict[str, MemoryLimit] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)


def measure(
    bench: PeersBench,
    progress: Callable[[str], None] = lambda text: None,
    keep: Callable[[Results], None] = lambda results: None,
) -> Results:
    """Measure all rows.

    Args:
        bench: Settings to measure with.
        progress: Called with a few words about what comes next.
        keep: Called with the results so far, after each shape and data type.
    """
    results = Results([Cell(row) for row in bench.rows])
    for name in dict.fromkeys(row.shape for row in bench.rows):
        progress(f"{name}: reading memory")
        for bits in dict.fromkeys(CONTENDERS[one].bits for one in bench.pythons):
            nbytes = token_bytes(SHAPES[name], bench.stored, bits)
            results.limits[f"{name} {bits}" if bits else name] = MemoryLimit(
                nbytes, read_bandwidth(nbytes, bench.threads)
            )
        found = made_checkpoint(bench.folder, name, bench.stored)
        for dtype in dict.fromkeys(row.dtype for row in bench.rows if row.shape == name):
            cells = [
                cell for cell in results.cells if (cell.row.shape, cell.row.dtype) == (name, dtype)
            ]
            _Session(bench, found, cells, progress).run(results)
            keep(results)
    return results


class _Session:
    """Rounds of one shape and data type."""

    def __init__(
        self,
        bench: PeersBench,
        found: Checkpoint,
        cells: Sequence[Cell],
        progress: Callable[[str], None],
    ) -> None:
        self._bench = bench
        self._found = found
        self._cells = cells
        self._progress = progress

    def run(self, results: Results) -> None:
        """Run every row with every contender before the next row."""
        with self._processes() as contenders:
            for number in range(self._bench.rounds):
                for cell in self._cells:
                    row = cell.row
                    self._progress(
                        f"round {number + 1} of {self._bench.rounds}: {row.section} {row.label}"
                    )
                    for name in self._order(number):
                        self._take_turn(contenders, cell, name, number)
            for name, versions in contenders.versions.items():
                results.versions[name] = versions

    def _order(self, number: int) -> list[str]:
        """Begin each round with another contender, so that none always follows the same one."""
        names = list(self._bench.pythons)
        first = number % len(names)
        return names[first:] + names[:first]

    def _take_turn(self, contenders: PeerProcesses, cell: Cell, name: str, number: int) -> None:
        """Make one run of one contender, unless it has failed here before."""
        row = cell.row
        seed = zlib.crc32(f"{row} {number}".encode())
        requests = row.requests(self._found, seed)
        if name in cell.failures or not CONTENDERS[name].takes(requests):
            return
        is_out = name in contenders.out
        try:
            contenders.load(name)
            cell.runs.setdefault(name, []).append(self._run(contenders, row, name, requests, seed))
        except (BenchError, ShortAnswerError) as error:
            cell.failures[name] = str(error)
            if not is_out:
                self._progress(f"{CONTENDERS[name].title} failed: {error}")

    def _run(
        self, contenders: PeerProcesses, row: Row, name: str, requests: list[Request], seed: int
    ) -> dict[str, float]:
        """Return the figures of one run."""
        if row.is_turn:
            answers = contenders.run(name, requests)
            figures(requests, answers)
            requests = [row.next_turn(self._found, requests[0], answers["tokens"][0], seed + 1)]
        watch = OtherProcesses(contenders.pid(name))
        got = figures(requests, contenders.run(name, requests))
        others = watch.cores()
        if others is not None:
            got["others"] = others
        if row.is_beside_busy:
            again = row.requests(self._found, seed + 1)
            with busy_process():
                busy = figures(again, contenders.run(name, again))
            got["quiet"], got["busy"] = got["rate"], busy["rate"]
            got["kept"] = 100 * busy["rate"] / got["rate"]
        return got

    def _processes(self) -> PeerProcesses:
        bench, rows = self._bench, [cell.row for cell in self._cells]
        shape, dtype = SHAPES[rows[0].shape], rows[0].dtype
        streams = max(row.streams for row in rows)
        folder = self._found.folder
        task: Task = {
            "folder": str(folder),
            "dtype": dtype,
            "threads": bench.threads,
            "streams": streams,
            "length": 64 * math.ceil((max(row.length for row in rows) + 1) / 64),
            "cache_bytes": cache_bytes(shape, dtype, rows),
            "work": str(folder.parent / "work"),
        }
        prompts = self._found.prompts(streams, (16, 64), seed=0)
        many: list[Request] = [
            {"prompt": prompt, "new_tokens": WARM_UP_TOKENS, "arrival": 0.0} for prompt in prompts
        ]
        warm_up = [many, many[:1]] if streams > 1 else [many]
        weight_bytes = shape.num_parameters * ITEM_BYTES[dtype]
        return PeerProcesses(
            bench.pythons, task, weight_bytes, bench.patience, warm_up, self._progress
        )


def as_data(results: Results) -> dict[str, Any]:
    """Return all results for JSON."""
    return {
        "limits": {name: asdict(one) for name, one in results.limits.items()},
        "told": results.versions,
        "cells": [
            {**asdict(cell.row), "runs": cell.runs, "failures": cell.failures}
            for cell in results.cells
        ],
    }


def from_data(data: Mapping[str, Any]) -> Results:
    """Read the results that :func:`as_data` returned."""
    names = [one.name for one in fields(Row)]
    cells = [
        Cell(Row(**{name: one[name] for name in names}), one["runs"], one["failures"])
        for one in data["cells"]
    ]
    limits = {name: MemoryLimit(**one) for name, one in data["limits"].items()}
    return Results(cells, limits, data["told"])


def read_results(file: Path) -> tuple[dict[str, Any], Results]:
    """Read the file of an earlier run; return its whole content, and the results."""
    data = json.loads(file.read_text())
    return data, from_data(data["results"])
