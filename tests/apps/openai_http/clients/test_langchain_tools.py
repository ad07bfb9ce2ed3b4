"""LangChain: ``bind_tools`` and ``with_structured_output`` in each of its ways."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from tests.apps.openai_http.clients.talks import SUNNY, talks

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@tool  # type: ignore[untyped-decorator]
def weather(city: str) -> str:
    """Tell the weather."""
    return f"Sunny in {city}."


@pytest.fixture(scope="module")
def chat() -> Iterator[ChatOpenAI]:
    with talks() as served:
        yield ChatOpenAI(base_url=served.url, api_key="none", model="demo", temperature=0)


def test_bind_tools(chat: ChatOpenAI) -> None:
    bound = chat.bind_tools([weather])
    question = HumanMessage("How is Paris?")
    said = bound.invoke([question])
    (made,) = said.tool_calls
    assert (made["name"], made["args"]) == ("weather", {"city": "Paris"})
    result = ToolMessage(weather.invoke(made["args"]), tool_call_id=made["id"])
    assert bound.invoke([question, said, result]).text == SUNNY
    whole: Any = None
    for piece in bound.stream([question]):
        whole = piece if whole is None else whole + piece
    assert whole.tool_calls[0]["args"] == {"city": "Paris"}


@pytest.mark.parametrize("method", ["function_calling", "json_schema", "json_mode"])
def test_structured_output(chat: ChatOpenAI, method: str) -> None:
    made = chat.with_structured_output(Person, method=method)
    assert made.invoke("Which person? Answer in JSON.") == Person(name="Ada", age=36)
