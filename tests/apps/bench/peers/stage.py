"""Lets the classes of ``doubles`` take part in a benchmark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from asyncgen_apps.bench.peers import processes
from asyncgen_apps.bench.peers.contenders import CONTENDERS, Contender

if TYPE_CHECKING:
    import pytest

NAMES = ("Good", "Other", "Short", "Unloadable", "Dying", "Silent", "Environment")


def use_doubles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a contender for each double, by its name; return the folder of their programs."""
    programs = folder / "programs"
    programs.mkdir()
    shutil.copy(processes.PROGRAMS / "protocol.py", programs)
    shutil.copy(Path(__file__).with_name("doubles.py"), programs)
    monkeypatch.setattr(processes, "PROGRAMS", programs)
    for name in NAMES:
        monkeypatch.setitem(CONTENDERS, name, Contender(name, f"doubles:{name}"))
    return programs
