"""pydantic-ai: tools, and output by a tool, by a schema and by a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.apps.openai_http.clients.talks import SUNNY, talks

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@pytest.fixture(scope="module")
def model() -> Iterator[OpenAIChatModel]:
    with talks() as served:
        yield OpenAIChatModel("demo", provider=OpenAIProvider(base_url=served.url, api_key="none"))


def test_tools(model: OpenAIChatModel) -> None:
    agent = Agent(model, instructions="Help.")

    @agent.tool_plain  # type: ignore[untyped-decorator]
    def weather(city: str) -> str:
        """Tell the weather."""
        return f"Sunny in {city}."

    assert agent.run_sync("How is Paris?").output == SUNNY


@pytest.mark.parametrize("way", [NativeOutput, PromptedOutput, ToolOutput])
def test_output(model: OpenAIChatModel, way: Any) -> None:
    agent = Agent(model, output_type=way(Person))
    assert agent.run_sync("Which person?").output == Person(name="Ada", age=36)
