"""``asyncgen batch``: a file of requests, answered as a whole however often it is ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from asyncgen import AsyncLLM
from asyncgen_apps.batch.answers import AnswersFile
from asyncgen_apps.batch.run import RunProgress
from asyncgen_apps.cli import source
from asyncgen_apps.cli.app import app
from asyncgen_apps.cli.batch import figures
from tests.doubles.engine import no_thread_left
from tests.doubles.models import PATIENCE, TableModel, byte_tokenizer

__all__ = ["no_thread_left"]

ROOT = Path(__file__).parents[3]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Requests and answers; the model behind the command says "hello"."""

    def open_llm(request: source.Source) -> AsyncLLM:
        model = TableModel(script="hello", prompt_length=1)
        return AsyncLLM(model, tokenizer=byte_tokenizer(), max_running=request.max_running or 8)

    monkeypatch.setattr(source, "open_llm", open_llm)
    return tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"


def call(prompts: Path, answers: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["batch", str(prompts), "--output", str(answers), *options])


def records(answers: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answers.read_text().splitlines()]


def text_of(record: dict[str, Any]) -> str:
    return str(record["response"]["body"]["choices"][0]["text"])


def test_it_needs_no_server() -> None:
    """The modules of `.[apps]` are enough."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    servers = {re.split("[>=;]", one)[0] for one in (*extras["serve"], *extras["websocket"])}
    assert {"fastapi", "uvicorn", "websockets"} <= servers
    missing = dict.fromkeys(servers - {re.split("[>=;]", one)[0] for one in extras["apps"]})
    program = (
        f"import sys; sys.modules.update({missing})\n"
        "from asyncgen_apps.cli.batch import NEEDED\n"
        "from asyncgen_apps.cli.errors import require_installed\n"
        "require_installed(NEEDED, extra='apps')\n"
        "import asyncgen_apps.batch.answers, asyncgen_apps.batch.run\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=PATIENCE)


def test_it_answers_a_file(files: tuple[Path, Path]) -> None:
    prompts, answers = files
    prompts.write_text('"a"\n"b"\n{"prompt": "c", "max_tokens": 3}\n')
    done = call(prompts, answers, "--max-new-tokens", "4")
    assert done.exit_code == 0, done.output
    assert [text_of(one) for one in records(answers)] == ["hell", "hell", "hel"]
    assert "3 of 3 answered" in done.stderr and "tokens/s" in done.stderr and done.stdout == ""


def test_bad_line_gets_an_error_answer_and_exit_code_1(files: tuple[Path, Path]) -> None:
    prompts, answers = files
    prompts.write_text('"a"\nnonsense\n{"prompt": "c", "top_k": -3}\n"d"\n')
    done = call(prompts, answers)
    assert done.exit_code == 1 and "4 of 4 answered · 2 with errors" in done.stderr
    one, two, three, four = records(answers)
    assert text_of(one) == text_of(four) == "hello"
    assert two["error"]["code"] == "invalid_json" and two["response"] is None
    assert three["response"]["status_code"] == 400 and "top_k" in str(three["response"])
    before = answers.read_bytes()
    again = call(prompts, answers)
    assert again.exit_code == 1 and answers.read_bytes() == before, "an error stays one"
    assert call(prompts, answers, "--overwrite").exit_code == 1
    assert [one["custom_id"] for one in records(answers)] == [f"line-{n}" for n in (1, 2, 3, 4)]


def test_mistakes_in_the_call(files: tuple[Path, Path]) -> None:
    prompts, answers = files
    missing = call(prompts, answers)
    assert missing.exit_code == 1 and "No such file" in missing.stderr
    prompts.write_text('"a"\n')
    same = call(prompts, prompts)
    assert same.exit_code == 1 and "choose another" in same.stderr
    assert prompts.read_text() == '"a"\n'
    answers.write_text("my notes")
    foreign = call(prompts, answers)
    assert foreign.exit_code == 1 and "choose another" in foreign.stderr
    assert answers.read_text() == "my notes"
    answers.unlink()
    assert call(prompts, answers).exit_code == 0
    prompts.write_text('"b"\n')
    changed = call(prompts, answers)
    assert changed.exit_code == 1 and "line 1 has changed" in changed.stderr
    assert call(prompts, answers.parent / "no" / "folder").exit_code == 1


def test_figures_estimate_the_remaining_time(tmp_path: Path) -> None:
    with AnswersFile(tmp_path / "a") as answers:
        assert figures(RunProgress(), answers, 100, 0.0) == "0 answered"
        answers.num_answered, answers.num_failed = 1500, 2
        progress = RunProgress(3000, skipped_bytes=400, bytes=100, answered=10, tokens=500)
        assert figures(progress, answers, 1000, 10.0) == (
            "1,500 of 3,000 answered · 2 with errors · 50 tokens/s · 50 s left"
        )


COUNT = 60

PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from asyncgen_apps.cli import main
main()
"""
"""As in a terminal: a shell that runs the tests behind it has the signal ignored."""


def start(prompts: Path, answers: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PROGRAM, "batch", str(prompts), "-o", str(answers)]
    command += ["--max-running", "3", "--threads", "1", *options]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "apps")])
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, stderr=subprocess.PIPE
    )


@pytest.mark.gate
@pytest.mark.parametrize("order", ["--ordered", "--unordered"])
def test_batch_resumes_after_a_kill(tmp_path: Path, order: str) -> None:
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    messages = [{"role": "user", "content": "Tell me a story about a fox."}]
    with prompts.open("w") as file:
        for number in range(COUNT):
            length = 8 + number % 5
            body = {"messages": messages, "max_tokens": length, "temperature": 0, "model": "demo"}
            url = "/v1/chat/completions"
            line = {"custom_id": str(number), "method": "POST", "url": url, "body": body}
            file.write(json.dumps(line) + "\n")

    killed = start(prompts, answers, order)
    until = time.monotonic() + 2 * PATIENCE
    while not (answers.exists() and answers.read_bytes().count(b"\n") >= 2):
        assert killed.poll() is None and time.monotonic() < until, killed.communicate()[1]
        time.sleep(0.001)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    kept = answers.read_bytes()
    assert killed.returncode == -signal.SIGKILL and 2 <= kept.count(b"\n") < COUNT
    assert kept.endswith(b"\n"), "a line is written as a whole"
    answers.write_bytes(kept + kept[:50])  # as if the system had been in the midst of one

    resumed = start(prompts, answers, order)
    assert resumed.communicate(timeout=2 * PATIENCE)[0] is None
    assert resumed.returncode == 0
    assert answers.read_bytes().startswith(kept), "what was written stays"
    found = records(answers)
    names = [int(one["custom_id"]) for one in found]
    assert sorted(names) == list(range(COUNT)), "none is lost or doubled"
    if order == "--ordered":
        assert names == list(range(COUNT))
    told: dict[int, set[str]] = {}
    for name, one in zip(names, found, strict=True):
        body = one["response"]["body"]
        assert body["usage"]["completion_tokens"] <= 8 + name % 5
        told.setdefault(name % 5, set()).add(body["choices"][0]["message"]["content"])
    assert all(len(texts) == 1 for texts in told.values()), "before and after alike"


@pytest.mark.gate
def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    long = {"prompt": "Once", "min_new_tokens": 900, "max_tokens": 900, "ignore_eos": True}
    with prompts.open("w") as file:
        for request in ({"prompt": "Once", "max_tokens": 2}, *(20 * [long])):
            file.write(json.dumps(request) + "\n")
    running = start(prompts, answers)
    until = time.monotonic() + 2 * PATIENCE
    while not (answers.exists() and answers.read_bytes().count(b"\n") >= 1):
        assert running.poll() is None and time.monotonic() < until, running.communicate()[1]
        time.sleep(0.001)
    running.send_signal(signal.SIGINT)
    said = running.communicate(timeout=2 * PATIENCE)[1].decode()
    assert running.returncode == 130 and " of 21 answered" in said
    assert said.endswith("stopped: run the command again to go on behind the last answer\n")
    assert answers.read_bytes().endswith(b"\n")
