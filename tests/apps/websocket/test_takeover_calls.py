"""Test that tool calls and reasoning outlive their server."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen_apps.websocket.client.params import wire_params, wire_prompt
from asyncgen_apps.websocket.client.request import Request
from tests.apps.openai_http.scripted import call, talking
from tests.apps.websocket.test_shapes import TOOL
from tests.apps.websocket.test_takeover import Servers, read
from tests.text.tool_calls.templates import THINKING

if TYPE_CHECKING:
    from asyncgen import AsyncLLM, Completion, TokenEvent

pytestmark = pytest.mark.anyio

TURNS = [{"role": "user", "content": "How is Paris?"}]
ARGUMENTS = '{"city": "Paris", "days": [1, 2, 3]}'


def saying(said: str, *template: str) -> AsyncLLM:
    """An engine that says this, also behind a part of it."""

    def rest(told: str) -> str:
        return said[max(end for end in range(len(said) + 1) if told.endswith(said[:end])) :]

    return talking(rest, *template)


async def over_servers(
    llm: AsyncLLM, given: dict[str, Any], lives: tuple[int, ...]
) -> tuple[Completion, tuple[TokenEvent, ...]]:
    """Read one answer; each server is killed after so many messages, hello and accepted too."""
    servers = Servers(llm)
    request = Request(wire_prompt(TURNS), wire_params({"temperature": 0, **given}), lambda: 0.0)
    left = cycle(lives)
    found = await read(servers, request, lambda: next(left) if servers.number < 30 else None)
    assert servers.number > 3
    return found, tuple(request.events)


@pytest.mark.parametrize("lives", [(3,), (4, 3, 6)])
async def test_calls_of_tools_outlive_their_server(lives: tuple[int, ...]) -> None:
    said = "Let me see.\n" + call("weather", ARGUMENTS) + call("weather", "{}")
    async with saying(said) as llm:
        whole = await llm.generate(TURNS, tools=[TOOL], temperature=0)
        found, events = await over_servers(llm, {"tools": [TOOL]}, lives)
    assert (found.text, found.token_ids) == (whole.text, whole.token_ids)
    assert found.finish_reason == whole.finish_reason
    made = [(each.name, each.arguments) for each in found.tool_calls]
    assert made == [("weather", ARGUMENTS), ("weather", "{}")]
    pieces = [piece for event in events for piece in event.tool_calls]
    ids = {(piece.index, piece.id) for piece in pieces if piece.id}
    assert len(ids) == 2 and len({one for _, one in ids}) == 2
    texts = ["".join(p.arguments for p in pieces if p.index == index) for index in (0, 1)]
    assert texts == [ARGUMENTS, "{}"]


@pytest.mark.parametrize("lives", [(3,), (4, 3, 6)])
async def test_reasoning_outlives_its_server(lives: tuple[int, ...]) -> None:
    async with saying("I wonder.\n</think>\n\nYes, it is so.", THINKING) as llm:
        whole = await llm.generate(TURNS, temperature=0)
        found, events = await over_servers(llm, {}, lives)
    assert (found.reasoning, found.text) == (whole.reasoning, whole.text)
    assert (found.reasoning, found.text) == ("I wonder.", "Yes, it is so.")
    assert found.token_ids == whole.token_ids
    assert found.usage.reasoning_tokens == whole.usage.reasoning_tokens
    assert "".join(event.reasoning for event in events) == "I wonder."
    assert "".join(event.text for event in events) == "Yes, it is so."
