"""The client of OpenAI: tools, streamed calls, ``parse``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel

from tests.apps.openai_http.clients.talks import SUNNY, talks

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.clients


class Person(BaseModel):
    """A person."""

    name: str
    age: int


class weather(BaseModel):  # becomes the name of the tool
    """Tell the weather."""

    city: str


ASKED: Any = [{"role": "user", "content": "How is Paris?"}]
WHO: Any = [{"role": "user", "content": "Which person wrote programs first?"}]


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with talks() as served, OpenAI(base_url=served.url, api_key="none", max_retries=0) as opened:
        yield opened


def test_tools(client: OpenAI) -> None:
    tools = [pydantic_function_tool(weather)]
    for choice in ("auto", "required", {"type": "function", "function": {"name": "weather"}}):
        got = client.chat.completions.create(
            model="demo", messages=ASKED, tools=tools, tool_choice=choice, temperature=0
        )
        assert got.choices[0].finish_reason == "tool_calls"
        (made,) = got.choices[0].message.tool_calls
        assert json.loads(made.function.arguments) == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": made.id, "content": "Sunny."}
    messages = [*ASKED, got.choices[0].message, result]
    got = client.chat.completions.create(
        model="demo", messages=messages, tools=tools, temperature=0
    )
    assert got.choices[0].message.content == SUNNY and got.choices[0].finish_reason == "stop"


def test_streamed_tools(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model="demo", messages=ASKED, tools=[pydantic_function_tool(weather)], temperature=0
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert kinds.count("tool_calls.function.arguments.delta") > 3
    assert kinds.count("tool_calls.function.arguments.done") == 1
    (made,) = final.choices[0].message.tool_calls
    assert made.function.parsed_arguments == weather(city="Paris")


def test_parse(client: OpenAI) -> None:
    got = client.chat.completions.parse(
        model="demo", messages=WHO, response_format=Person, temperature=0
    )
    assert got.choices[0].message.parsed == Person(name="Ada", age=36)
