"""Test access to each port of the server: hosts, keys, salts, priorities."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from asyncgen import AsyncLLM
from asyncgen_apps.openai_http import ServerSettings, create_app
from asyncgen_apps.serving.clients import Keys
from asyncgen_apps.serving.origins import LOCAL_HOSTS
from tests.apps.openai_http.running import PATIENCE, running
from tests.apps.openai_http.test_answer import scripted
from tests.apps.openai_http.test_websocket_streams import wired
from tests.cases import for_each

if TYPE_CHECKING:
    from tests.apps.openai_http.running import Running

EVIL = {"Host": "evil.example", "Origin": "http://evil.example"}
SHORT: dict[str, Any] = {"model": "demo", "prompt": [1], "max_tokens": 2}
LONG: dict[str, Any] = {"model": "demo", "prompt": "Once upon a time " * 20, "max_tokens": 2}


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


def test_a_name_that_was_made_to_point_here_gets_nothing() -> None:
    """DNS rebinding: the page's origin is the host that it asks for, and both are evil."""
    with running(scripted(), allowed_hosts=LOCAL_HOSTS) as served:
        for method, path in (
            ("POST", "/v1/completions"),
            ("POST", "/apply-template"),
            ("GET", "/metrics"),
            ("GET", "/docs"),
        ):
            got = served.request(method, path, SHORT if method == "POST" else None, EVIL)
            assert (got.status, got.error["code"]) == (421, "unknown_host")
            assert "--allowed-host" in got.error["message"]
        for path in ("/health", "/ready"):
            assert served.request("GET", path, headers=EVIL).status == 200
        assert served.post("/completions", SHORT, {"Host": "localhost:1"}).status == 200
        for port in (served.port, served.ws_port):
            with pytest.raises(InvalidStatus) as refused, connect_as("evil.example", port):
                pass
            assert refused.value.response.status_code == 403
            with connect_as("localhost", port):
                pass


def connect_as(host: str, port: int) -> Any:
    """Open a WebSocket as a page of a host would."""
    options: dict[str, Any] = {
        "address": ("127.0.0.1", port),
        "origin": f"http://{host}:{port}",
        "subprotocols": ["asyncgen.v1"],
        "open_timeout": 60,
        "proxy": None,
    }
    return connect(f"ws://{host}:{port}/v1/stream", **options)


def test_an_application_that_others_embed_has_any_name() -> None:
    """A test client calls it testserver; who serves it knows what it is called."""
    llm = AsyncLLM("demo", num_threads=1)
    with TestClient(create_app(llm, ServerSettings(("demo",)))) as client:
        assert client.get("/v1/models").status_code == 200


@pytest.mark.parametrize("wrong", [{"allowed_hosts": ("a:1",)}, {"trusted_proxies": ("a",)}])
def test_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
    [(name, _)] = wrong.items()
    with pytest.raises(ValueError, match=name):
        ServerSettings(("demo",), **wrong)


def test_a_mounted_application_asks_for_its_key() -> None:
    outer = FastAPI()
    settings = ServerSettings(("demo",), api_keys=("k1",))
    outer.mount("/llm", create_app(AsyncLLM("demo", num_threads=1), settings))
    with TestClient(outer) as client:
        for path in ("/llm/v1/models", "/llm/metrics", "/llm/docs", "/llm/openapi.json"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers=key("k1")).status_code == 200


def test_figures_and_fields_obey_the_key() -> None:
    with running(scripted(), api_keys=("k1",)) as served:
        for path in ("/tokenize", "/detokenize", "/apply-template"):
            assert served.request("POST", path, {"messages": []}).status == 401
            assert served.request("POST", path, {"messages": []}, key("k1")).status == 400
        for path in ("/metrics", "/docs", "/openapi.json", "/server_info"):
            for headers in ({}, key("k2")):
                assert served.request("GET", path, headers=headers).status == 401
            assert served.request("GET", path, headers=key("k1")).status == 200
        assert served.request("GET", "/health").status == 200
        assert metrics_of_streams(served) == 401
        assert metrics_of_streams(served, key("k2")) == 401
        assert metrics_of_streams(served, key("k1")) == 200


def test_what_is_no_key_opens_no_door() -> None:
    """Two headers are none, and only blanks of HTTP are left out of one; on both ports."""
    doors = (b"GET /v1/models", b"GET /metrics")
    with running(scripted(), api_keys=("k1", "k2")) as served:
        for port, door in zip((served.port, served.ws_port), doors, strict=True):

            def ask(*values: bytes, port: int = port, door: bytes = door) -> bytes:
                fields = b"".join(b"Authorization: %b\r\n" % value for value in values)
                with socket.create_connection(("127.0.0.1", port), PATIENCE) as wire:
                    wire.sendall(door + b" HTTP/1.1\r\nHost: localhost\r\n" + fields + b"\r\n")
                    return wire.recv(12)[9:]

            assert ask(b"Bearer k1") == ask(b"bearer \t k1 \t") == b"200"
            for value in (b"Bearer \xa0k1", b"Bearer k1\xa0", b"Bearer \x1ck1", b"Bearer", b"k1"):
                assert ask(value) in (b"401", b"400"), value
            assert ask(b"Bearer k1", b"Bearer k2") == b"401"
            assert ask(b"Bearer k1", b"Bearer k1") == b"401"
            assert ask(b"Basic eDp5", b"Bearer k1") == b"401"


def test_figures_and_fields_may_be_open() -> None:
    with running(scripted(), api_keys=("k1",), open_metrics=True, open_docs=True) as served:
        for path in ("/metrics", "/docs", "/openapi.json"):
            assert served.request("GET", path).status == 200
        assert metrics_of_streams(served) == 200
        assert served.post("/completions", SHORT).status == 401


def metrics_of_streams(served: Running, headers: dict[str, str] | None = None) -> int:
    """Ask the port of the streams for its figures; return the status."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", served.ws_port, timeout=60)
    try:
        connection.request("GET", "/metrics", headers=headers or {})
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_docs_load_nothing(demo: Running) -> None:
    got = demo.request("GET", "/docs")
    page = re.sub(r"<pre.*?</pre>", "", got.body.decode(), flags=re.DOTALL)  # calls to copy
    for word in ("<script", "<link", "<img", "http://", "https://", "@import", "url("):
        assert word not in page
    assert "default-src 'none'" in got.headers["content-security-policy"]
    for name in ("/v1/chat/completions", "max_completion_tokens", "cache_salt", "/metrics"):
        assert f"<code>{name}</code>" in page
    assert demo.request("GET", "/redoc").status == 404


@pytest.mark.parametrize("stream", [True, False])
def test_priority_is_the_operators(demo: Running, stream: bool) -> None:
    got = demo.post("/completions", {**SHORT, "priority": 1, "stream": stream})
    assert (got.status, got.error["param"]) == (400, "priority")
    assert "--allow-priority" in got.error["message"]


def test_priority_where_it_is_allowed() -> None:
    with running(scripted(), allow_priority=True) as served:
        assert served.post("/completions", {**SHORT, "priority": 1}).status == 200
        with wired(served) as wire:
            wire.hear()
            wire.begin(priority=1, max_new_tokens=2)


def test_priority_under_a_key_that_may() -> None:
    with running(scripted(), api_keys=("k1", "k2"), priority_keys=("k2",)) as served:
        for key, status in (("k1", 400), ("k2", 200)):
            body, headers = {**SHORT, "priority": 1}, {"Authorization": f"Bearer {key}"}
            assert served.post("/completions", body, headers=headers).status == status


@for_each(("name", "value"), [("client", "me"), ("cache_salt", ""), ("cache_salt", "x" * 257)])
def test_parameters_closed_to_clients_are_refused(demo: Running, name: str, value: str) -> None:
    got = demo.post("/completions", {**SHORT, name: value})
    assert (got.status, got.error["param"]) == (400, name)


def test_contents_of_parts_and_variables_of_the_template(demo: Running) -> None:
    def ask(content: object, **fields: Any) -> Any:
        messages = [{"role": "user", "content": content}]
        body = {"model": "demo", "messages": messages, "max_tokens": 4, "temperature": 0, **fields}
        return demo.post("/chat/completions", body)

    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}]
    joined, given = ask("Hi\nyou"), ask(parts, chat_template_kwargs={"enable_thinking": False})
    assert (joined.status, given.status) == (200, 200)
    for name in ("usage", "choices"):
        assert given.json()[name] == joined.json()[name]
    usage = {"include_usage": True, "continuous_usage_stats": True}
    streamed = ask(parts, stream=True, stream_options=usage, chat_template_kwargs={"x": 1})
    assert streamed.events()[0]["usage"]["prompt_tokens"] == joined.json()["usage"]["prompt_tokens"]
    refused: tuple[Any, ...] = ({"tools": []}, {"a": "x" * 4096}, [1])
    for wrong in refused:
        got = ask("Hi", chat_template_kwargs=wrong)
        assert (got.status, got.error["param"]) == (400, "chat_template_kwargs")
    got = demo.post("/completions", {**SHORT, "chat_template_kwargs": {"a": 1}})
    assert (got.status, got.error["param"]) == (400, "chat_template_kwargs")
    assert "only messages" in got.error["message"]


def hits(served: Running, headers: dict[str, str], **changes: Any) -> int:
    """Prompt tokens that a request did not have to compute."""
    before = served.figures().prefix_cache_hits
    got = served.post("/completions", {**LONG, **changes}, headers)
    assert got.status == 200, got.body
    return served.figures().prefix_cache_hits - before


def test_a_key_does_not_learn_what_another_has_asked() -> None:
    with running(lambda: AsyncLLM("demo", num_threads=1), api_keys=("k1", "k2")) as served:
        assert hits(served, key("k1")) == 0
        assert hits(served, key("k2")) == 0
        assert hits(served, key("k1")) > 0
        assert hits(served, key("k1"), cache_salt="mine") == 0
        assert hits(served, key("k2"), cache_salt="mine") == 0
        assert hits(served, key("k1"), cache_salt="mine") > 0
        # Not even by the salt that the other is given.
        other = Keys(("k1",)).find("k1")
        assert other is not None
        assert hits(served, key("k2"), cache_salt=other.cache_salt) == 0


def test_without_keys_all_share(demo: Running) -> None:
    hits(demo, {})
    assert hits(demo, {}) > 0
    assert hits(demo, {}, cache_salt="a") == 0
    assert hits(demo, {}, cache_salt="a") > 0


def asked_by(served: Running, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Whom the engine takes a request to belong to, from both doors."""
    seen: list[Any] = []
    real = AsyncLLM.stream

    def stream(llm: AsyncLLM, prompt: Any, **params: Any) -> Any:
        seen.append(params["client"])
        return real(llm, prompt, **params)

    with monkeypatch.context() as patched:
        patched.setattr(AsyncLLM, "stream", stream)
        for body in (SHORT, {**SHORT, "stream": True}):
            assert served.post("/completions", body, headers).status == 200
        for port in (served.port, served.ws_port):
            with wired(served, port, additional_headers=headers) as wire:
                wire.hear()
                wire.say("generate", id="a", prompt="a", params={"max_new_tokens": 1})
                wire.rest()
    assert len(seen) == 4
    assert len(set(seen)) == 1
    return seen[0]


def test_client_is_identified_by_key_or_trusted_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claim = {"X-Forwarded-For": "198.51.100.1, 203.0.113.7"}
    with running(scripted()) as served:
        assert asked_by(served, claim, monkeypatch) == "127.0.0.1"
    with running(scripted(), trusted_proxies=("127.0.0.1",)) as served:
        assert asked_by(served, claim, monkeypatch) == "203.0.113.7"
        assert asked_by(served, {}, monkeypatch) == "127.0.0.1"
    with running(scripted(), api_keys=("k1",), trusted_proxies=("127.0.0.1",)) as served:
        assert asked_by(served, {**claim, **key("k1")}, monkeypatch).startswith("key-")
