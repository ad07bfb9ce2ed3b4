"""The document says what the replies are, and the replies are that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen_apps.openai_http.replies import (
    ERRORS,
    ChatCompletion,
    ErrorReply,
    ModelList,
    TextCompletion,
)

if TYPE_CHECKING:
    from tests.apps.openai_http.running import Running


def test_replies_fit(demo: Running) -> None:
    asked: dict[str, Any] = {"model": "demo", "max_tokens": 2, "n": 2, "temperature": 0}
    turns = [{"role": "user", "content": "hi"}]
    chat = demo.post("/chat/completions", {**asked, "messages": turns, "logprobs": True})
    ChatCompletion.model_validate(chat.json(), strict=True)
    text = demo.post("/completions", {**asked, "prompt": "a", "logprobs": 1})
    TextCompletion.model_validate(text.json(), strict=True)
    ModelList.model_validate(demo.request("GET", "/v1/models").json(), strict=True)
    ErrorReply.model_validate(demo.post("/completions", {}).json(), strict=True)


def test_the_document_names_them(demo: Running) -> None:
    document = demo.request("GET", "/openapi.json").json()
    replies = document["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert {str(status) for status in ERRORS} | {"200"} <= set(replies)
    assert set(replies["200"]["content"]) == {"application/json", "text/event-stream"}
