"""``llm``, the tool for terminals, with a model of an OpenAI-compatible server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import llm
import pytest
from llm.default_plugins.openai_models import Chat

from tests.apps.openai_http.clients.talks import ADA, HELLO, SUNNY, talks

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def model() -> Iterator[Chat]:
    with talks() as served:
        found = Chat(
            "demo",
            model_name="demo",
            api_base=served.url,
            supports_tools=True,
            supports_schema=True,
        )
        found.key = "none"
        yield found


def test_prompt(model: Chat) -> None:
    assert model.prompt("Hi").text() == HELLO
    assert "".join(model.prompt("Hi", stream=False)) == HELLO


def test_schema(model: Chat) -> None:
    schema = llm.schema_dsl("name, age int")
    assert model.prompt("Which person?", schema=schema).text() == ADA


def test_tools(model: Chat) -> None:
    def weather(city: str) -> str:
        """Tell the weather."""
        return f"Sunny in {city}."

    assert model.chain("How is Paris?", tools=[weather]).text().endswith(SUNNY)
