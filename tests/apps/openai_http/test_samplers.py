"""Samplers of llama.cpp, names of other engines, and prompts that are cut: over both servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from asyncgen_apps.websocket.client.client import connect
from tests.apps.openai_http.running import reference, running
from tests.apps.openai_http.scripted import talking
from tests.cases import for_each
from tests.text.tool_calls.templates import THINKING

if TYPE_CHECKING:
    from tests.apps.openai_http.running import Running

PROMPT = "Once upon a time"
CASES: list[dict[str, Any]] = [
    {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_sequence_breakers": ["\n", "."]},
    {"top_n_sigma": 0.5},
    {"dynatemp_range": 0.9, "dynatemp_exponent": 2},
    {"mirostat": 1, "mirostat_tau": 2},
    {"mirostat": 2, "mirostat_tau": 2.5, "mirostat_eta": 0.3},
    {"repeat_last_n": 8, "repeat_penalty": 1.6},
]


async def over_websocket(served: Running, prompt: Any, **params: Any) -> Any:
    """The answer of the server of streams."""
    async with connect(f"ws://127.0.0.1:{served.ws_port}") as client:
        return await client.generate(prompt, **params)


@for_each("case", CASES, ids=lambda case: "-".join(case))
def test_servers_sample_as_the_library_does(demo: Running, case: dict[str, Any]) -> None:
    params = {"temperature": 1.4, "seed": 4, **case}
    own = reference(demo, PROMPT, max_new_tokens=20, **params)
    body = {"model": "demo", "prompt": PROMPT, "max_tokens": 20, "return_token_ids": True}
    got = demo.post("/completions", body | params)
    assert got.status == 200, got.body
    assert got.json()["choices"][0]["token_ids"] == list(own.token_ids)
    streamed = anyio.run(lambda: over_websocket(demo, PROMPT, max_new_tokens=20, **params))
    assert streamed.token_ids == own.token_ids


@for_each(
    ("fields", "name"),
    [
        ({"xtc_threshold": 0.1}, "xtc_threshold"),
        ({"xtc_probability": 2}, "xtc_probability"),
        ({"mirostat": "2"}, "mirostat"),
        ({"mirostat": 2, "top_p": 0.5}, "top_p"),
        ({"dry_multiplier": 1, "num_beams": 2}, "dry_multiplier"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repeat_penalty"),
        ({"context_overflow": "some"}, "context_overflow"),
        ({"truncation": "always"}, "truncation"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
        ({"reasoning_budget": -2}, "reasoning_budget"),
    ],
)
def test_refusals_name_the_field_as_it_was_sent(
    demo: Running, fields: dict[str, Any], name: str
) -> None:
    turn = {"role": "user", "content": "hi"}
    got = demo.post("/chat/completions", {"model": "demo", "messages": [turn], **fields})
    assert got.status == 400, got.body
    assert got.error["param"] == name


def test_a_long_prompt_is_cut_where_it_is_asked_and_usage_tells(demo: Running) -> None:
    prompt = [5, 6, 7, 8] * 300
    body = {"model": "demo", "prompt": prompt, "max_tokens": 4, "temperature": 0}
    assert demo.post("/completions", body).error["code"] == "context_length_exceeded"
    for fields in ({"context_overflow": "rolling"}, {"truncation": "auto"}):
        got = demo.post("/completions", {**body, **fields}).json()["usage"]
        assert got["prompt_tokens"] == 1020
        assert got["prompt_tokens_details"]["truncated_tokens"] == 180
    streamed = anyio.run(
        lambda: over_websocket(demo, prompt, max_new_tokens=4, context_overflow="rolling")
    )
    assert (streamed.usage.prompt_tokens, streamed.usage.truncated_tokens) == (1020, 180)


def test_budgets_of_reasoning_have_the_names_of_other_engines() -> None:
    said = "I wonder.\n</think>\n\nYes."
    body = {"model": "demo", "messages": [{"role": "user", "content": "?"}], "temperature": 0}
    names = ["max_reasoning_tokens", "thinking_token_budget", "thinking_budget"]
    names += ["thinking_budget_tokens", "reasoning_budget", "reasoning_budget_tokens"]
    with running(lambda: talking(lambda _: said, THINKING)) as served:
        for name in names:
            got = served.post("/chat/completions", {**body, name: 3, "max_tokens": 20})
            details = got.json()["usage"]["completion_tokens_details"]
            assert details == {"reasoning_tokens": 3 + len("</think>")}, name
        free = served.post("/chat/completions", {**body, "reasoning_budget": -1}).json()
        assert free["choices"][0]["message"]["reasoning_content"] == "I wonder."
        answer = anyio.run(
            lambda: over_websocket(
                served, body["messages"], thinking_token_budget=3, max_new_tokens=20
            )
        )
        assert answer.usage.reasoning_tokens == 3 + len("</think>")
        with pytest.raises(Exception, match="the same thing as `max_reasoning_tokens`"):
            anyio.run(
                lambda: over_websocket(
                    served, body["messages"], thinking_budget=3, max_reasoning_tokens=4
                )
            )
