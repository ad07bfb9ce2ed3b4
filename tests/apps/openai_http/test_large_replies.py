"""Large replies are what small ones are, and never hold the event loop for long."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from asyncgen import AsyncLLM
from asyncgen_apps.openai_http import ServerSettings, create_app, large_replies
from asyncgen_apps.openai_http.bodies import CHAT_PATH, TEXT_PATH, reply_to
from asyncgen_apps.openai_http.large_replies import EncodedList, encoded
from asyncgen_apps.openai_http.response_writer import encode
from tests.cases import for_each

if TYPE_CHECKING:
    import pytest
    from fastapi import FastAPI

    from tests.apps.openai_http.running import Running

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
)
TURNS = [{"role": "user", "content": "Tell me a story."}]
STORY = "Once upon a time there was a little girl. "
TEXT: dict[str, Any] = {"model": "demo", "prompt": STORY, "seed": 3, "ignore_eos": True}
CHAT: dict[str, Any] = {"model": "demo", "messages": TURNS, "seed": 3, "ignore_eos": True}


@settings(max_examples=50)
@given(value=VALUES)
def test_pieces_join_to_what_is_encoded_at_once(value: object) -> None:
    assert b"".join(encoded(value)) == encode(value).encode()


def test_lists_that_are_encoded_already() -> None:
    parts = (bytearray(b"1,2"), bytearray(b"3"))
    content = {"a": EncodedList(parts), "b": EncodedList(()), "c": [0] * 5000}
    expected = {"a": [1, 2, 3], "b": [], "c": [0] * 5000}
    assert b"".join(encoded(content)) == encode(expected).encode()


@for_each(
    ("path", "body"),
    [
        (TEXT_PATH, {**TEXT, "n": 3, "logprobs": 2, "temperature": 1.0, "stop": ["e"]}),
        (TEXT_PATH, {**TEXT, "n": 2, "logprobs": 0, "temperature": 0, "return_token_ids": True}),
        (TEXT_PATH, {**TEXT, "prompt": [STORY * 30, "a é"], "n": 2, "logprobs": 3, "echo": True}),
        (
            TEXT_PATH,
            {**TEXT, "prompt": [[5, 6], [7]], "logprobs": 3, "echo": True, "max_tokens": 0},
        ),
        (TEXT_PATH, {**TEXT, "prompt": [STORY, "a é"], "n": 2, "echo": True}),
        (CHAT_PATH, {**CHAT, "n": 3, "logprobs": True, "top_logprobs": 2, "max_tokens": 9}),
        (CHAT_PATH, {**CHAT, "n": 2, "return_token_ids": True, "max_tokens": 9}),
    ],
)
def test_a_reply_is_that_of_a_batch_to_the_letter(
    demo: Running, path: str, body: dict[str, Any]
) -> None:
    """A batch lays its replies out in one piece, from results that keep everything."""
    llm: Any = demo.llm

    async def in_one_piece() -> Any:
        return await reply_to(llm, path, body, "7", names=("demo",))

    expected = anyio.run(in_one_piece)
    found = demo.request("POST", path, body, {"x-request-id": "7"})
    assert int(found.headers["content-length"]) == len(found.body)
    reply = found.json()
    for one in (expected, reply):
        del one["created"], one["usage"]["prompt_tokens_details"]
    assert encode(reply) == encode(expected)


@for_each("streams", [False, True])
@for_each(
    ("path", "body", "least"),
    [
        (CHAT_PATH, {**CHAT, "n": 32, "logprobs": True, "top_logprobs": 20, "max_tokens": 4}, 150),
        (TEXT_PATH, {**TEXT, "prompt": [STORY * 80], "logprobs": 20, "echo": True}, 400),
    ],
)
def test_no_call_encodes_much_of_a_large_reply(
    demo: Running,
    monkeypatch: pytest.MonkeyPatch,
    streams: bool,
    path: str,
    body: dict[str, Any],
    least: int,
) -> None:
    lengths: list[int] = []

    def measured(value: object) -> str:
        text = encode(value)
        lengths.append(len(text))
        return text

    for module in ("large_replies", "response_writer"):
        monkeypatch.setattr(f"asyncgen_apps.openai_http.{module}.encode", measured)
    found = demo.request("POST", path, {**body, "stream": streams})
    assert found.status == 200 and len(found.body) > least * 1000
    assert max(lengths) < 250_000


def test_log_probabilities_kept_for_a_reply_have_a_limit(
    demo: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_replies, "MOST_REPLY", 1000)
    body = {**TEXT, "n": 4, "logprobs": 5}
    refused = demo.request("POST", TEXT_PATH, body)
    assert refused.status == 400 and refused.error["code"] == "reply_too_large"
    assert "stream: true" in refused.error["message"]
    assert demo.request("POST", TEXT_PATH, {**body, "stream": True}).status == 200
    demo.wait_idle()


def test_all_replies_together_have_a_limit(demo: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {**TEXT, "n": 4, "logprobs": 5}
    for _ in range(2):  # what is refused counts no longer
        with monkeypatch.context() as patched:
            patched.setattr(demo.gate.reply_bytes, "most", 1000)
            refused = demo.request("POST", TEXT_PATH, body)
            assert refused.status == 429 and refused.error["code"] == "overloaded"
        with monkeypatch.context() as patched:
            patched.setattr(demo.gate.reply_bytes, "most", 100_000)
            assert demo.request("POST", TEXT_PATH, body).status == 200


def test_vectors_count_as_well(demo: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"model": "demo", "input": ["a fox"] * 3}
    for most, status in ((12_000, 429), (14_000, 429), (1_000_000, 200)):
        monkeypatch.setattr(demo.gate.reply_bytes, "most", most)
        got = demo.post("/embeddings", body)
        assert got.status == status, got.body
        assert status == 200 or "ask for fewer at once" in got.error["message"]
    demo.wait_idle()
    assert demo.gate.reply_bytes.used == 0


@for_each("path", ["/tokenize", "/detokenize"])
def test_large_bodies_are_parsed_in_slices_at_every_path(
    demo: Running, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("asyncgen_apps.serving.sliced_json.MOST_NESTED", 1000)
    body = b'{"x":' + b"[" + b"[]," * 30_000 + b"0]}"
    found = demo.request("POST", path, body)
    assert found.status == 400 and "lists and objects" in found.error["message"]


def test_long_token_ids_come_back(demo: Running) -> None:
    ids = [each % 100 + 300 for each in range(40_000)]
    text = demo.request("POST", "/detokenize", {"tokens": ids}).json()["prompt"]
    llm: Any = demo.llm
    assert text == llm.tokenizer.decode(ids)
    known = demo.request("POST", "/tokenize", {"prompt": STORY * 70}).json()
    assert known["count"] == len(known["tokens"]) > 700
    assert json.dumps(known).startswith('{"count":')


def test_the_fields_are_described_on_a_worker_thread() -> None:
    app: FastAPI = create_app(AsyncLLM("demo"), ServerSettings(("demo",), allowed_hosts=("*",)))
    threads: list[str] = []
    describe = app.openapi

    def noted() -> dict[str, Any]:
        threads.append(threading.current_thread().name)
        return describe()

    app.openapi = noted  # type: ignore[method-assign]
    client = TestClient(app)
    assert "/v1/completions" in client.get("/openapi.json").json()["paths"]
    assert "/v1/completions" in client.get("/docs").text
    assert len(threads) == 2 and all("worker" in name.lower() for name in threads)
