from __future__ import annotations

import json

import pytest

from tests.apps.cli.doubles import ScriptedLLM, run_cli


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
def test_generate_tells_samples_apart_and_can_wait_for_the_end() -> None:
    assert run_cli("generate", "Once", "--no-stream").stdout == "An answer.\n"
    shown = run_cli("generate", "Once", "-n", "2").stdout
    assert shown == "--- 1 of 2\nAn answer.\n--- 2 of 2\nAn answer.\n"


def test_generate_reads_a_pipe_as_it_stands(llm: ScriptedLLM) -> None:
    run_cli("generate", "-", stdin="Once\n")
    assert llm.asked[0][0] == "Once\n"
