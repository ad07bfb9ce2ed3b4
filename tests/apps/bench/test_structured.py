from __future__ import annotations

import io
import random
from typing import TYPE_CHECKING, Any

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from asyncgen_apps.bench.checkpoints import write_checkpoint
from asyncgen_apps.bench.jobs import Job
from asyncgen_apps.bench.settings import PARTS, StructuredBench
from asyncgen_apps.bench.sides.structured import WORST, StructuredStreams
from asyncgen_apps.bench.structured import Pair, StructuredReport
from tests.apps.bench.doubles import fake_workers
from tests.apps.bench.test_checkpoints import TINY

if TYPE_CHECKING:
    from pathlib import Path

BENCH = StructuredBench("5m", None, "float32", PARTS, 8, 4, 0.0, 2, 1)


def report() -> StructuredReport:
    found = StructuredReport(BENCH)
    found.pairs["all", "records"] = [Pair(1.0, 0.5), Pair(1.0, 0.5)]
    found.pairs["beside", "text"] = [Pair(1.0, 2.0), Pair(1.0, 2.0)]
    found.pairs["compiling", "keys"] = [Pair(0.1, 0.2), Pair(0.1, 0.2)]
    found.compiled = 7
    return found


def test_figures_are_shares_of_the_rate_and_times_the_gap() -> None:
    ratios = [report().ratio(part, name).mean for part, name in report().pairs]
    assert ratios == pytest.approx([2.0, 0.5, 2.0])
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(report().table())
    text = console.export_text()
    for shown in ("200.0%", "≥ 90%", "50.0%", "≥ 92%", "2.00 ×", "≤ 3.0 ×", "compiled: 7"):
        assert shown in text
    figure = Figure()
    report().draw(figure)
    assert len(figure.axes) == 3


def test_each_of_a_pair_goes_first_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = fake_workers(
        monkeypatch,
        lambda _, operation, __: (
            {"total": 1.0} if operation == "run" else {"gaps": [0.1, 0.2], "compiled": 3}
        ),
    )
    write_checkpoint(tmp_path, TINY, "float32")
    bench = StructuredBench("5m", tmp_path, "float32", ("all", "compiling"), 8, 4, 0.0, 2, 1)
    found = StructuredReport.of(bench)
    assert [arguments["shape"] for _, done, arguments in calls if done == "run"] == [
        *("records", "free", "text", "free"),
        *("free", "records", "free", "text"),
    ]
    gaps = [arguments for _, done, arguments in calls if done == "gaps"]
    assert {len(one["prompts"]) for one in gaps} == {2}
    assert found.compiled == 3 * len(gaps)
    assert {len(pairs) for pairs in found.pairs.values()} == {2}


def job(prompts: list[list[int]], new_tokens: int) -> Job:
    return Job(prompts, {"max_new_tokens": new_tokens, "do_sample": False})


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_streams_are_measured(tmp_path: Path, anyio_backend: str) -> None:
    write_checkpoint(tmp_path, TINY, "float32")
    side = StructuredStreams()
    prompts = [[400 + number, 401, 402] for number in range(4)]
    try:
        await side.load(str(tmp_path), "float32", streams=4)
        for shape in ("free", "records", "text"):
            assert (await side.run(job(prompts, 20), shape, 0.0)).total > 0
        beside = await side.beside(job(prompts[:2], 8), prompts[2:], "records", 1.0)
        assert beside.total > 0
        gaps: dict[str, Any] = await side.gaps(job(prompts, 900), "keys")
    finally:
        await side.aclose()
    assert gaps["gaps"] and len(gaps["gaps"]) % (4 * 899) == 0 and gaps["compiled"] > 0


@pytest.mark.parametrize("name", WORST)
def test_the_worst_schemas_are_allowed(name: str) -> None:
    from asyncgen.structured.grammar_compiler import compile_grammar
    from asyncgen.structured.output_format import read_output_format
    from tests.doubles.models import byte_tokenizer

    shape = read_output_format({"json_schema": WORST[name](random.Random(5))})
    assert shape is not None
    compile_grammar(shape, byte_tokenizer(), 260)
