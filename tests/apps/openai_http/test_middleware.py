"""Keys in constant time, bodies in time, the short way; over real HTTP, the rest is in test_app."""

from __future__ import annotations

import hmac
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from asyncgen_apps.openai_http.failures import ApiError
from asyncgen_apps.openai_http.middleware import Keys, TakeShortWay
from tests.apps.openai_http.running import running
from tests.apps.openai_http.test_answer import scripted

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from tests.apps.openai_http.running import Running


@given(keys=st.lists(st.text(min_size=1), min_size=1), other=st.text())
def test_keys(keys: list[str], other: str) -> None:
    known = Keys([key for key in keys if key.isascii()])
    assert all(known.accepts(key) for key in keys if key.isascii())
    if other not in keys:
        assert not known.accepts(other)
    assert bool(Keys(()).accepts(other)) is False


def test_all_keys_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def compare(given: bytes, known: bytes) -> bool:
        seen.append(known)
        return given == known

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert Keys(("a", "b", "c")).accepts("a")
    assert len(seen) == 3
    assert {len(one) for one in seen} == {32}


def test_a_body_that_does_not_come() -> None:
    with running(scripted(), body_seconds=0.1) as served:
        with socket.create_connection(("127.0.0.1", served.port), 10) as wire:
            wire.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n"
                b"Content-Type: application/json\r\n\r\n{"
            )
            assert b" 408 " in wire.recv(1000)


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
    """What came out at the end of the short way, or at that of the long one."""
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
    await TakeShortWay(framework, {"/x": make})(
        {**asked, "headers": headers, **scope}, receive, send
    )
    assert left == []
    return seen


@pytest.mark.anyio
async def test_a_body_in_pieces_takes_the_short_way() -> None:
    assert await walk(PIECES, JSON, None) == [({"a": 1}, "7")]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("pieces", "headers", "answer", "scope"),
    [
        (PIECES, JSON, ValueError("no"), {}),
        (PIECES, JSON, ApiError(400, "no"), {}),
        ([{"type": "http.request", "body": b"{"}], JSON, None, {}),
        ([{"type": "http.request", "body": b"[" * 100_000}], JSON, None, {}),
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
