from __future__ import annotations

import inspect

import asyncgen
from apps.cli.source import LLM, LLMStream, Source, open_llm


def test_what_the_commands_use_is_there() -> None:
    for protocol, real in ((LLM, asyncgen.AsyncLLM), (LLMStream, asyncgen.TextStream)):
        used = {name for name in vars(protocol) if not name.startswith("_")}
        assert used and used <= set(dir(real))


def test_every_field_of_a_source_reaches_the_model() -> None:
    llm = open_llm(Source("demo", "cpu", "float32", 1, "main", "secret"))
    assert isinstance(llm, asyncgen.AsyncLLM)
    described = inspect.signature(asyncgen.AsyncLLM).parameters
    assert {"device", "dtype", "num_threads", "revision", "token"} <= described.keys()
