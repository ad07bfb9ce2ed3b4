"""Replies are written once, whole or as events, and errors find their place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from asyncgen_apps.openai_http.errors import ApiError
from asyncgen_apps.openai_http.response_writer import ResponseWriter
from asyncgen_apps.serving.time_slices import BYTES_OF_A_TURN

if TYPE_CHECKING:
    from starlette.types import Message

pytestmark = pytest.mark.anyio


class Wire:
    """Keeps what was sent."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def __call__(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(one.get("body", b"") for one in self.messages)


async def test_whole() -> None:
    wire = Wire()
    await ResponseWriter(wire).whole({"a": "é"})
    assert wire.body == '{"a":"é"}'.encode()
    assert (b"content-length", b"10") in wire.messages[0]["headers"]


async def test_parts_are_sent_in_pieces_between_which_others_run() -> None:
    wire, turns = Wire(), [0]

    async def count() -> None:
        while True:
            turns[0] += 1
            await anyio.lowlevel.checkpoint()

    parts: list[bytes | bytearray] = [b"a", bytearray(b"b" * 5 * BYTES_OF_A_TURN), b"", b"c"]
    async with anyio.create_task_group() as group:
        group.start_soon(count)
        await ResponseWriter(wire).parts(parts)
        group.cancel_scope.cancel()
    assert wire.body == b"".join(parts)
    assert max(len(one.get("body", b"")) for one in wire.messages) == BYTES_OF_A_TURN
    assert (b"content-length", str(len(wire.body)).encode()) in wire.messages[0]["headers"]
    assert turns[0] >= 4  # of six


async def test_a_stream_of_long_events_lets_others_run() -> None:
    reply, turns = ResponseWriter(Wire()), [0]

    async def count() -> None:
        while True:
            turns[0] += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(count)
        for _ in range(40):
            await reply.lines("x" * (BYTES_OF_A_TURN // 4))
        group.cancel_scope.cancel()
    assert turns[0] >= 8  # of ten


async def test_a_stream() -> None:
    wire = Wire()
    reply = ResponseWriter(wire)
    await reply.begin()
    await reply.begin()
    await reply.events([{"a": 1}, {"b": "\n\n"}])
    await reply.ping()
    await reply.finish()
    assert wire.body == (b'data: {"a":1}\n\ndata: {"b":"\\n\\n"}\n\n: ping\n\ndata: [DONE]\n\n')
    assert not wire.messages[-1].get("more_body")
    await reply.fail(ApiError(500, "late"))
    assert b"late" not in wire.body


async def test_an_error_is_a_status_or_an_event() -> None:
    early = Wire()
    await ResponseWriter(early).fail(ApiError(429, "half \ud800", retry_after=2))
    assert early.messages[0]["status"] == 429
    assert (b"retry-after", b"2") in early.messages[0]["headers"]
    assert json.loads(early.body)["error"]["message"] == "half \ud800"
    late = Wire()
    reply = ResponseWriter(late)
    await reply.begin()
    await reply.fail(ApiError(429, "x"))
    assert late.messages[0]["status"] == 200
    assert late.body.startswith(b'data: {"error":')
