"""Tools, reasoning and small fields over HTTP and WebSocket, as clients send them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from asyncgen_apps.websocket.client.client import connect
from tests.apps.openai_http.running import running
from tests.apps.openai_http.scripted import call, talking
from tests.cases import for_each
from tests.text.tool_calls.templates import THINKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apps.openai_http.running import Running

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "How it is.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
USER = {"role": "user", "content": "How is Paris?"}
CHAT = "/v1/chat/completions"
ARGUMENTS = '{"city": "Paris"}'


def answer(prompt: str) -> str:
    """Ask for the weather, tell it once it is there, and say what is wrong in wrong words."""
    if "[weather]" not in prompt:
        return "Nothing can be called."
    if "tool:" in prompt:
        return "It is fine in Paris."
    if "wrong" in prompt:
        return "<tool_call>{oh}"
    return "Let me see.\n" + call("weather", ARGUMENTS)


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running(lambda: talking(answer)) as found:
        yield found


@pytest.fixture(scope="module")
def thinking() -> Iterator[Running]:
    said = "I wonder.\n</think>\n\nYes."
    with running(lambda: talking(lambda _: said, THINKING)) as found:
        yield found


def ask(served: Running, **fields: Any) -> Any:
    body = {"model": "demo", "messages": [USER], "temperature": 0, **fields}
    return served.request("POST", CHAT, body)


def test_a_call_and_the_answer_to_its_result(served: Running) -> None:
    got = ask(served, tools=[TOOL]).json()["choices"][0]
    assert got["finish_reason"] == "tool_calls"
    message = got["message"]
    assert message["content"] == "Let me see."
    (made,) = message["tool_calls"]
    assert made["type"] == "function" and made["id"]
    assert made["function"] == {"name": "weather", "arguments": ARGUMENTS}
    result = {"role": "tool", "tool_call_id": made["id"], "content": "Fine."}
    got = ask(served, tools=[TOOL], messages=[USER, message, result]).json()["choices"][0]
    assert got["message"]["content"] == "It is fine in Paris."
    assert got["finish_reason"] == "stop" and "tool_calls" not in got["message"]


def test_a_call_in_a_stream(served: Running) -> None:
    wishes = {"include_usage": True}
    events = ask(served, tools=[TOOL], stream=True, stream_options=wishes).events()
    assert events.pop() == "[DONE]" and events.pop()["usage"]["completion_tokens"] > 10
    choices = [event["choices"][0] for event in events]
    pieces = [piece for choice in choices for piece in choice["delta"].get("tool_calls") or ()]
    assert pieces[0]["function"]["name"] == "weather" and pieces[0]["id"] and len(pieces) > 5
    assert all("id" not in piece and piece["index"] == 0 for piece in pieces[1:])
    assert "".join(piece["function"]["arguments"] for piece in pieces) == ARGUMENTS
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert text == "Let me see." and choices[-1]["finish_reason"] == "tool_calls"


def test_a_malformed_call_is_seen(served: Running) -> None:
    wrong = [{"role": "user", "content": "wrong"}]
    got = ask(served, tools=[TOOL], messages=wrong).json()["choices"][0]
    assert got["message"]["content"] == "<tool_call>{oh}" and got["finish_reason"] == "stop"
    assert len(got["message"]["tool_call_errors"]) == 1
    events = ask(served, tools=[TOOL], messages=wrong, stream=True).events()[:-1]
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content") or "" for delta in deltas) == "<tool_call>{oh}"
    assert sum(len(delta.get("tool_call_errors", ())) for delta in deltas) == 1


@for_each(
    ("fields", "named"),
    [
        ({"tools": [TOOL], "tool_choice": "often"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "x"),
        ({"messages": [{"role": "user", "content": None}]}, "content"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, "function"),
        ({"messages": [{"role": "assistant", "content": "x", "thinking": 5}]}, "thinking"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"max_reasoning_tokens": 3}, "max_reasoning_tokens"),
        ({"store": True}, "store"),
        ({"service_tier": "flex"}, "service_tier"),
    ],
)
def test_unsupported_tool_fields_are_refused_by_name(
    served: Running, fields: dict[str, Any], named: str
) -> None:
    reply = ask(served, **fields)
    assert reply.status == 400 and named in json.dumps(reply.json())


def test_fields_that_change_no_token_are_taken(served: Running) -> None:
    plain = ask(served).json()["choices"]
    idle = {
        "user": "me",
        "metadata": {"a": "b"},
        "store": False,
        "safety_identifier": "x",
        "prompt_cache_key": "y",
        "service_tier": "auto",
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
    }
    assert ask(served, **idle).json()["choices"] == plain
    none = ask(served, tools=[TOOL], tool_choice="none").json()["choices"]
    assert none == plain and plain[0]["message"]["content"] == "Nothing can be called."


def test_reasoning_is_separate_from_the_content(thinking: Running) -> None:
    got = ask(thinking).json()
    message = got["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("I wonder.", "Yes.")
    details = got["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": len("I wonder.\n</think>")}
    assert got["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    events = ask(thinking, stream=True).events()[:-1]
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "I wonder."
    assert "".join(delta.get("content") or "" for delta in deltas) == "Yes."
    whole = ask(thinking, separate_reasoning=False).json()["choices"][0]["message"]
    assert whole["content"] == "I wonder.\n</think>\n\nYes."
    stopped = ask(thinking, max_reasoning_tokens=3, enable_thinking=True).json()
    assert stopped["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3 + 8


def test_stop_token_ids_and_going_on_with_a_message(served: Running) -> None:
    got = ask(served, stop_token_ids=[ord("c")]).json()["choices"][0]
    assert got["message"]["content"] == "Nothing c" and got["stop_reason"] == ord("c")
    messages = [USER, {"role": "assistant", "content": "It is"}]
    whole = ask(served, messages=messages).json()["usage"]["prompt_tokens"]
    got = ask(served, messages=messages, continue_final_message=True).json()
    assert got["usage"]["prompt_tokens"] == whole - len("<") - len("<assistant:")


def test_tokens_of_a_text_and_text_of_tokens(served: Running) -> None:
    def post(path: str, body: dict[str, Any]) -> Any:
        return served.request("POST", path, body).json()

    told = post("/tokenize", {"model": "demo", "prompt": "Hi é"})
    assert told["tokens"] == list("Hi é".encode()) and told["count"] == 5
    assert post("/detokenize", {"tokens": told["tokens"]}) == {"prompt": "Hi é"}
    chat = post("/tokenize", {"messages": [USER], "tools": [TOOL]})
    assert chat["count"] == ask(served, tools=[TOOL]).json()["usage"]["prompt_tokens"]
    for path, body in (
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": [USER]}),
        ("/tokenize", {"prompt": "a", "add_special_tokens": False}),
        ("/detokenize", {"tokens": [10**6]}),
        ("/tokenize", {"prompt": "a", "model": "other"}),
    ):
        assert "error" in post(path, body)


def test_template_is_applied_as_a_chat_would(served: Running, thinking: Running) -> None:
    def post(body: dict[str, Any], of: Running = served) -> Any:
        return of.request("POST", "/apply-template", body)

    part = {"role": "user", "content": [{"type": "text", "text": "How is Paris?"}]}
    turns = [USER, {"role": "assistant", "content": "It"}]
    for fields in (
        {"messages": [USER], "tools": [TOOL]},
        {"messages": [USER], "tools": [TOOL], "tool_choice": "none", "model": "demo"},
        {"messages": [*turns, part]},
        {"messages": turns, "continue_final_message": True},
        {"messages": [USER], "add_generation_prompt": True, "chat_template_kwargs": {}},
    ):
        told = post(fields).json()
        assert list(told) == ["prompt"] and "How is Paris?" in told["prompt"]
        tokens = served.request("POST", "/tokenize", fields).json()["tokens"]
        encode = served.llm.tokenizer.encode_ids
        assert encode(told["prompt"], add_special_tokens=False) == tokens
    is_open, is_closed = (
        post({"messages": [USER], "enable_thinking": on}, thinking).json()["prompt"]
        for on in (True, False)
    )
    assert is_open != is_closed
    for wrong, param in (
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [USER], "enable_thinking": 1}, "enable_thinking"),
        ({"messages": [USER], "prompt": "a"}, "prompt"),
        ({"messages": [USER], "add_generation_prompt": False}, "add_generation_prompt"),
        ({"messages": [USER], "model": "other"}, "model"),
        ({"messages": [USER], "chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs"),
    ):
        said = post(wrong)
        assert said.status in (400, 404) and said.error["param"] == param, said.json()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_over_websocket(served: Running, thinking: Running, backend: str) -> None:
    async def main() -> None:
        url = f"ws://127.0.0.1:{served.ws_port}"
        async with connect(url) as client, client.stream([USER], tools=[TOOL]) as stream:
            pieces = [piece async for event in stream.events() for piece in event.tool_calls]
        assert pieces[0].name == "weather" and stream.result.text == "Let me see."
        (made,) = stream.result.tool_calls
        assert made.arguments == ARGUMENTS and made.id == pieces[0].id
        async with connect(f"ws://127.0.0.1:{thinking.ws_port}") as client:
            async with client.stream([USER]) as stream:
                said = "".join([text async for text in stream])
        assert (said, stream.result.reasoning) == ("Yes.", "I wonder.")
        assert stream.result.usage.reasoning_tokens == len("I wonder.\n</think>")

    anyio.run(main, backend=backend)


PAST = THINKING.replace("(message", "(message.thinking or '') + '|' + (message")
"""A template that writes past reasoning, from `thinking`."""


def test_an_answer_is_taken_back_as_it_came() -> None:
    """Its reasoning reaches a template under another name, over HTTP and WebSocket."""
    said = f"I wonder.\n</think>\n\nYes.{call('weather', ARGUMENTS)}<tool_call>{{oh}}"
    seen: list[str] = []

    def answer(prompt: str) -> str:
        seen.append(prompt)
        return said

    asked = {"role": "user", "content": "So?"}
    written = f'<tool_call>{{"name": "weather", "arguments": {ARGUMENTS}}}</tool_call>'
    told = f"assistant:I wonder.|Yes.<tool_call>{{oh}}{written}\n\n"
    with running(lambda: talking(answer, PAST)) as served:
        message = ask(served, tools=[TOOL]).json()["choices"][0]["message"]
        assert message["reasoning_content"] and message["tool_calls"]
        assert len(message["tool_call_errors"]) == 1
        for name in ("reasoning_content", "reasoning", "thinking"):
            given = dict(message)
            given[name] = given.pop("reasoning_content")
            reply = ask(served, tools=[TOOL], messages=[USER, given, asked])
            assert reply.status == 200 and told in seen[-1]
        thought = {"role": "assistant", "reasoning": "I wonder."}
        assert ask(served, messages=[USER, thought, asked]).status == 200
        assert "assistant:I wonder.|\n\n" in seen[-1]

        async def main() -> None:
            async with connect(f"ws://127.0.0.1:{served.ws_port}") as client:
                async with client.stream([USER], tools=[TOOL]) as stream:
                    async for _ in stream:
                        pass
                result = stream.result
                calls = [
                    {"id": each.id, "name": each.name, "arguments": each.arguments}
                    for each in result.tool_calls
                ]
                given: Any = {
                    "role": "assistant",
                    "content": result.text,
                    "reasoning": result.reasoning,
                    "tool_calls": calls,
                    "tool_call_errors": list(result.samples[0].tool_errors),
                }
                async with client.stream([USER, given, asked], tools=[TOOL]) as stream:
                    async for _ in stream:
                        pass
            assert told in seen[-1]

        anyio.run(main)
