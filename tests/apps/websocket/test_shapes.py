"""Answers in a shape, calls of tools and reasoning over the wire, also where it is cut."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from asyncgen import AsyncLLM
from asyncgen_apps.websocket import connect, serve_websocket
from tests.apps.openai_http.scripted import call, talking
from tests.apps.websocket.cutting import CuttingProxy
from tests.cases import for_each
from tests.doubles.models import TableModel, byte_tokenizer
from tests.text.tool_calls.templates import THINKING

if TYPE_CHECKING:
    from asyncgen import Completion

pytestmark = pytest.mark.anyio

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "legs": {"enum": [2, 4]}},
    "required": ["name", "legs"],
    "additionalProperties": False,
}
SHAPES: dict[str, dict[str, Any]] = {
    "json_schema": {"json_schema": SCHEMA},
    "json_object": {"json_object": True},
    "regex": {"regex": "(fox|hen)( (fox|hen)){3}"},
    "grammar": {"grammar": 'start: ("fox" | "hen") " slept."'},
    "choice": {"choice": ["A fox slept.", "A hen slept."]},
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object"}},
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def cut_and_read(llm: AsyncLLM, prompt: Any, given: dict[str, Any]) -> Completion:
    """Read a stream whose connection is cut after every few events."""
    async with serve_websocket(llm) as server:
        with CuttingProxy(server.port) as wire, anyio.fail_after(60):
            async with connect(wire.url) as client, client.stream(prompt, **given) as stream:
                count, cuts = 0, 0
                async for event in stream.events():
                    count += 1
                    if event.finish_reason is None and count % 4 == 1 and cuts < 3:
                        cuts += 1
                        wire.cut()
                assert cuts
                return stream.result


@for_each("shape", sorted(SHAPES))
async def test_an_answer_in_a_shape(shape: str) -> None:
    pytest.importorskip("llguidance")
    given = {**SHAPES[shape], "max_new_tokens": 60, "seed": 3, "temperature": 1.2}
    async with AsyncLLM(TableModel(eos_bias=0.5), tokenizer=byte_tokenizer()) as llm:
        wanted = await llm.generate("An animal: ", **given)
        found = await cut_and_read(llm, "An animal: ", given)
    assert (found.text, found.token_ids) == (wanted.text, wanted.token_ids)
    assert found.finish_reason == wanted.finish_reason
    assert (found.parsed, found.parse_error) == (wanted.parsed, wanted.parse_error)
    if shape == "json_schema":
        assert found.finish_reason == "stop"
        assert json.loads(found.text).keys() == SCHEMA["properties"].keys()
    elif shape == "regex":
        assert re.fullmatch(given["regex"], found.text)
    elif shape == "choice":
        assert found.text in given["choice"]
    elif shape == "grammar":
        assert found.text in ("fox slept.", "hen slept.")


async def test_calls_of_tools() -> None:
    arguments = '{"city": "Paris"}'
    async with talking(lambda _: "Let me see.\n" + call("weather", arguments)) as llm:
        turns = [{"role": "user", "content": "How is Paris?"}]
        found = await cut_and_read(llm, turns, {"tools": [TOOL], "temperature": 0})
    assert found.text == "Let me see."
    [made] = found.tool_calls
    assert (made.name, made.arguments) == ("weather", arguments)
    assert made.id


async def test_reasoning() -> None:
    async with talking(lambda _: "I wonder.\n</think>\n\nYes.", THINKING) as llm:
        turns = [{"role": "user", "content": "Is it?"}]
        found = await cut_and_read(llm, turns, {"temperature": 0})
    assert (found.reasoning, found.text) == ("I wonder.", "Yes.")
    assert found.usage.reasoning_tokens == len("I wonder.\n</think>")
