"""Answers in a shape of an engine that lives elsewhere, whatever is lost on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from asyncgen import AsyncLLM, InvalidRequestError
from asyncgen_apps.remote import RemoteLLM
from asyncgen_apps.remote.worker import facts_of
from tests.apps.remote.local import LocalCalls, at_random
from tests.doubles.models import TableModel, byte_tokenizer

pytestmark = pytest.mark.anyio
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "legs": {"enum": [2, 4]}},
    "required": ["name", "legs"],
    "additionalProperties": False,
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Animal:
    """Class of the answer."""

    legs: int


async def test_its_values_are_those_of_the_engine() -> None:
    pytest.importorskip("llguidance")
    model = TableModel(eos_bias=0.5)
    given: dict[str, Any] = {"json_schema": SCHEMA, "max_new_tokens": 60, "seed": 3, "n": 2}
    given["temperature"] = 1.2
    async with AsyncLLM(model, tokenizer=byte_tokenizer()) as engine:
        wanted = await engine.generate("abc", **given)
        calls = LocalCalls(engine, engine, messages=at_random(1))
        async with RemoteLLM(calls, facts_of(engine)) as llm:
            stream = llm.stream("abc", **given)
            async for _ in stream.events():
                pass
            assert [each.parsed for each in stream.result.samples] == [
                each.parsed for each in wanted.samples
            ]
            assert all(each.parsed is not None for each in stream.result.samples)
            grown = llm.stream("abc", **{**given, "n": 1})
            values = [value async for value in grown.partial()]
            assert values[-1] == grown.result.parsed
            short = llm.stream("abc", **{**given, "n": 1, "max_new_tokens": 3})
            assert [value async for value in short.partial()]
            assert short.result.parsed is None
            assert short.result.parse_error is not None and "length" in short.result.parse_error
            made = llm.stream("abc", response_model=Animal, max_new_tokens=60, seed=3)
            assert [value async for value in made.partial()]
            assert isinstance(made.result.parsed, Animal) or made.result.finish_reason != "stop"
            with pytest.raises(InvalidRequestError, match="needs a format"):
                llm.stream("abc").partial()
