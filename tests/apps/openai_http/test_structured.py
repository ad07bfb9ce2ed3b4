"""Answers in a shape over HTTP: `response_format`, and our own names of the rest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.cases import for_each

if TYPE_CHECKING:
    from tests.apps.openai_http.running import Running

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "n": {"enum": [1, 2]}},
    "required": ["name", "n"],
    "additionalProperties": False,
}
CHAT: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "A name and a number, please."}],
    "max_tokens": 60,
}


@for_each("strict", [{}, {"strict": True}, {"strict": False}])
def test_a_schema_is_kept_to(either: Running, strict: dict[str, Any]) -> None:
    named = {"name": "pair", "description": "A pair.", "schema": SCHEMA, **strict}
    asked = {**CHAT, "response_format": {"type": "json_schema", "json_schema": named}}
    got = either.post("/chat/completions", asked)
    assert got.status == 200, got.body
    (choice,) = got.json()["choices"]
    assert choice["finish_reason"] == "stop"
    value = json.loads(choice["message"]["content"])
    assert set(value) == {"name", "n"} and value["n"] in (1, 2)


def test_names_of_our_own(either: Running) -> None:
    got = either.post("/chat/completions", {**CHAT, "choice": ["yes", "no"]})
    assert got.json()["choices"][0]["message"]["content"] in ("yes", "no")
    text = {"model": "demo", "prompt": "Once", "max_tokens": 30}
    got = either.post("/completions", {**text, "regex": "[a-c]{4}x"})
    assert len(got.json()["choices"][0]["text"]) == 5
    got = either.post("/completions", {**text, "regex": "[a-c]{4}x", "stop": "x"})
    assert got.json()["choices"][0]["finish_reason"] == "incomplete"
