from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from asyncgen_apps.cli import main


def test_the_entry_point_runs_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["asyncgen", "--version"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("asyncgen")


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_there_is_a_line_with_the_remedy(missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None; from asyncgen_apps.cli import main; main()"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parents[3], timeout=120
    )
    assert done.returncode == 1
    assert done.stderr == f'error: {missing} is not installed: pip install "asyncgen[apps]"\n'
