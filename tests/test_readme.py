"""What the README shows runs, and what it says of the project is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_there_are_examples() -> None:
    assert len(PYTHON) >= 4


@pytest.mark.parametrize("code", PYTHON, ids=lambda code: code.strip().splitlines()[-1][:40])
def test_example_runs(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert len(capsys.readouterr().out) > 40


def test_the_gate_runs_the_documented_commands() -> None:
    commands = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    tests = next(command for command in commands if "pytest" in command)
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for part in ("torch==2.13.0", '-e ".[test]"'):
        assert part in tests
        assert part in gate
