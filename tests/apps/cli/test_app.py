from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.apps.cli.doubles import run_cli


@pytest.mark.parametrize(
    "command", [[], ["chat"], ["generate"], ["bench", "stream"], ["bench", "loop"]]
)
def test_help_is_there(command: list[str]) -> None:
    result = run_cli(*command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.stdout


def test_version() -> None:
    assert run_cli("--version").stdout.startswith("asyncgen")


def test_the_command_line_starts_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from asyncgen_apps.cli.app import app\n"
        "heavy = {'torch', 'transformers', 'matplotlib', 'prompt_toolkit', 'tokenizers'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
