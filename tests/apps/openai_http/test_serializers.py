"""Replies look as the API's do, and as the server's document says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from asyncgen import Sample, TokenEvent, TokenLogprob, TopLogprob, Usage
from asyncgen_apps.openai_http.response_schema import (
    ERRORS,
    ChatCompletion,
    ErrorReply,
    ModelList,
    TextCompletion,
)
from asyncgen_apps.openai_http.serializers import (
    ChatSerializer,
    CompletionHead,
    CompletionSerializer,
)

if TYPE_CHECKING:
    from tests.apps.openai_http.running import Running


HEAD = CompletionHead("id-1", 5, "demo")
ENTRY = TokenLogprob(7, "ab", -0.5, (TopLogprob(7, "ab", -0.5), TopLogprob(8, "x", -2.0)))
RARE = TokenLogprob(9, "\ufffd", float("-inf"), (TopLogprob(8, "x", -2.0),))
SAMPLE = Sample(0, "ab\ufffd", (7, 9), "stop", 2, (ENTRY, RARE))


def test_chat() -> None:
    shape = ChatSerializer(HEAD, logprobs=True)
    whole: Any = shape.whole([], [SAMPLE], Usage(3, 2))
    ChatCompletion.model_validate(whole)
    content = whole["choices"][0]["logprobs"]["content"]
    assert content[0]["bytes"] == [97, 98]
    assert content[1]["bytes"] is None
    assert content[1]["logprob"] == -9999.0
    assert whole["usage"]["total_tokens"] == 5
    assert whole["choices"][0]["stop_reason"] == 2


def test_chunks_of_a_chat() -> None:
    shape = ChatSerializer(HEAD)
    opening: Any = list(shape.opening([], 2))
    assert [one["choices"][0]["index"] for one in opening] == [0, 1]
    assert opening[0]["choices"][0]["delta"]["role"] == "assistant"
    middle: Any = shape.chunk(1, TokenEvent(0, (1,), "a"))
    assert middle["choices"] == [
        {"index": 1, "delta": {"content": "a"}, "logprobs": None, "finish_reason": None}
    ]
    end: Any = shape.chunk(0, TokenEvent(0, (), "", finish_reason="length"))
    assert end["choices"][0]["delta"] == {}
    assert end["choices"][0]["finish_reason"] == "length"
    closing: Any = shape.closing(Usage(1, 2))
    assert closing["choices"] == []


def test_text() -> None:
    whole: Any = CompletionSerializer(HEAD, logprobs=True, top=2).whole([], [SAMPLE], Usage(3, 2))
    TextCompletion.model_validate(whole)
    found = whole["choices"][0]["logprobs"]
    assert found["text_offset"] == [0, 2]
    assert found["top_logprobs"][1] == {"x": -2.0, "\ufffd": -9999.0}, "the chosen one as well"


@pytest.mark.parametrize("top", [0, 2])
def test_offsets_go_on_from_chunk_to_chunk(top: int) -> None:
    shape = CompletionSerializer(HEAD, logprobs=True, top=top)
    offsets = []
    for _ in range(3):
        chunk: Any = shape.chunk(0, TokenEvent(0, (7,), "ab", (ENTRY,)))
        found = chunk["choices"][0]["logprobs"]
        offsets += found["text_offset"]
        assert (found["top_logprobs"] is None) == (top == 0)
    assert offsets == [0, 2, 4]
    assert not list(shape.opening([], 3))


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
