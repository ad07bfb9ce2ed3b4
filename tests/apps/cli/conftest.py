"""The model behind the commands is a double."""

from __future__ import annotations

import pytest

from asyncgen_apps.cli import source
from tests.apps.cli.doubles import ScriptedLLM


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> ScriptedLLM:
    """The model that the commands open."""
    double = ScriptedLLM()
    monkeypatch.setattr(source, "open_llm", double.open)
    return double
