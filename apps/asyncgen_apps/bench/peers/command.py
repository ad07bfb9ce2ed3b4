"""``asyncgen bench peers``: its options and their checks."""

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asyncgen_apps.bench.options import Json, Plot, bench_errors, check_plot, say
from asyncgen_apps.cli.common_options import Debug, Threads
from asyncgen_apps.cli.errors import UserError
from asyncgen_apps.cli.process import prepare_process

if TYPE_CHECKING:
    from asyncgen_apps.bench.peers.rounds import PeersBench


class Precision(StrEnum):
    """Data types that all peers compute in on a CPU."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class PackedFormat(StrEnum):
    """Formats of packed weights."""

    INT8 = "int8"
    INT4 = "int4"


PACKED_ROWS = ("one", "streams")
PACKED_SHAPES = ("135m", "0.5b")
PACKED_STREAMS = 32


class PeerShape(StrEnum):
    """Checkpoints that are made on the spot."""

    SMALL = "5m"
    MEDIUM = "135m"
    LARGE = "0.5b"
    EXPERTS = "moe"


def peers(
    peer: Annotated[
        list[str] | None, typer.Option("--peer", help="Repeatable; all that are installed.")
    ] = None,
    row: Annotated[
        list[str] | None, typer.Option("--row", help="Kind of row; repeatable; all without it.")
    ] = None,
    shape: Annotated[
        list[PeerShape] | None,
        typer.Option(help="Repeatable; without it 135m, and all for one stream."),
    ] = None,
    dtype: Annotated[
        list[Precision] | None,
        typer.Option(help="Repeatable; both without it, and bfloat16 with --quantize."),
    ] = None,
    quantize: Annotated[
        list[PackedFormat] | None,
        typer.Option(
            help="Compare weights packed to this, ours and peers', beside ours in 16 bits: "
            "one stream and 32, 135m and 0.5b where nothing else is said. Repeatable."
        ),
    ] = None,
    stored: Annotated[
        Precision, typer.Option(help="Data type of the weights on disk.")
    ] = Precision.BFLOAT16,
    size: Annotated[
        list[str] | None,
        typer.Option(help="Sizes of a kind of row, as in streams=1,32; repeatable."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each; medians are shown.")] = 3,
    threads: Threads = None,
    patience: Annotated[
        float, typer.Option(min=1.0, help="Seconds that one answer may take.")
    ] = 900.0,
    environments: Annotated[
        Path | None, typer.Option(help="Where .ci/peers made them; default $ASYNCGEN_PEERS.")
    ] = None,
    earlier: Annotated[
        Path | None,
        typer.Option("--from", help="Show this JSON file of an earlier run, measure nothing."),
    ] = None,
    json: Json = None,
    markdown: Annotated[Path | None, typer.Option(help="Write all tables to this file.")] = None,
    summary: Annotated[
        Path | None, typer.Option(help="Put the short table between the marks of this file.")
    ] = None,
    plot: Plot = None,
    debug: Debug = False,
) -> None:
    """Measure speed beside llama.cpp, OpenVINO, vLLM, transformers and CTranslate2, interleaved.

    Each peer runs in its environment, which .ci/peers makes. While one answers, the others are
    stopped. Without options it takes hours; one shape, kind of row and peer takes a minute.

    Example: asyncgen bench peers --peer llamacpp --row one --shape 5m
    """
    with bench_errors(debug):
        check_plot(plot)
        from asyncgen_apps.bench.peers.contenders import environments_folder
        from asyncgen_apps.bench.peers.report import PeersReport, put_between_marks
        from asyncgen_apps.bench.report import emit, write_json

        if summary is not None and quantize:
            raise UserError("--summary beside --quantize: that table has no packed weights")
        if summary is not None:
            try:
                put_between_marks(summary.read_text(encoding="utf-8"), "")
            except (OSError, ValueError) as error:
                raise UserError(f"--summary {summary}: {error}") from error
        if earlier is not None:
            if json is not None:
                raise UserError("--json beside --from: the file is there already")
            try:
                report = PeersReport.read(earlier)
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise UserError(f"--from {earlier}: not the JSON of this benchmark") from error
        else:
            report = PeersReport.of(
                _chosen(
                    peers=peer or [],
                    sections=row or [],
                    shapes=[one.value for one in shape or []],
                    dtypes=[one.value for one in dtype or []],
                    packings=[one.value for one in quantize or []],
                    sizes=size or [],
                    rounds=rounds,
                    threads=threads,
                    stored=stored.value,
                    patience=patience,
                    folder=environments or environments_folder(),
                ),
                say,
                lambda found: None if json is None else write_json(found, json),
            )
        emit(report, json, plot)
        if markdown is not None:
            markdown.write_text(report.markdown(), encoding="utf-8")
        if summary is not None:
            page = summary.read_text(encoding="utf-8")
            summary.write_text(put_between_marks(page, report.summary()), encoding="utf-8")


def _chosen(
    *,
    peers: list[str],
    sections: list[str],
    shapes: list[str],
    dtypes: list[str],
    packings: list[str],
    sizes: list[str],
    rounds: int,
    threads: int | None,
    stored: str,
    patience: float,
    folder: Path,
) -> "PeersBench":
    """Check the options before any work, and return the settings."""
    from asyncgen_apps.bench.peers.contenders import installed
    from asyncgen_apps.bench.peers.rows import SECTIONS, rows

    asked = _contenders(peers, packings)
    _known("--row", sections, SECTIONS)
    chosen_sizes = dict(_sizes(text) for text in sizes)
    wanted = sections or list(PACKED_ROWS if packings else SECTIONS)
    for section in chosen_sizes:
        _known("--size", [section], wanted)
    if packings:
        dtypes, shapes = dtypes or [Precision.BFLOAT16.value], shapes or list(PACKED_SHAPES)
        chosen_sizes.setdefault("streams", (PACKED_STREAMS,))
    pythons, missing = installed(asked, folder)
    if peers and missing:
        raise UserError(f"--peer {missing[0]}: not installed in {folder}: run .ci/peers")
    count = prepare_process(threads)
    # Loads torch, which reads what was just prepared.
    from asyncgen_apps.bench.peers.rounds import CONTEXT, PeersBench

    measured = tuple(rows(wanted, shapes, dtypes or [one.value for one in Precision], chosen_sizes))
    for row in measured:
        if row.length > CONTEXT:
            raise UserError(f"--size {row.section}={row.size}: texts have at most {CONTEXT} tokens")
    return PeersBench(
        pythons=pythons,
        missing=tuple(missing),
        rows=measured,
        rounds=rounds,
        threads=count,
        stored=stored,
        patience=patience,
        folder=folder / "checkpoints",
    )


def _contenders(peers: list[str], packings: list[str]) -> list[str]:
    """Return the contenders; those with packed weights also go by their environment's name."""
    from asyncgen_apps.bench.peers.contenders import CONTENDERS, DEFAULT, OURS, packed_contenders

    if not packings:
        _known("--peer", peers, CONTENDERS)
        return [OURS, *(name for name in peers if name != OURS)] if peers else list(DEFAULT)
    there = packed_contenders(packings)
    homes = [home for name in there if (home := CONTENDERS[name].home) is not None]
    _known("--peer", peers, dict.fromkeys([*homes, *there]))
    return packed_contenders(packings, peers)


def _sizes(text: str) -> tuple[str, tuple[int, ...]]:
    """Read ``streams=1,32``."""
    section, _, listed = text.partition("=")
    sizes = listed.split(",")
    if not all(one.isdecimal() and int(one) > 0 for one in sizes):
        raise UserError(f"--size {text}: must be a kind of row and numbers, as in streams=1,32")
    return section, tuple(int(one) for one in sizes)


def _known(option: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Check that all names are known.

    Raises:
        UserError: One is not.
    """
    for name in names:
        if name not in known:
            raise UserError(f"{option} {name}: must be one of {', '.join(known)}")
