"""The laps of a start add up to the age of the process."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from asyncgen_apps.cli.startup import Startup, process_age

if TYPE_CHECKING:
    from pathlib import Path


def test_age() -> None:
    wanted = time.time() - psutil.Process(os.getpid()).create_time()
    assert process_age() == pytest.approx(wanted, abs=1.5)


def test_where_the_system_is_silent(tmp_path: Path) -> None:
    assert 0 <= process_age(tmp_path / "none") < 1e5
    (tmp_path / "odd").write_text("1 (a b) c")
    assert process_age(tmp_path / "odd") >= 0


def test_laps() -> None:
    startup = Startup()
    startup.lap("import")
    startup.lap("load")
    assert [name for name, _ in startup.laps] == ["import", "load"]
    assert sum(seconds for _, seconds in startup.laps) == pytest.approx(startup.last)
    assert startup.line().startswith("import ")
    assert startup.line().endswith("since the process began")
