"""LiteLLM: chat, tools, streams and a schema, as an OpenAI-compatible server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would fetch one at import

import litellm
import pytest
from pydantic import BaseModel

from tests.apps.openai_http.clients.talks import ADA, HELLO, talks

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@pytest.fixture(scope="module")
def asked() -> Iterator[dict[str, Any]]:
    with talks() as served:
        yield {"model": "openai/demo", "api_base": served.url, "api_key": "none", "temperature": 0}


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_chat(asked: dict[str, Any]) -> None:
    got = litellm.completion(**asked, messages=user("Hi"), user="me")
    assert got.choices[0].message.content == HELLO


def test_tools(asked: dict[str, Any]) -> None:
    got = litellm.completion(**asked, messages=user("Hi"), tools=[TOOL], tool_choice="auto")
    assert got.choices[0].message.tool_calls[0].function.name == "weather"
    pieces = list(litellm.completion(**asked, messages=user("Hi"), tools=[TOOL], stream=True))
    whole = litellm.stream_chunk_builder(pieces)
    assert whole.choices[0].message.tool_calls[0].function.arguments == '{"city": "Paris"}'


def test_schema(asked: dict[str, Any]) -> None:
    got = litellm.completion(**asked, messages=user("Which person?"), response_format=Person)
    assert got.choices[0].message.content == ADA
