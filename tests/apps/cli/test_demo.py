"""The commands on the bundled model, as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.apps.cli.doubles import run_cli

ROOT = Path(__file__).parents[3]


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
SLOW = "tests.apps.cli.pacing"
"""The command with answers of many seconds, which do not end before somebody acts."""


def test_chat_prints_a_story_and_its_figures() -> None:
    options = ["chat", "Tell me a story about a fox.", "--greedy", "--max-new-tokens", "24"]
    done = subprocess.run(
        [sys.executable, "-m", "asyncgen_apps.cli", *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=ENVIRONMENT,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 8 and done.stdout.endswith("\n")
    assert done.stderr.startswith("24 tokens") and "tokens/s" in done.stderr
    assert done.stderr.count("\n") == 1


def test_generate_writes_json_that_a_seed_repeats() -> None:
    options = "generate - --json --seed 3 --temperature 1 --max-new-tokens 8".split()
    first, second = (json.loads(run_cli(*options, stdin="Once upon").stdout) for _ in range(2))
    assert first["token_ids"] == second["token_ids"]
    assert len(first["token_ids"]) == first["usage"]["completion_tokens"] == 8
    assert first["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["chat", "Hi", "--model", "/no/such/folder"], "/no/such/folder"),
        (["chat", "Hi", "--max-new-tokens", "100000"], "max_new_tokens"),
    ],
)
def test_an_error_is_one_line(arguments: list[str], says: str) -> None:
    done = run_cli(*arguments)
    assert done.exit_code == 1 and done.stdout == ""
    assert done.stderr.startswith("error: ") and says in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.gate
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_ctrl_c_stops_an_answer_and_keeps_its_text() -> None:
    options = ["chat", "Tell me a story about a fox."]
    with subprocess.Popen(
        [sys.executable, "-m", SLOW, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=ENVIRONMENT,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        first = process.stdout.read(4)
        process.send_signal(signal.SIGINT)
        rest, errors = process.stdout.read(), process.stderr.read()
        assert process.wait(timeout=60) == 130
    assert first and rest.endswith(b"\n")
    assert b"stopped" in errors and b"Traceback" not in errors


@pytest.mark.gate
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX pipes")
def test_a_reader_that_leaves_ends_the_command_quietly() -> None:
    options = ["chat", "Tell me a story about a fox."]
    with subprocess.Popen(
        [sys.executable, "-m", SLOW, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=ENVIRONMENT,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr.read() == b""
