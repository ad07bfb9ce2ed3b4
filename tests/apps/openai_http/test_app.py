"""Routes, errors, keys, limits, health, metrics and the headers of browsers, over real HTTP."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from asyncgen import AsyncLLM
from asyncgen_apps.serving.limits import LARGE, longest_request
from tests.apps.openai_http.running import running, wait_for
from tests.apps.openai_http.test_answer import scripted
from tests.cases import for_each
from tests.doubles.models import Gate

if TYPE_CHECKING:
    from tests.apps.openai_http.running import Running


TURN = {"role": "user", "content": "hi"}
CHAT: dict[str, Any] = {"model": "demo", "messages": [TURN], "max_tokens": 3}


@for_each(
    ("changes", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "json_schema": {}}, "json_schema"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"not": {}}},
                }
            },
            "response_format",
        ),
        ({"regex": "("}, "regex"),
        ({"temprature": 1}, "temprature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"n": 0}, "n"),
        ({"stop": [""]}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ({"messages": [{**TURN, "tool_calls": [{}]}]}, "messages[0].tool_calls[0].id"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"custom_generate": "x"}, "custom_generate"),
        ({"assistant_model": "/etc"}, "assistant_model"),
        ({"trust_remote_code": True}, "trust_remote_code"),
        ({"forced_eos_token_id": 99999}, "forced_eos_token_id"),
        ({"model": "other"}, "model"),
    ],
)
def test_refusals_name_the_field(either: Running, changes: dict[str, Any], param: str) -> None:
    got = either.post("/chat/completions", {**CHAT, **changes})
    assert got.status == (404 if param == "model" else 400), got.body
    assert got.error["param"] == param
    assert got.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("padding", [0, LARGE])
@pytest.mark.parametrize(
    ("field", "given", "code"),
    [
        ("messages", [TURN] * 1025, "context_length_exceeded"),
        ("logit_bias", {str(token): 1 for token in range(2049)}, None),
    ],
)
def test_no_field_is_longer_than_the_model_can_use(
    demo: Running, field: str, given: object, code: str | None, padding: int
) -> None:
    """The engine says so; of a large body it is said before anything looks into it."""
    wrong = {"temperature": "x" * padding} if padding else {}
    got = demo.post("/chat/completions", {**CHAT, field: given, **wrong})
    assert got.status == 400
    assert (got.error["param"], got.error["code"]) == (field, code)


def test_ids_of_a_large_body_are_counted_first(demo: Running) -> None:
    wrong = {"temperature": "x" * LARGE}
    got = demo.post("/completions", {"model": "demo", "prompt": [1] * 1025, **wrong})
    assert (got.error["param"], got.error["code"]) == ("prompt", "context_length_exceeded")
    for prompt in ([1] * 1024, [[1]] * 1024, [], "x" * 1025):
        got = demo.post("/completions", {"model": "demo", "prompt": prompt, **wrong})
        assert got.error["param"] == "temperature" or prompt == []


@for_each(
    "changes",
    [
        {"tools": None, "tool_choice": "none", "response_format": {"type": "text"}},
        {"store": False, "service_tier": "auto", "user": None, "parallel_tool_calls": False},
        {"stream": None, "stop": None, "logit_bias": None, "n": None},
        {"messages": [{**TURN, "content": [{"type": "text", "text": "hi"}]}]},
        {"messages": [{"role": "developer", "content": "x"}, TURN]},
        {"messages": [TURN, {"role": "assistant", "content": "a", "refusal": None}, TURN]},
        {"temperature": 0, "top_p": 0.5, "top_k": 5},
    ],
)
def test_fields_that_ask_for_the_default_are_accepted(
    either: Running, changes: dict[str, Any]
) -> None:
    got = either.post("/chat/completions", {**CHAT, **changes})
    assert got.status == 200, got.body


def test_messages_that_the_template_refuses(either: Running) -> None:
    got = either.post("/chat/completions", {**CHAT, "messages": [{"role": "tool", "content": "x"}]})
    assert got.status == 422
    assert got.error["param"] == "messages"


def test_other_paths_and_methods(demo: Running) -> None:
    error = demo.request("GET", "/v1/nothing").error
    assert error["code"] == "not_found"
    assert error["message"] == "there is nothing at /v1/nothing; /docs lists what there is"
    assert len(demo.request("GET", "/" + 5000 * "x").error["message"]) < 200
    assert demo.request("GET", "/v1/models/gpt").error["code"] == "model_not_found"
    assert demo.request("GET", "/v1/chat/completions").status == 405
    got = demo.request("GET", "/v1/models/demo")
    assert got.status == 200
    assert got.json()["id"] == "demo"


def test_json_must_say_so(demo: Running) -> None:
    """A page of another origin can only send what does not."""
    got = demo.request("POST", "/v1/chat/completions", CHAT, {"content-type": "text/plain"})
    assert got.status == 400


def test_what_is_wrong_is_said_alike_in_small_and_large_bodies(demo: Running) -> None:
    filler = {"user": "x" * (LARGE + 1)}
    for path, fields, said in (
        ("/v1/completions", {"prompt": "a", "top_p": "x"}, 'is "x": must be a number from 0 to 1'),
        ("/v1/completions", {"prompt": "a", "top_p": 7.5}, "is 7.5: must be a number from 0 to 1"),
        ("/v1/completions", {"prompt": "a", "n": 0}, "is 0: must be a whole number from 1 to 128"),
        ("/v1/completions", {"promt": "a"}, "did you mean `prompt`?"),
        ("/v1/embeddings", {"inputs": "a"}, "did you mean `input`?"),
        ("/tokenize", {"promt": "a"}, "did you mean `prompt`?"),
        ("/apply-template", {"message": []}, "did you mean `messages`?"),
    ):
        body = {"model": "demo", **fields}
        small = demo.request("POST", path, body).error["message"]
        assert said in small
        if path.startswith("/v1"):
            assert demo.request("POST", path, {**body, **filler}).error["message"] == small


def test_errors_of_length_name_what_the_client_sent(either: Running) -> None:
    """And nothing of the inside: no class, no function, no default that nobody gave."""
    many = [{"role": "user", "content": "a fox " * 60}] * 10
    for path, fields, named in (
        ("/chat/completions", {"messages": many}, "messages"),
        ("/chat/completions", {"messages": many, "max_tokens": 5}, "max_tokens"),
        ("/chat/completions", {"messages": [*many, many[0]] * 9}, "messages"),
        ("/chat/completions", {"messages": many[:1], "max_completion_tokens": 5000},
         "max_completion_tokens"),
        ("/completions", {"prompt": "a", "max_tokens": 5000}, "max_tokens"),
        ("/completions", {"prompt": "a", "max_length": 1}, "max_length"),
        ("/completions", {"prompt": "a " * 9000}, "prompt"),
        ("/embeddings", {"input": "a " * 9000}, "input"),
    ):  # fmt: skip
        error = either.post(path, {"model": "demo", **fields}).error
        assert (error["param"], error["code"]) == (named, "context_length_exceeded"), error
        text = error["message"]
        assert text.startswith(f"`{named}` is ") and "None" not in text
        assert not re.search(r"[a-z]\(|[a-z]\.[a-z]|[A-Z][a-z]+[A-Z]", text), text


def test_health_and_metrics(either: Running) -> None:
    either.post("/chat/completions", CHAT)
    assert either.request("GET", "/health").body == b"ok\n"
    for path in ("/health", "/ready"):
        asked = either.request("HEAD", path)
        assert (asked.status, asked.body) == (200, b"")
    assert either.request("GET", "/ready").body == b"ok\n"
    assert either.request("GET", "/server_info").json() == {"served_model_name": "demo"}
    text = either.request("GET", "/metrics").body.decode()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    for name in ("num_requests_running", "num_requests_waiting", "generation_tokens"):
        assert f"vllm:{name}" in found
    tokens = found["vllm:generation_tokens"].samples[0]
    assert tokens.labels == {"model_name": "demo"}
    assert tokens.value >= 3
    assert found["vllm:time_to_first_token_seconds"].type == "histogram"


def test_request_ids(demo: Running) -> None:
    given = demo.post("/chat/completions", CHAT, {"X-Request-Id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    assert given.json()["id"] == "chatcmpl-abc-1"
    made = [demo.request("GET", "/v1/nothing").headers["x-request-id"] for _ in range(2)]
    assert len(set(made)) == 2
    bad = demo.request("GET", "/health", headers={"X-Request-Id": "a b\tc"})
    assert bad.headers["x-request-id"] not in ("a b\tc", "")


def test_keys_limits_and_origins() -> None:
    gate = Gate()
    page = {"Origin": "https://a.example"}
    key = {"Authorization": "Bearer key-1"}
    with running(
        scripted(gate),
        api_keys=("key-1",),
        max_requests=1,
        max_body_bytes=1000,
        cors_origins=("https://a.example",),
    ) as served:
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic key-1"}):
            got = served.post("/completions", {}, headers)
            assert got.status == 401
            assert got.headers["www-authenticate"] == "Bearer"
            assert got.error["code"] == "invalid_api_key"
        assert served.request("GET", "/health").status == 200

        ask = {**page, "Access-Control-Request-Method": "POST"}
        allowed = served.request("OPTIONS", "/v1/completions", headers=ask)
        assert allowed.status == 200
        assert allowed.headers["access-control-allow-origin"] == "https://a.example"
        refused = served.post("/completions", {}, page)
        assert refused.status == 401
        assert refused.headers["access-control-allow-origin"] == "https://a.example"

        large = {"model": "demo", "prompt": "x" * 2000}
        assert served.post("/completions", large, key).error["code"] == "request_too_large"

        small = {"model": "demo", "prompt": [1], "max_tokens": 2}
        first: list[Any] = []
        visitor = threading.Thread(
            target=lambda: first.append(served.post("/completions", small, key))
        )
        visitor.start()
        gate.wait_arrived(1)
        second = served.post("/completions", small, key)
        gate.open()
        visitor.join()
        assert second.status == 429
        assert second.headers["retry-after"] == "1"
        assert second.error["type"] == "rate_limit_error"
        assert first[0].status == 200


def test_a_drain_lets_those_inside_finish() -> None:
    gate = Gate()
    with running(scripted(gate), drain_seconds=60) as served:
        replies: list[Any] = []
        body = {"model": "demo", "prompt": [1], "max_tokens": 4, "stream": True}
        visitor = threading.Thread(target=lambda: replies.append(served.post("/completions", body)))
        visitor.start()
        gate.wait_arrived(1)
        served.call(served.server.leave)
        wait_for(lambda: served.gate.draining)
        gate.open()
        visitor.join()
        assert replies[0].events()[-1] == "[DONE]"


@pytest.mark.parametrize("framing", ["Content-Length: 2000000", "Transfer-Encoding: chunked"])
def test_a_body_that_the_model_cannot_use_is_not_read(demo: Running, framing: str) -> None:
    """It is refused at its head; one without a length, as soon as it is too long."""
    most = longest_request(demo.llm, 10**9)
    assert most < 2_000_000
    piece = b"%x\r\n" % (most + 1) + b"x" * (most + 1)
    with socket.create_connection(("127.0.0.1", demo.port), 60) as wire:
        wire.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            + framing.encode()
            + b"\r\n\r\n"
            + (piece if "chunked" in framing else b"")
        )
        got = http.client.HTTPResponse(wire)
        got.begin()
        error = json.loads(got.read())["error"]
    assert (got.status, error["code"]) == (413, "request_too_large")
    assert str(most) in error["message"] and "--max-body" in error["message"]


def test_a_chunked_body_is_counted() -> None:
    with running(lambda: AsyncLLM("demo", num_threads=1), max_body_bytes=500) as served:
        with socket.create_connection(("127.0.0.1", served.port), 60) as wire:
            head = (
                "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                "Transfer-Encoding: chunked\r\n\r\n"
            )
            wire.sendall(head.encode() + b"190\r\n" + b"x" * 400 + b"\r\n190\r\n" + b"x" * 400)
            wire.sendall(b"\r\n0\r\n\r\n")
            assert b" 413 " in wire.recv(1000)


TEXT: dict[str, Any] = {"model": "demo", "prompt": "a", "max_tokens": 3, "temperature": 0}


def test_several_names() -> None:
    with running(scripted(), model_names=("org/big", "small")) as served:
        listed = served.request("GET", "/v1/models").json()["data"]
        assert [model["id"] for model in listed] == ["org/big", "small"]
        assert served.request("GET", "/v1/models/org/big").status == 200
        for name in ("org/big", "small"):
            body = {"model": name, "prompt": [1], "max_tokens": 2}
            assert served.post("/completions", body).json()["model"] == name


@for_each("options", [None, {"include_usage": False}, {"include_usage": True}])
def test_usage_is_sent_only_if_requested(either: Running, options: Any) -> None:
    body = {**TEXT, "stream": True, "stream_options": options}
    events = either.post("/completions", body).events()
    assert events[-1] == "[DONE]"
    has_usage = bool(options and options["include_usage"])
    assert ("usage" in events[0]) == has_usage
    assert bool(events[-2].get("usage")) == has_usage


def test_counts_in_every_chunk_need_the_last_one(demo: Running) -> None:
    options = {"continuous_usage_stats": True}
    got = demo.post("/completions", {**TEXT, "stream": True, "stream_options": options})
    assert got.error["param"] == "stream_options.continuous_usage_stats"
