"""openai-agents over chat completions: a tool that is called, and an output type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.apps.openai_http.clients.talks import SUNNY, talks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apps.openai_http.running import Running

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@function_tool  # type: ignore[untyped-decorator]
def weather(city: str) -> str:
    """Tell the weather."""
    return f"Sunny in {city}."


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    set_tracing_disabled(True)
    with talks() as found:
        yield found


def model(served: Running) -> OpenAIChatCompletionsModel:
    client = AsyncOpenAI(base_url=served.url, api_key="none")
    return OpenAIChatCompletionsModel("demo", client)


def test_a_tool_is_called(served: Running) -> None:
    agent = Agent(name="a", instructions="Help.", model=model(served), tools=[weather])
    assert Runner.run_sync(agent, "How is Paris?").final_output == SUNNY


def test_output_type(served: Running) -> None:
    agent = Agent(name="a", model=model(served), output_type=Person)
    assert Runner.run_sync(agent, "Which person?").final_output == Person(name="Ada", age=36)
