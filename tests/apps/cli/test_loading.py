from __future__ import annotations

import io

import pytest

from asyncgen_apps.cli import source
from asyncgen_apps.cli.loading import loading_line, opened
from asyncgen_apps.cli.source import Source
from tests.apps.cli.doubles import ScriptedLLM


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_is_there_while_loading_and_gone_afterwards() -> None:
    out = Terminal()
    with pytest.raises(KeyError), loading_line("demo", out):
        assert "loading demo" in out.getvalue()
        raise KeyError
    assert out.getvalue().endswith("\r\x1b[2K")


def test_a_server_is_connected_to() -> None:
    out = Terminal()
    with loading_line("ws://host:1", out, doing="connecting to"):
        assert "connecting to ws://host:1" in out.getvalue()


def test_a_file_gets_no_line() -> None:
    out = io.StringIO()
    with loading_line("demo", out):
        pass
    assert out.getvalue() == ""


@pytest.mark.anyio
async def test_the_model_is_closed_on_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = ScriptedLLM()
    monkeypatch.setattr(source, "open_llm", llm.open)
    async with opened(Source("m")) as same:
        assert same is llm and llm.is_open
    assert not llm.is_open
