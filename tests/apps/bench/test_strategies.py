from __future__ import annotations

import inspect
import io
from typing import TYPE_CHECKING, Any

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from asyncgen import GenerationConfig, GenerationMixin
from asyncgen_apps.bench.cases import CASES, GREEDY, GROUNDED_GREEDY
from asyncgen_apps.bench.checkpoints import SHAPES, write_checkpoint
from asyncgen_apps.bench.jobs import Run
from asyncgen_apps.bench.settings import StrategiesBench
from asyncgen_apps.bench.strategies import Comparison, StrategiesReport
from asyncgen_apps.bench.workers import BenchError, EndedError
from tests.apps.bench.doubles import Calls, fake_workers
from tests.apps.bench.test_checkpoints import TINY

if TYPE_CHECKING:
    from pathlib import Path


BENCH = StrategiesBench("5m", None, ("float32",), (), 100, 32, 3, 1)
CASE = {case.name: case for case in CASES}


def answer(total: float, others: float | None = None) -> Run:
    return Run(total, token_ids=[0] * 100, others=others)


def comparison(name: str = "sampling", dtype: str = "float32") -> Comparison:
    runs = {
        "asyncgen": [answer(1.0), answer(2.0), answer(4.0)],
        "transformers": [answer(2.0), answer(5.0), answer(12.0)],
    }
    if not CASE[name].theirs:
        del runs["transformers"]
    greedy = [answer(0.5), answer(1.0), answer(2.0)]
    return Comparison("5m", dtype, CASE[name], runs, greedy, same=True)


def test_figures_are_medians_of_paired_runs() -> None:
    one = comparison()
    assert one.rate("asyncgen") == pytest.approx(50)
    assert one.rate("transformers") == pytest.approx(20)
    assert one.ratio == pytest.approx(2.5)
    assert one.gain == pytest.approx(0.5)
    assert one.data()["ratio_to_greedy"] == one.gain


def test_without_a_side_there_is_no_ratio() -> None:
    one = comparison("dola")
    assert one.ratio is None and one.rate("transformers") is None
    assert one.gain == pytest.approx(0.5)


def test_table_shows_figures_and_skipped_strategies() -> None:
    skipped = Comparison("5m", "float32", CASE["beam search"], note="not there")
    report = StrategiesReport(BENCH, [comparison(), comparison("dola"), skipped])
    console = Console(width=130, record=True, file=io.StringIO())
    console.print(report.table())
    text = console.export_text()
    for shown in ("50.0", "20.0", "2.50 ×", "0.50 ×", "yes", "none", "skipped", "1 thread,"):
        assert shown in text
    assert "beam search, float32: not there" in text


def test_caption_reports_runs_on_a_busy_machine() -> None:
    one = comparison()
    one.runs["asyncgen"][1] = answer(1.0, others=0.9)
    caption = str(StrategiesReport(BENCH, [one]).table().caption)
    assert "1 of 6 runs shared the cores with other processes" in caption


def test_the_chart_has_a_bar_for_each_strategy_and_type() -> None:
    figure = Figure()
    skipped = Comparison("5m", "float32", CASE["beam search"], note="not there")
    rows = [comparison(), comparison("dola"), comparison(dtype="bfloat16"), skipped]
    StrategiesReport(BENCH, rows).draw(figure)
    (axes,) = figure.axes
    assert len(axes.patches) == 3
    assert [label.get_text() for label in axes.get_yticklabels()] == ["sampling", "dola *"]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (("sampling",), [GREEDY, CASE["sampling"]]),
        (("prompt lookup, grounded",), [GROUNDED_GREEDY, CASE["prompt lookup, grounded"]]),
        (("greedy",), [GREEDY]),
        ((), list(CASES)),
    ],
)
def test_greedy_decoding_is_always_measured(asked: tuple[str, ...], found: list[Any]) -> None:
    bench = StrategiesBench("5m", None, ("float32",), asked, 100, 32, 3, 1)
    assert list(bench.cases) == found


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Calls of fake workers: one side does not know beams, and none contrasts layers."""
    monkeypatch.setitem(SHAPES, "5m", TINY)

    def answer(side: str, operation: str, arguments: dict[str, Any]) -> dict[str, object]:
        asked = arguments.get("options", {})
        if "num_beams" in asked and side == "AsyncgenCaller":
            raise BenchError("AsyncgenCaller.run: not there")
        if "assistant_early_exit" in asked and side == "TransformersCaller":
            raise BenchError("TransformersCaller.run: no such thing")
        if "dola_layers" in asked:
            raise EndedError("AsyncgenCaller.run: the process ended")
        return {"total": 1.0, "token_ids": [1, 2, 3]}

    return fake_workers(monkeypatch, answer)


def bench(*names: str) -> StrategiesBench:
    return StrategiesBench("5m", None, ("float32",), names, 4, 8, 2, 1)


def test_runs_are_interleaved_and_prompts_shared(
    calls: Calls,
) -> None:
    told: list[str] = []
    report = StrategiesReport.of(bench("assisted"), told.append)
    runs = [call for call in calls if call[1] == "run"]
    assert [side for side, _, _ in runs] == ["AsyncgenCaller", "TransformersCaller"] * 6
    prompts = [arguments["prompts"][0] for _, _, arguments in runs]
    assert prompts[::2] == prompts[1::2] and prompts[2] != prompts[4]
    assert [arguments["draft"] for _, _, arguments in runs] == [None] * 6 + ["draft"] * 6
    assert [one.case.name for one in report.comparisons] == ["greedy", "assisted"]
    assert all(one.same and one.ratio == one.gain == 1 for one in report.comparisons)
    loads = [arguments for _, done, arguments in calls if done == "load"]
    assert loads[0] == loads[1] and loads[0]["draft"] and loads[0]["foreign"]
    assert told[-1] == "float32: assisted"


def test_unsupported_strategy_is_skipped_with_reason(
    calls: Calls,
) -> None:
    report = StrategiesReport.of(bench("beam search", "early exit"))
    _, beams, early = report.comparisons
    assert beams.runs == {} and beams.note == "AsyncgenCaller.run: not there"
    assert list(early.runs) == ["asyncgen"] and early.ratio is None and early.gain == 1
    assert early.note == "TransformersCaller.run: no such thing"


def test_a_side_that_is_gone_ends_the_benchmark(
    calls: Calls,
) -> None:
    with pytest.raises(BenchError, match="the process ended"):
        StrategiesReport.of(bench("dola"))


def test_grounded_prompts_are_for_the_bundled_model(
    calls: Calls,
) -> None:
    report = StrategiesReport.of(bench("prompt lookup, grounded"))
    assert [one.model for one in report.comparisons] == ["demo", "demo"]
    runs = [arguments for _, done, arguments in calls if done == "run"]
    # The words are asked for, so there is nothing to keep from ending.
    assert all("min_new_tokens" not in one["options"] for one in runs)
    assert len({tuple(one["prompts"][0]) for one in runs}) == 3


def test_local_model_without_draft_skips_assisted_decoding(calls: Calls, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY, "float32")
    mine = StrategiesBench("5m", tmp_path, ("float32",), ("assisted",), 4, 8, 1, 1)
    _, assisted = StrategiesReport.of(mine).comparisons
    assert assisted.runs == {} and "needs a small model that drafts" in str(assisted.note)


@pytest.mark.soak
def test_both_libraries_give_the_same_tokens_in_processes_of_their_own() -> None:
    pytest.importorskip("transformers")
    names = ("sampling", "assisted", "early exit", "prompt lookup", "prompt lookup, grounded")
    report = StrategiesReport.of(StrategiesBench("5m", None, ("float32",), names, 8, 8, 1, 1))
    for one in report.comparisons:
        assert one.same and one.ratio and one.gain, one.case.name


def test_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)


def test_parameters_are_those_of_generate() -> None:
    known = {*vars(GenerationConfig()), *inspect.signature(GenerationMixin.generate).parameters}
    for case in CASES:
        assert set(case.parameters) <= known, case.name


def test_greedy_decoding_is_among_them_plain_and_grounded() -> None:
    assert GREEDY in CASES and GROUNDED_GREEDY in CASES
    assert not GREEDY.parameters and not GROUNDED_GREEDY.parameters
    assert GROUNDED_GREEDY.is_grounded and not GREEDY.is_grounded
