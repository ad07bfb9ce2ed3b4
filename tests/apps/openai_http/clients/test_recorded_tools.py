"""Replay requests with tools and structured output: calls come, and answers to their results."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.apps.openai_http.clients.recorded import read
from tests.apps.openai_http.clients.talks import ADA, HELLO, SUNNY, WEATHER, talks
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apps.openai_http.running import Running

CLIENTS = (
    "instructor",
    "langchain_tools",
    "litellm",
    "llm",
    "openai_agents",
    "openai_tools",
    "pydantic_ai",
)
SAID = (ADA, HELLO, SUNNY, WEATHER)


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with talks() as found:
        yield found


def said(reply: Any) -> str:
    """The text of an answer, or the arguments of its call; whole, or from a stream."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        message = reply.json()["choices"][0]["message"]
        calls = message.get("tool_calls")
        return calls[0]["function"]["arguments"] if calls else message["content"]
    deltas = [
        event["choices"][0]["delta"]
        for event in reply.events()
        if event != "[DONE]" and event["choices"]
    ]
    calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    arguments = "".join(call["function"]["arguments"] for call in calls)
    return arguments or "".join(delta.get("content") or "" for delta in deltas)


@for_each("client", CLIENTS)
def test_every_request_is_answered(client: str, served: Running) -> None:
    pytest.importorskip("llguidance")
    for name, requests in read(client).items():
        for sent in requests:
            reply = served.request(sent.method, sent.path, sent.body or None, sent.headers)
            assert reply.status == 200, (name, reply.json())
            assert said(reply) in SAID, (name, json.loads(sent.body))
