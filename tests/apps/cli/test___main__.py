from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "asyncgen_apps.cli", "nonsense"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parents[3], timeout=120
    )
    assert done.returncode == 2
    assert "nonsense" in done.stderr
