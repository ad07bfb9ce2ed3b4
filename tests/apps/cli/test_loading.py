from __future__ import annotations

import inspect
import io

import pytest

import asyncgen
from asyncgen_apps.cli import source
from asyncgen_apps.cli.loading import loading_line, opened
from asyncgen_apps.cli.source import LLM, Source, examples_of, open_llm
from asyncgen_apps.engine import EventStream
from asyncgen_apps.websocket.client.client import Client, RemoteStream
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


def test_real_classes_have_all_protocol_members() -> None:
    for protocol, real in (
        (LLM, asyncgen.AsyncLLM),
        (LLM, Client),
        (EventStream, asyncgen.TextStream),
        (EventStream, RemoteStream),
    ):
        used = {name for name in vars(protocol) if not name.startswith("_")}
        assert used and used <= set(dir(real))


def test_every_field_of_a_source_reaches_the_model() -> None:
    llm = open_llm(Source("demo", "cpu", "float32", 1, "main", "secret"))
    assert isinstance(llm, asyncgen.AsyncLLM)
    described = inspect.signature(asyncgen.AsyncLLM).parameters
    assert {"device", "dtype", "num_threads", "revision", "token"} <= described.keys()
    with pytest.raises(asyncgen.InvalidRequestError, match="`prepare_seconds` is 0"):
        open_llm(Source("demo", prepare_seconds=0))


def test_source_name_is_the_model_or_address() -> None:
    assert Source("demo").name == "demo"
    assert Source(url="ws://host:1").name == "ws://host:1"


@pytest.mark.anyio
async def test_an_address_is_connected_to() -> None:
    with pytest.raises(asyncgen.InvalidRequestError, match="url"):
        async with open_llm(Source(url="http://host")):
            raise AssertionError("connected")


def test_only_the_bundled_model_has_examples() -> None:
    assert len(examples_of(Source("demo"))) == 3
    assert examples_of(Source("some/where")) == ()
