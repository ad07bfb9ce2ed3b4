"""Answer clients of HTTP/1.0, which know no chunks: their body ends with the connection.

uvicorn sends chunks to all. Such a connection carries one request, and it ends behind the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import Message, Send
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def unframed(cycle: RequestResponseCycle) -> Send:
    """Return a way to send the answer to a request of HTTP/1.0.

    Args:
        cycle: The request, and the answer to it.
    """
    has_length = True
    write: Any = cycle.send

    async def send(message: Message) -> None:
        nonlocal has_length
        if message["type"] == "http.response.start":
            names = [name.lower() for name, _ in message.get("headers", ())]
            has_length = b"content-length" in names
            if not has_length:
                cycle.chunked_encoding = False
        elif not has_length:
            cycle.expected_content_length = len(message.get("body", b""))
        await write(message)

    return send
