"""Keys in constant time, bodies in time, the short way; over real HTTP, the rest is in test_app."""

from __future__ import annotations

import http.client
import json
import socket
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from starlette.exceptions import HTTPException

from asyncgen_apps.openai_http.bodies import plan_reply
from asyncgen_apps.openai_http.errors import ApiError
from asyncgen_apps.openai_http.middleware import (
    BodyLimitMiddleware,
    FastPathMiddleware,
    _check_large,
)
from asyncgen_apps.openai_http.request_schema import ChatCompletionRequest, CompletionRequest
from asyncgen_apps.serving.limits import LARGE, SMALL
from asyncgen_apps.serving.time_slices import rest
from tests.apps.openai_http.running import running
from tests.apps.openai_http.test_answer import scripted
from tests.cases import for_each

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from tests.apps.openai_http.running import Running


def test_a_body_that_does_not_come() -> None:
    with running(scripted(), body_seconds=0.1) as served:
        with socket.create_connection(("127.0.0.1", served.port), 10) as wire:
            wire.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n"
                b"Content-Type: application/json\r\n\r\n{"
            )
            assert b" 408 " in wire.recv(1000)


LONG = " " * (LARGE + 1)


@pytest.mark.anyio
async def test_bodies_are_parsed_in_turns_of_the_loop() -> None:
    """Each may take 10 ms: a hundred that came together would hold everybody up for a second."""
    begun: list[int] = []

    async def nothing(scope: Scope, receive: Receive, send: Send) -> None: ...

    def make(content: object, request_id: str) -> ASGIApp:
        begun.append(1)
        return nothing

    async def receive() -> Message:
        return {"type": "http.request", "body": b'{"a": 1' + b" " * SMALL + b"}"}

    async def send(message: Message) -> None:
        raise AssertionError

    app, seen = FastPathMiddleware(nothing, {"/a": make}), 0
    scope = {"type": "http", "method": "POST", "path": "/a", "state": {"request_id": "1"}}
    kind = [(b"content-type", b"application/json")]
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(app, {**scope, "headers": kind}, receive, send)
        while len(begun) < 20:
            await anyio.lowlevel.checkpoint()
            assert len(begun) - seen <= 1
            seen = len(begun)


def _asked(served: Running, path: str, body: str | bytes, **headers: str) -> tuple[int, str]:
    wire = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    names = {"content-type": "application/json", **headers}
    wire.request("POST", path, body, {name.replace("_", "-"): names[name] for name in names})
    reply = wire.getresponse()
    text = reply.read().decode()
    wire.close()
    return reply.status, text


def test_a_key_that_is_twice_is_refused_by_name() -> None:
    long = "k" * 50_000
    with running(scripted()) as served:
        for more in ("", LONG):
            for path, body, name in (
                ("/v1/completions", '{"model": "demo", "prompt": "a", "prompt": "b"}', "prompt"),
                ("/v1/completions", '{"logit_bias": {"5": 1, "\\u0035": 2}, "prompt": "a"}', "5"),
                (
                    "/v1/chat/completions",
                    '{"messages": [{"role": "user", "content": "a", "role": "system"}]}',
                    "role",
                ),
                ("/v1/embeddings", '{"input": "a", "input": "a"}', "input"),
                ("/tokenize", '{"prompt": "a", "prompt": "b"}', "prompt"),
                ("/v1/completions", f'{{"{long}": 1, "{long}": 2}}', "k" * 90),
            ):
                status, said = _asked(served, path, body + more)
                assert status == 400, (path, body[:60], len(more), said)
                assert f"`{name}" in said and "twice" in said, said
                assert len(said) < 500


def test_bodies_are_utf_8_and_not_compressed() -> None:
    body = json.dumps(TEXT)
    with running(scripted()) as served:
        for headers in (
            {"content_encoding": "gzip"},
            {"content_encoding": "br"},
            {"content_encoding": "identity, deflate"},
            {"content_type": "application/json; charset=latin-1"},
            {"content_type": 'application/json; a=b; Charset="UTF-16"'},
            {"content_type": "application/json;charset=" + "x" * 10_000},
        ):
            for path in ("/v1/completions", "/v1/embeddings", "/tokenize", "/apply-template"):
                status, said = _asked(served, path, body, **headers)
                assert status == 415, (path, headers)
                assert "`charset`" in said or "`Content-Encoding`" in said
                assert len(said) < 400
        for headers in (
            {"content_encoding": "identity"},
            {"content_type": 'application/json; charset="UTF-8"'},
            {"content_type": "application/json;charset=utf8"},
        ):
            assert _asked(served, "/v1/completions", body, **headers)[0] == 200
        for encoding in ("utf-16", "utf-16-le", "utf-32", "utf-32-be"):  # what no header says
            for more in ("", LONG):
                for path in ("/v1/completions", "/v1/embeddings", "/tokenize", "/apply-template"):
                    status, said = _asked(served, path, (body + more).encode(encoding))
                    assert (status, "not UTF-8" in said or "in UTF-8" in said) == (400, True), said
        marked = body.encode("utf-8-sig")
        assert _asked(served, "/v1/completions", marked)[0] == 200


TEXT: dict[str, Any] = {"model": "demo", "prompt": "Once", "temperature": 0, "max_tokens": 3}
JSON = [(b"content-type", b"application/json; charset=utf-8")]
PIECES: list[Any] = [
    {"type": "http.request", "body": b'{"a"', "more_body": True},
    {"type": "http.request", "body": b": 1}"},
]
GONE = {"type": "http.disconnect"}


async def walk(
    pieces: list[Any], headers: list[tuple[bytes, bytes]], answer: Any, **scope: object
) -> list[object]:
    """Return the output of the short path, or of the long one."""
    seen: list[object] = []
    left = list(pieces)

    async def receive() -> Message:
        piece = left.pop(0)
        if isinstance(piece, Exception):
            raise piece
        found: Message = piece
        return found

    async def send(message: Message) -> None:
        """Nothing is sent."""

    async def framework(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            while len(seen) < len(pieces):
                seen.append(await receive())
        except HTTPException as failure:
            seen.append(failure)

    def make(content: object, request_id: str) -> ASGIApp:
        if isinstance(answer, Exception):
            raise answer

        async def short(scope: Scope, receive: Receive, send: Send) -> None:
            seen.append((content, request_id))

        return short

    asked = {"type": "http", "path": "/x", "method": "POST", "state": {"request_id": "7"}}
    await FastPathMiddleware(framework, {"/x": make})(
        {**asked, "headers": headers, **scope}, receive, send
    )
    assert left == []
    return seen


@pytest.mark.anyio
async def test_a_body_in_pieces_takes_the_short_way() -> None:
    assert await walk(PIECES, JSON, None) == [({"a": 1}, "7")]


@pytest.mark.anyio
@for_each(
    ("pieces", "headers", "answer", "scope"),
    [
        (PIECES, JSON, ValueError("no"), {}),
        (PIECES, JSON, ApiError(400, "no"), {}),
        ([{"type": "http.request", "body": b"{"}], JSON, None, {}),
        ([{"type": "http.request", "body": b"[" * SMALL}], JSON, None, {}),
        ([PIECES[0], GONE], JSON, None, {}),
        ([PIECES[0], HTTPException(413)], JSON, None, {}),
        (PIECES, [], None, {}),
        (PIECES, [*JSON, *JSON], None, {}),
        (PIECES, [(b"content-type", b"text/plain")], None, {}),
        (PIECES, JSON, None, {"method": "GET"}),
        (PIECES, JSON, None, {"path": "/y"}),
    ],
)
async def test_the_framework_gets_all_else_as_it_came(
    pieces: list[Any], headers: list[tuple[bytes, bytes]], answer: Any, scope: dict[str, object]
) -> None:
    assert await walk(pieces, headers, answer, **scope) == pieces


@pytest.mark.parametrize("stream", [True, False])
def test_both_ways_give_the_same_answer(demo: Running, stream: bool) -> None:
    body = json.dumps({**TEXT, "stream": stream}).encode()
    replies = []
    for kind in ("application/json", "application/x+json"):
        headers = {"content-type": kind, "x-request-id": "same"}
        got = demo.request("POST", "/v1/completions", body, headers)
        assert got.status == 200
        names = got.headers
        data = got.events() if stream else [got.json()]
        assert {one.pop("created") for one in data if one != "[DONE]"}
        replies.append((data, {n: v for n, v in names.items() if n != "date"}))
    assert replies[0] == replies[1]


PADDED = b'{"a": "' + b"x" * LARGE + b'"}'


@pytest.mark.anyio
@for_each("headers", [JSON, [], [(b"content-type", b"application/x+json")]])
async def test_a_large_body_is_checked_beside_the_loop(headers: list[tuple[bytes, bytes]]) -> None:
    here, where = threading.get_ident(), []

    def make(content: object, request_id: str) -> ASGIApp:
        where.append(threading.get_ident())

        async def short(scope: Scope, receive: Receive, send: Send) -> None:
            where.append(threading.get_ident())

        return short

    await large(PADDED, make, headers)
    assert where[0] != here and where[1] == here


@pytest.mark.anyio
@for_each("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
async def test_a_large_body_is_in_what_small_ones_are_in(encoding: str) -> None:
    read: list[object] = []

    def make(content: object, request_id: str) -> ASGIApp:
        read.append(content)
        raise ApiError(404, "no such model")

    text = PADDED.decode().replace("x", "é", 1)
    head, _ = await large(text.encode(encoding), make, JSON)
    is_read = encoding == "utf-8-sig"
    assert head["status"] == (404 if is_read else 400)
    assert read == [json.loads(text)] * is_read


ENTRIES: dict[str, tuple[Any, Any]] = {
    "biases": (
        CompletionRequest,
        {"prompt": "x", "logit_bias": {str(one): 1 for one in range(999)}},
    ),
    "prompts": (CompletionRequest, {"prompt": ["x"] * 999}),
    "ids": (CompletionRequest, {"prompt": [[1]] * 999}),
    "messages": (ChatCompletionRequest, {"messages": [{"role": "user", "content": "x"}] * 999}),
    "words": (CompletionRequest, {"prompt": "x", "bad_words_ids": [[1]] * 999}),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_the_check_of_a_large_body_rests(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each entry, if it is time, while it is parsed and while it is looked at."""
    kind, fields = ENTRIES[name]
    body = json.dumps({"model": "demo", **fields}).encode()
    rests: list[float] = []
    monkeypatch.setattr("asyncgen_apps.serving.time_slices.SLICE", 0.0)
    monkeypatch.setattr("asyncgen_apps.serving.time_slices.time.sleep", rests.append)

    def make(content: object, request_id: str) -> ASGIApp:
        assert len(rests) >= 999
        rests.clear()
        plan_reply(kind.model_validate(content), request_id)
        assert len(rests) >= 999
        raise ApiError(404, "no such model")

    refused = _check_large(make, [body], "1")
    assert isinstance(refused, ApiError) and refused.status == 404
    rests.clear()
    plan_reply(kind.model_validate(json.loads(body)), "1")
    assert not rests  # elsewhere nobody does


@pytest.mark.anyio
async def test_between_pieces_of_large_bodies_the_loop_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The more of them, the longer; a small body comes as fast as it can."""
    rests: list[float] = []

    async def sleep(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr("asyncgen_apps.openai_http.middleware.anyio.sleep", sleep)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        if scope["app"] is not None:
            await scope["app"]()

    async def send(message: Message) -> None:
        raise AssertionError

    limited = BodyLimitMiddleware(app, {"": 10**7}, 1.0)

    async def post(*sizes: int, after: Any = None, between: Any = None) -> None:
        left = list(sizes)

        async def receive() -> Message:
            if between is not None and len(left) == 1:
                await between()
            body = bytes(left.pop(0))
            return {"type": "http.request", "body": body, "more_body": bool(left)}

        scope = {"type": "http", "path": "/v1/x", "method": "POST", "headers": [], "app": after}
        await limited(scope, receive, send)

    await post(LARGE - 2, 1, 1)
    assert rests == []
    await post(LARGE, 1, 1)
    assert rests == [rest(1)]
    await post(LARGE + 1, 1, between=partial(post, LARGE + 1, 1))
    assert rests == [rest(1), rest(1), rest(2)]
    await post(LARGE + 1, 1, after=partial(post, LARGE + 1, 1))
    assert rests[3:] == [rest(1), rest(1)]  # the first one has been read


@pytest.mark.anyio
@for_each(("length", "is_short"), [(b"10", False), (str(LARGE + 1).encode(), True), (None, True)])
async def test_beside_a_large_body_turns_are_short(length: bytes | None, is_short: bool) -> None:
    """From the head on; how large one without a length will be, nobody knows."""
    usual, found = sys.getswitchinterval(), []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(sys.getswitchinterval() < usual)

    async def nothing(*message: Message) -> Any:
        raise AssertionError

    headers = [] if length is None else [(b"content-length", length)]
    scope = {"type": "http", "path": "/v1/x", "method": "POST", "headers": headers}
    await BodyLimitMiddleware(app, {"": 10**7}, 1.0)(scope, nothing, nothing)
    assert found == [is_short] and sys.getswitchinterval() == usual


def not_valid(content: object, request_id: str) -> ASGIApp:
    ChatCompletionRequest.model_validate(content)
    raise AssertionError


def not_here(content: object, request_id: str) -> ASGIApp:
    raise ApiError(404, "no such model")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "make", "status", "word"),
    [
        (PADDED, not_here, 404, b"no such model"),
        (PADDED, not_valid, 400, b"`a` is not supported"),
        (PADDED[:-1], not_valid, 400, b"invalid_json"),
        (b"[" * LARGE * 2, not_valid, 400, b"invalid_json"),
        (b"1" * LARGE * 2, not_valid, 400, b"error"),
        (b"\xff" * LARGE * 2, not_valid, 400, b"invalid_json"),
        (b"[" + b"[]," * (LARGE // 2) + b"0]", not_valid, 400, b"lists and objects"),
    ],
)
async def test_a_large_body_is_refused_by_name(
    body: bytes, make: Any, status: int, word: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncgen_apps.serving.sliced_json.MOST_NESTED", 1000)
    head, sent = await large(body, make, JSON)
    assert head["status"] == status and word in sent["body"]


async def large(body: bytes, make: Any, headers: list[tuple[bytes, bytes]]) -> list[Any]:
    """Return the reply to a large body, which the framework never sees."""
    sent: list[Any] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    async def send(message: Message) -> None:
        sent.append(message)

    async def framework(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError

    scope = {"type": "http", "path": "/x", "method": "POST", "state": {"request_id": "7"}}
    await FastPathMiddleware(framework, {"/x": make})({**scope, "headers": headers}, receive, send)
    return sent
