from __future__ import annotations

import pytest

from asyncgen import ModelLoadError
from asyncgen_apps.cli import source
from tests.apps.cli.doubles import Answer, ScriptedLLM, run_cli


@pytest.mark.usefixtures("llm")
def test_a_prompt_is_answered_on_stdout_with_statistics_on_stderr() -> None:
    result = run_cli("chat", "Hi")
    assert result.exit_code == 0
    assert result.stdout == "An answer.\n"
    assert "tokens/s" in result.stderr


@pytest.mark.usefixtures("llm")
def test_statistics_can_be_left_out() -> None:
    assert run_cli("chat", "Hi", "--no-stats").stderr == ""


@pytest.mark.parametrize("arguments", [["chat"], ["chat", "-"]])
def test_a_pipe_is_a_prompt(llm: ScriptedLLM, arguments: list[str]) -> None:
    assert run_cli(*arguments, stdin="two\nlines\n").exit_code == 0
    assert llm.asked[0][0] == [{"role": "user", "content": "two\nlines"}]


def test_the_model_is_opened_as_asked(llm: ScriptedLLM) -> None:
    options = "--model m --device cpu --dtype bfloat16 --threads 2 --revision r --token t".split()
    assert run_cli("chat", "Hi", *options).exit_code == 0
    assert llm.source == source.Source("m", "cpu", "bfloat16", 2, "r", "t")
    assert not llm.is_open


def test_an_error_of_the_library_is_one_line(llm: ScriptedLLM) -> None:
    llm.answers = [Answer(("Half",), ModelLoadError("weights are missing: fetch them again"))]
    result = run_cli("chat", "Hi")
    assert result.exit_code == 1
    assert result.stdout == "Half\n"
    assert result.stderr == "error: weights are missing: fetch them again\n"


def test_debug_shows_where_an_error_comes_from(llm: ScriptedLLM) -> None:
    llm.answers = [Answer((), ZeroDivisionError("oops"))]
    assert isinstance(run_cli("chat", "Hi", "--debug").exception, ZeroDivisionError)


def test_an_interrupted_answer_ends_with_130(llm: ScriptedLLM) -> None:
    llm.answers = [Answer(("Half",), interrupts=1)]
    result = run_cli("chat", "Hi")
    assert result.exit_code == 130
    assert result.stdout == "Half\n"
    assert "ended by cancelled" in result.stderr
