from __future__ import annotations

import inspect

import pytest

import asyncgen
from asyncgen_apps.cli.source import LLM, LLMStream, Source, examples_of, open_llm
from asyncgen_apps.websocket.client.client import Client, RemoteStream


def test_what_the_commands_use_is_there() -> None:
    for protocol, real in (
        (LLM, asyncgen.AsyncLLM),
        (LLM, Client),
        (LLMStream, asyncgen.TextStream),
        (LLMStream, RemoteStream),
    ):
        used = {name for name in vars(protocol) if not name.startswith("_")}
        assert used and used <= set(dir(real))


def test_every_field_of_a_source_reaches_the_model() -> None:
    llm = open_llm(Source("demo", "cpu", "float32", 1, "main", "secret"))
    assert isinstance(llm, asyncgen.AsyncLLM)
    described = inspect.signature(asyncgen.AsyncLLM).parameters
    assert {"device", "dtype", "num_threads", "revision", "token"} <= described.keys()


def test_a_source_is_called_what_users_call_it() -> None:
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
