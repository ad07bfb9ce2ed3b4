"""Packed weights in the benchmark: who takes part, what they are told, and their table."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen_apps.bench.checkpoints import SHAPES
from asyncgen_apps.bench.peers import rounds
from asyncgen_apps.bench.peers.contenders import CONTENDERS, OURS, packed_contenders
from asyncgen_apps.bench.peers.packed_table import packed_grid
from asyncgen_apps.bench.peers.programs import llamacpp
from asyncgen_apps.bench.peers.report import PeersReport
from asyncgen_apps.bench.peers.rounds import Cell, MemoryLimit, Results, token_bytes
from asyncgen_apps.bench.peers.rows import Row
from asyncgen_apps.bench.peers.tables import best_peer, grids
from tests.apps.bench.peers.stage import use_doubles
from tests.apps.bench.peers.test_rounds import ONE, bench, said
from tests.apps.bench.test_checkpoints import TINY

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = packed_contenders(["int8", "int4"])


def cell(row: Row, values: Mapping[str, float]) -> Cell:
    return Cell(row, {name: [{"rate": value}] for name, value in values.items()})


def results() -> Results:
    values = {
        OURS: 50.0,
        "asyncgen-int8": 80.0,
        "asyncgen-int4": 120.0,
        "llamacpp-q8_0": 64.0,
        "llamacpp-q4_0": 60.0,
        "llamacpp-q4_k_m": 100.0,
        "openvino-int8": 100.0,
    }
    one = cell(Row("one", "135m", "bfloat16", 1), values)
    one.failures["openvino-int4"] = "no room"
    many = cell(Row("streams", "135m", "bfloat16", 32), {OURS: 400.0, "asyncgen-int8": 300.0})
    return Results([one, many], {"135m": MemoryLimit(2, 200.0), "135m int8": MemoryLimit(1, 200.0)})


def test_contenders_of_a_run() -> None:
    assert NAMES[0] == OURS
    assert {CONTENDERS[name].bits for name in NAMES} == {None, "int8", "int4"}
    assert packed_contenders(["int8"]) == [OURS, "asyncgen-int8", "llamacpp-q8_0", "openvino-int8"]
    ours_and_one = [OURS, "asyncgen-int4", "llamacpp-q4_0"]
    assert packed_contenders(["int4"], ["llamacpp-q4_0"]) == ours_and_one
    assert packed_contenders(["int4"], ["llamacpp"]) == [*ours_and_one, "llamacpp-q4_k_m"]


def test_the_table_puts_ours_beside_16_bits_and_beside_each_peer_of_as_many() -> None:
    grid = packed_grid(results(), NAMES)
    assert grid is not None
    eight, four, many, none = grid.rows
    beside = "llama.cpp Q8_0 64.0 (1.25 ×); OpenVINO int8 100.0 (0.80 ×)"
    assert eight[0] == "int8, one stream, 135m, tokens/s"
    assert eight[1:] == ("80.0", "1.60 ×", "–", "40 %", beside, "0.80 ×")
    beside = "llama.cpp Q4_0 60.0 (2.00 ×); llama.cpp Q4_K_M 100.0 (1.20 ×); OpenVINO int4 failed"
    assert four[1:] == ("120.0", "2.40 ×", "1.50 ×", "–", beside, "1.20 ×")
    assert many[:3] == ("int8, 32 streams, 135m, tokens/s", "300.0", "0.75 ×")
    assert none[1:4] == ("–", "–", "–")


def test_packed_peers_are_not_compared_with_ours_in_16_bits() -> None:
    found = results()
    assert best_peer(found.cells[0], "rate") is None
    assert next(grids(found, NAMES)).rows[0][-1] == "–"
    assert packed_grid(found, [OURS, "openvino"]) is None


def test_the_report_shows_it_first() -> None:
    about = {"contenders": NAMES, "missing": [], "rounds": 1, "threads": 2, "stored": "bfloat16"}
    machine = {"cpu": "A Processor", "cores": 2, "kernels": "none", "system": "Linux"}
    text = PeersReport(about, machine, results()).markdown()
    assert text.index("**Packed weights**") < text.index("**One stream")


def test_a_token_reads_less_of_packed_weights_and_the_head_in_eight_bits() -> None:
    small, large = SHAPES["135m"], SHAPES["0.5b"]
    for shape in (small, large):
        whole = token_bytes(shape, "bfloat16")
        assert token_bytes(shape, "bfloat16", "int8") == pytest.approx(whole * 34 / 64, rel=1e-3)
        assert whole * 19 / 64 < token_bytes(shape, "bfloat16", "int4") < whole * 34 / 64
    untied = replace(small, tied=False)
    assert token_bytes(untied, "bfloat16", "int4") == token_bytes(small, "bfloat16", "int4")


def test_program_receives_the_packing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_doubles(tmp_path, monkeypatch)
    monkeypatch.setitem(SHAPES, "tiny", TINY)
    monkeypatch.setattr(rounds, "read_bandwidth", lambda nbytes, threads: 1e9)
    monkeypatch.setitem(
        CONTENDERS, "Other", replace(CONTENDERS["Other"], bits="int8", weights="Q8_0")
    )
    found = rounds.measure(bench(tmp_path, "Good", "Other", rows=(ONE,), rounds=1))
    loads = {name: told for name, what, told in said(tmp_path) if what == "load"}
    assert loads == {"Good": [1, None], "Other": [1, "Q8_0"]}
    assert set(found.limits) == {"tiny", "tiny int8"}


class Quantiser:
    """Stands in for llama.cpp's."""

    LLAMA_FTYPE_MOSTLY_Q4_0 = 2

    def __init__(self, answer: int) -> None:
        self.answer = answer
        self.asked: list[tuple[str, int]] = []

    def llama_model_quantize_default_params(self) -> Any:
        from ctypes import Structure, c_int

        class Options(Structure):
            _fields_ = [("ftype", c_int)]

        return Options()

    def llama_model_quantize(self, source: bytes, target: bytes, options: Any) -> int:
        self.asked.append((source.decode(), options._obj.ftype))
        Path(target.decode()).touch()
        return self.answer


def test_llamacpp_packs_once(tmp_path: Path) -> None:
    quantiser, file = Quantiser(0), tmp_path / "bfloat16.gguf"
    for _ in range(2):
        made = llamacpp.quantised(quantiser, file, "Q4_0")
    assert made == tmp_path / "bfloat16-Q4_0.gguf" and made.is_file()
    assert quantiser.asked == [(str(file), 2)]
    made.unlink()
    with pytest.raises(RuntimeError, match="cannot make Q4_0 of bfloat16.gguf"):
        llamacpp.quantised(Quantiser(1), file, "Q4_0")
    assert not made.exists()


def test_asyncgen_contender_receives_the_packing() -> None:
    assert CONTENDERS["asyncgen-int4"].python(Path("nowhere")) == sys.executable
    assert CONTENDERS["asyncgen-int4"].weights == "int4"
