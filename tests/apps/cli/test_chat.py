from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen import ModelLoadError
from asyncgen_apps.cli import source
from tests.apps.cli.doubles import Answer, ScriptedLLM, run_cli

if TYPE_CHECKING:
    from pathlib import Path


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
    assert "stopped" in result.stderr


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the user's last conversation."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "asyncgen" / "last_chat.json"


def _keep(state: Path, model: str = "demo", **settings: object) -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]
    saved = {"format": "asyncgen.chat", "version": 1, "messages": messages, "settings": settings}
    state.parent.mkdir(exist_ok=True)
    state.write_text(json.dumps({**saved, "model": model}))


def _texts(messages: Any) -> list[str]:
    return [message["content"] for message in messages]


def test_question_with_continue_extends_the_last_conversation(
    llm: ScriptedLLM, state: Path
) -> None:
    _keep(state, "some/model", seed=3, top_p=0.5)
    assert run_cli("chat", "c", "--continue", "--seed", "4").exit_code == 0
    assert _texts(llm.asked[0][0]) == ["s", "a", "b", "c"]
    assert llm.asked[0][1] == {"seed": 4, "top_p": 0.5, "separate_reasoning": False}
    assert llm.source == source.Source("some/model")
    assert run_cli("chat", "d", "-c", "--system", "t", "-m", "other", "--no-save").exit_code == 0
    said = ["t", "a", "b", "c", "An answer.", "d"]
    assert _texts(llm.asked[1][0]) == said
    assert llm.source == source.Source("other")
    assert run_cli("chat", "e").exit_code == 0
    kept = json.loads(state.read_text())
    assert _texts(kept["messages"]) == ["s", *said[1:5]]


def test_going_on_with_a_servers_model(llm: ScriptedLLM, state: Path) -> None:
    _keep(state, "wss://host/v1/stream")
    assert run_cli("chat", "c", "--continue").exit_code == 0
    assert llm.source == source.Source(url="wss://host/v1/stream")


@pytest.mark.usefixtures("llm")
@pytest.mark.parametrize("content", [None, "{", '{"format": 3}'])
def test_without_a_conversation_there_is_a_line_that_says_so(
    state: Path, content: str | None
) -> None:
    if content is not None:
        state.parent.mkdir()
        state.write_text(content)
    result = run_cli("chat", "c", "--continue")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert "conversation" in result.stderr or "JSON" in result.stderr
    assert "--debug" not in result.stderr


@pytest.mark.usefixtures("llm")
def test_generate_writes_one_json_object() -> None:
    result = run_cli("generate", "Once", "--json", "-n", "2")
    written = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1 and result.stderr == ""
    assert written["prompt"] == "Once" and written["text"] == "An answer."
    assert written["token_ids"] == [0, 1] and written["finish_reason"] == "stop"
    assert [sample["index"] for sample in written["samples"]] == [0, 1]
    assert written["usage"]["total_tokens"] == 9
    assert written["timing"]["first_token"] == 0.25


@pytest.mark.usefixtures("llm")
def test_one_sample_is_not_written_twice() -> None:
    assert "samples" not in json.loads(run_cli("generate", "Once", "--json").stdout)


def test_generate_asks_for_samples_and_log_probabilities(llm: ScriptedLLM) -> None:
    run_cli("generate", "Once", "--json", "-n", "2", "--logprobs", "--top-logprobs", "3")
    assert llm.asked[0][1] == {"n": 2, "logprobs": True, "top_logprobs": 3}


@pytest.mark.usefixtures("llm")
def test_generate_separates_samples_and_can_print_at_the_end() -> None:
    assert run_cli("generate", "Once", "--no-stream").stdout == "An answer.\n"
    shown = run_cli("generate", "Once", "-n", "2").stdout
    assert shown == "--- 1 of 2\nAn answer.\n--- 2 of 2\nAn answer.\n"


@pytest.mark.parametrize("arguments", [["generate"], ["generate", "-"]])
def test_generate_reads_a_pipe_as_it_stands(llm: ScriptedLLM, arguments: list[str]) -> None:
    assert run_cli(*arguments, stdin="Once\n").exit_code == 0
    assert llm.asked[0][0] == "Once\n"


def test_answers_are_held_to_the_schema_in_a_file(llm: ScriptedLLM, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "object"}', encoding="utf-8")
    assert run_cli("chat", "Hi", "--json-schema", str(file)).exit_code == 0
    assert llm.asked[0][1]["json_schema"] == {"type": "object"}
    for text in ("{", "[]"):
        file.write_text(text, encoding="utf-8")
        refused = run_cli("chat", "Hi", "--json-schema", str(file))
        assert refused.exit_code == 1 and "--json-schema" in refused.stderr
    assert "cannot be read" in run_cli("chat", "Hi", "--json-schema", str(tmp_path)).stderr
