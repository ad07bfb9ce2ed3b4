from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen_apps.bench.checkpoints import SHAPES
from asyncgen_apps.bench.peers import rounds
from asyncgen_apps.bench.peers.contenders import OURS
from asyncgen_apps.bench.peers.rounds import (
    LEAST_CACHE_BYTES,
    Cell,
    MemoryLimit,
    PeersBench,
    as_data,
    cache_bytes,
    from_data,
    made_checkpoint,
    measure,
    token_bytes,
)
from asyncgen_apps.bench.peers.rows import Row
from asyncgen_apps.bench.shape import ModelShape
from tests.apps.bench.peers.stage import use_doubles
from tests.apps.bench.test_checkpoints import TINY

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape that is made at once, and a memory that nobody measures."""
    monkeypatch.setitem(SHAPES, "tiny", TINY)
    monkeypatch.setattr(rounds, "read_bandwidth", lambda nbytes, threads: 1e9)


def bench(folder: Path, *names: str, rows: tuple[Row, ...], **changes: Any) -> PeersBench:
    made = PeersBench(
        pythons=dict.fromkeys(names, sys.executable),
        missing=(),
        rows=rows,
        rounds=3,
        threads=1,
        stored="bfloat16",
        patience=60.0,
        folder=folder / "checkpoints",
    )
    return replace(made, **changes)


ONE = Row("one", "tiny", "float32", 1)


def said(folder: Path) -> list[list[Any]]:
    """Notes of the doubles."""
    (log,) = folder.glob("checkpoints/*/work/log")
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_contenders_take_turns_and_each_round_has_new_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_doubles(tmp_path, monkeypatch)
    told: list[str] = []
    kept: list[int] = []
    results = measure(
        bench(tmp_path, "Good", "Other", rows=(ONE, Row("streams", "tiny", "float32", 2))),
        told.append,
        lambda found: kept.append(len(found.cells)),
    )
    runs = [(name, value) for name, what, value in said(tmp_path) if what == "run"]
    # Each loads when its first turn comes, and warms up with the largest batch and with one.
    measured = [one for one in runs[2:] if len(one[1]) > 2 or len(one[1][0]) == 32]
    order = [name for name, prompts in measured if len(prompts) == 1 and len(prompts[0]) == 32]
    assert order == ["Good", "Other", "Other", "Good", "Good", "Other"]
    prompts = [value for _, value in measured if len(value) == 1 and len(value[0]) == 32]
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3] != prompts[4] == prompts[5]
    one, two = results.cells
    assert [run["rate"] for run in one.runs["Good"]] == pytest.approx([100, 100, 100])
    assert two.figure("rate", "Other") == pytest.approx(200)
    assert results.versions == {"Good": {"version": "1.0"}, "Other": {"version": "1.0"}}
    assert results.limits == {"tiny": MemoryLimit(token_bytes(TINY, "bfloat16"), 1e9)}
    assert kept == [2]
    assert "round 3 of 3: streams tiny float32, 2" in told


def test_a_failed_contender_is_reported_and_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_doubles(tmp_path, monkeypatch)
    names = ("Good", "Short", "Unloadable", "Dying")
    told: list[str] = []
    rows = (ONE, Row("turn", "tiny", "float32", 40))
    results = measure(bench(tmp_path, *names, rows=rows, rounds=2), told.append)
    for cell in results.cells:
        assert cell.figure("first_p50", "Good") == pytest.approx(10)
        assert cell.failures.keys() == {"Short", "Unloadable", "Dying"}
        assert cell.figure("first_p50", "Short") is None
        assert "tokens at" in cell.failures["Short"]
        assert cell.failures["Unloadable"] == "Unloadable.load: MemoryError: too large"
        assert "the process ended: illegal instruction" in cell.failures["Dying"]
    failed = [line for line in told if line.startswith("Unloadable failed")]
    assert len(failed) == 1
    assert len(results.cells[0].runs["Good"]) == 2
    # The first turn is not measured, and the second goes on with its answer.
    turns = [value[0] for name, what, value in said(tmp_path) if (name, what) == ("Good", "run")]
    after = next(one for one in turns if len(one) == 40 + 32 + 32)
    assert after[:40] in turns and after[40:72] == [7] * 32


def test_busy_process_runs_during_the_second_run_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_doubles(tmp_path, monkeypatch)
    rows = (Row("neighbour", "tiny", "float32", 2),)
    (cell,) = measure(bench(tmp_path, "Good", rows=rows, rounds=1)).cells
    (run,) = cell.runs["Good"]
    assert run["quiet"] == run["busy"] == pytest.approx(200)
    assert run["kept"] == pytest.approx(100)
    prompts = [value for _, what, value in said(tmp_path) if what == "run"][-2:]
    assert prompts[0] != prompts[1]


def test_figures_are_medians_over_runs() -> None:
    runs = [{"rate": 1.0, "kept": 50.0}, {"rate": 9.0, "kept": 20.0}, {"rate": 2.0, "kept": 90.0}]
    cell = Cell(ONE, {"Good": runs})
    assert cell.figure("rate", "Good") == 2.0
    assert cell.figure("kept", "Good") == 50.0
    assert cell.figure("least_kept", "Good") == 20.0
    assert cell.figure("busy", "Good") is None
    assert cell.figure("rate", "nobody") is None
    cell.failures["Good"] = "in the last round"
    assert cell.figure("rate", "Good") is None


def test_bytes_of_a_token_are_all_weights_but_a_table_that_is_no_head() -> None:
    tied = token_bytes(TINY, "float32")
    assert tied == 4 * TINY.num_parameters
    assert token_bytes(TINY, "bfloat16") == tied // 2
    apart = replace(TINY, tied=False)
    assert apart.num_parameters > TINY.num_parameters
    assert token_bytes(apart, "float32") == tied
    assert MemoryLimit(500, 1e6).rate == 2000


def test_keys_and_values_of_the_largest_row_fit_with_some_to_spare() -> None:
    shape = ModelShape(hidden=64, layers=1000, heads=4, kv_heads=2, ffn=1, vocab=512)
    rows = (Row("streams", "tiny", "float32", 64), Row("first", "tiny", "float32", 16384))
    token = 2 * 1000 * 2 * 16 * 4
    assert cache_bytes(shape, "float32", rows) == 1.25 * token * (16384 + 96)
    arriving = (Row("arrivals", "tiny", "float32", 40),)
    assert cache_bytes(shape, "float32", arriving) == 1.25 * token * 40 * (544 + 136)
    assert cache_bytes(TINY, "bfloat16", rows[:1]) == LEAST_CACHE_BYTES


def test_a_checkpoint_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = made_checkpoint(tmp_path, "tiny", "bfloat16")
    assert json.loads((found.folder / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert (found.folder.parent / "work").is_dir()
    before = (found.folder / "model.safetensors").stat().st_mtime_ns
    assert made_checkpoint(tmp_path, "tiny", "bfloat16") == found
    assert (found.folder / "model.safetensors").stat().st_mtime_ns == before
    assert made_checkpoint(tmp_path, "tiny", "float32").folder != found.folder
    monkeypatch.setitem(SHAPES, "tiny", replace(TINY, layers=1))
    assert made_checkpoint(tmp_path, "tiny", "bfloat16").folder != found.folder


def test_half_a_checkpoint_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(rounds, "write_checkpoint", fail)
        with pytest.raises(OSError, match="no space"):
            made_checkpoint(tmp_path, "tiny", "float32")
    assert made_checkpoint(tmp_path, "tiny", "float32").vocab == TINY.vocab


def test_results_survive_a_file() -> None:
    results = rounds.Results(
        [Cell(ONE, {"vllm": [{"rate": 1.5}]}, {"openvino": "why"})],
        {"tiny": MemoryLimit(10, 1e9)},
        {"vllm": {"version": "1"}},
    )
    assert from_data(json.loads(json.dumps(as_data(results)))) == results


@pytest.mark.gate
@pytest.mark.timeout(600)
def test_we_and_transformers_answer_in_processes_of_our_own(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    rows = (Row("turn", "tiny", "float32", 40), Row("streams", "tiny", "float32", 2))
    names = (OURS, "transformers")
    turn, streams = measure(bench(tmp_path, *names, rows=rows, rounds=1, patience=600.0)).cells
    assert not turn.failures and not streams.failures
    for name in names:
        assert len(turn.runs[name]) == len(streams.runs[name]) == 1
        first, rate = turn.figure("first_p50", name), streams.figure("rate", name)
        assert first is not None and first > 0
        assert rate is not None and rate > 0
