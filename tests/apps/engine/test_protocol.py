"""Test that an engine has what the applications need."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgen import AsyncLLM, TextStream
from asyncgen_apps.engine import Engine, EngineStream, EventStream
from asyncgen_apps.openai_http.chat_page import GatedEngine, GatedStream
from asyncgen_apps.openai_http.concurrency_limit import Gate
from asyncgen_apps.openai_http.websocket_streams import CountedEngine


@pytest.mark.parametrize("kind", [AsyncLLM, GatedEngine, CountedEngine])
def test_engines_have_all_of_it(kind: Any) -> None:
    assert {name for name in vars(Engine) if not name.startswith("_")} <= set(dir(kind))


@pytest.mark.parametrize("kind", [TextStream, GatedStream])
def test_streams_have_all_of_it(kind: Any) -> None:
    names = {
        name for name in {**vars(EventStream), **vars(EngineStream)} if not name.startswith("_")
    }
    assert names | {"__aiter__", "__aenter__", "__aexit__"} <= set(dir(kind))


def test_the_types_agree() -> None:
    """That is checked by mypy."""
    llm: Engine = AsyncLLM("demo")
    gated: Engine = GatedEngine(llm, Gate(1))
    counted: Engine = CountedEngine(gated, Gate(1))
    assert counted.generation_config if counted.is_healthy else not llm.is_healthy
