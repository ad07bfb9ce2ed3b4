"""Writes a reply: as one JSON object, or as server-sent events.

Knows ASGI messages and JSON; not what is in them.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import anyio.lowlevel

from asyncgen_apps.serving.time_slices import BYTES_OF_A_TURN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from starlette.types import Send

    from asyncgen_apps.openai_http.errors import ApiError


encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
encode_text = json.encoder.encode_basestring
encode_ascii = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

PING = ": ping\n\n"
DONE = "data: [DONE]\n\n"
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


MARK = "\N{OBJECT REPLACEMENT CHARACTER}"


def event_line(content: object) -> str:
    """Encode one event."""
    return f"data: {encode(content)}\n\n"


class EventTemplate:
    """Encoded event of a piece of text, with a gap for the text.

    Of thousands of pieces only the text differs: laying out and encoding all the rest each time
    is most of what a piece costs.
    """

    def __init__(self, content: object) -> None:
        """Prepare it.

        Args:
            content: The event, with :data:`MARK` in place of its text.
        """
        self._head, self._tail = event_line(content).split(encode(MARK))

    def line(self, text: str) -> str:
        """Encode the event of a piece of text."""
        return f"{self._head}{encode_text(text)}{self._tail}"


class ResponseWriter:
    """Writes one reply: a JSON object, or server-sent events.

    Attributes:
        is_streaming: True after the head of a stream.
        is_finished: True after the last write.
        sent_at: Start of the last write, in seconds of the monotonic clock.
        is_sending: True while a write waits for the client to read.
    """

    def __init__(self, send: Send) -> None:
        """Wrap the sending end of an HTTP connection."""
        self._send = send
        self.is_streaming = False
        self.is_finished = False
        self.is_sending = False
        self.sent_at = time.monotonic()
        self._num_since = 0

    async def whole(
        self, content: object, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send one JSON object and end.

        Args:
            content: Object to send.
            status: HTTP status.
            headers: Further headers, in lower case.
        """
        # A message may quote what the client sent, half characters included.
        text = encode(content) if status == 200 else encode_ascii(content)
        body = text.encode()
        head = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *((name.encode(), value.encode()) for name, value in (headers or {}).items()),
        ]
        self.is_finished = True
        await self._send({"type": "http.response.start", "status": status, "headers": head})
        await self._send({"type": "http.response.body", "body": body})

    async def parts(self, parts: Sequence[bytes | bytearray]) -> None:
        """Send one JSON object and end; between `BYTES_OF_A_TURN` bytes others have their turn.

        Args:
            parts: Its bytes, in parts of any length; one reply may have many megabytes.
        """
        length = str(sum(map(len, parts))).encode()
        head = [(b"content-type", b"application/json"), (b"content-length", length)]
        self.is_finished = True
        await self._send({"type": "http.response.start", "status": 200, "headers": head})
        for piece in _pieces(parts):
            self.is_sending = True
            self.sent_at = time.monotonic()
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
            self.is_sending = False
            await anyio.lowlevel.checkpoint()
        await self._send({"type": "http.response.body", "body": b""})

    async def begin(self) -> None:
        """Send the head of a stream, once."""
        if self.is_streaming:
            return
        self.is_streaming = True
        head = {"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS}
        await self._send(head)

    async def events(self, objects: Iterable[object]) -> None:
        """Send events in one write."""
        await self.lines("".join(map(event_line, objects)))

    async def lines(self, text: str, *, more: bool = True) -> None:
        """Send encoded events in one write, after the head.

        Args:
            text: The events.
            more: True if anything comes after them.
        """
        if not self.is_streaming:
            await self.begin()
        self.is_sending = True
        self.sent_at = time.monotonic()
        body = {"type": "http.response.body", "body": text.encode(), "more_body": more}
        await self._send(body)
        self.is_sending = False
        self._num_since += len(text)
        if self._num_since >= BYTES_OF_A_TURN:
            self._num_since = 0
            await anyio.lowlevel.checkpoint()

    async def ping(self) -> None:
        """Send a comment, which readers of events skip."""
        await self.lines(PING)

    async def finish(self) -> None:
        """End a stream that went well."""
        self.is_finished = True
        await self.lines(DONE, more=False)

    async def fail(self, error: ApiError) -> None:
        """Send an error: as a status before the head, as an event after it."""
        if self.is_finished:
            return
        if not self.is_streaming:
            await self.whole(error.body(), error.status, error.headers())
            return
        self.is_finished = True
        await self.lines(f"data: {encode_ascii(error.body())}\n\n", more=False)


def _pieces(parts: Iterable[bytes | bytearray]) -> Iterator[bytes]:
    """Join small parts and cut large ones, to pieces of `BYTES_OF_A_TURN` bytes."""
    piece = bytearray()
    for part in parts:
        for start in range(0, len(part), BYTES_OF_A_TURN):
            piece += part[start : start + BYTES_OF_A_TURN]
            while len(piece) >= BYTES_OF_A_TURN:
                yield bytes(piece[:BYTES_OF_A_TURN])
                del piece[:BYTES_OF_A_TURN]
    if piece:
        yield bytes(piece)
