"""Writes a reply: as one JSON object, or as server-sent events.

Knows ASGI messages and JSON; not what is in them.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from starlette.types import Send

    from asyncgen_apps.openai_http.errors import ApiError


encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
encode_text = json.encoder.encode_basestring
encode_ascii = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

PING = ": still here\n\n"
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

    async def parts(self, parts: Sequence[bytes]) -> None:
        """Send one JSON object in several writes, and end.

        Args:
            parts: Its bytes; one reply may have many megabytes.
        """
        length = str(sum(map(len, parts))).encode()
        head = [(b"content-type", b"application/json"), (b"content-length", length)]
        self.is_finished = True
        await self._send({"type": "http.response.start", "status": 200, "headers": head})
        for number, part in enumerate(parts, 1):
            self.is_sending = True
            self.sent_at = time.monotonic()
            more = number < len(parts)
            await self._send({"type": "http.response.body", "body": part, "more_body": more})
            self.is_sending = False

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
