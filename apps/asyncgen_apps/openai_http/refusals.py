"""Refuse requests, or a part of them, before an application sees them: what is said, and how.

Knows the bytes of a response; not when a connection is refused.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from asyncgen_apps.openai_http.errors import SERVER, ApiError
from asyncgen_apps.openai_http.response_writer import ResponseWriter
from asyncgen_apps.serving.origins import host_fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send


ALWAYS_OPEN = frozenset({"/health", "/ready"})
"""Paths that are answered also when there are too many connections."""

_OFFERS = (b"upgrade", b"http2-settings")

MOST_FIELDS = 256
"""Headers of a request, and parameters in its query. A head of the longest length has room for
thousands of them, which take the framework 30 ms."""

FULL_SECONDS = 2.0
"""When to come back to a server that has too many connections."""


def response(error: ApiError, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the bytes of a response behind which the connection ends.

    Args:
        error: What is said.
        headers: Of all responses.
    """
    body = json.dumps(error.body()).encode()
    content = [
        *headers,
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        *((name.encode(), value.encode()) for name, value in error.headers().items()),
    ]
    lines = b"".join(b"%b: %b\r\n" % header for header in content)
    return STATUS_LINE[error.status] + lines + b"\r\n" + body


def application(error: ApiError) -> ASGIApp:
    """Return an application that answers with an error, and closes the connection."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await ResponseWriter(_closing(send)).fail(error)

    return refuse


class FullApp:
    """Application that answers on connections beyond the limit."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap the application that answers the health paths."""
        self._app = app
        self._refuse = application(full())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the health paths only; then close the connection."""
        if scope["path"] in ALWAYS_OPEN:
            await self._app(scope, receive, _closing(send))
        else:
            await self._refuse(scope, receive, send)


def without_upgrade(
    method: bytes, url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]
) -> bytes:
    """Return the head of a request without its offer to go on in another protocol.

    Args:
        method: Of the request.
        url: As it was sent.
        version: Of HTTP.
        headers: Names in lower case, and values.
    """
    lines = [b"%b %b HTTP/%b" % (method, url, version.encode())]
    for name, value in headers:
        if name == b"connection":
            kept = [one.strip() for one in value.split(b",") if one.strip().lower() not in _OFFERS]
            value = b", ".join(kept)
        if name not in _OFFERS and (value or name != b"connection"):
            lines.append(name + b": " + value)
    return b"\r\n".join([*lines, b"", b""])


def full() -> ApiError:
    """Return the error for a connection beyond the limit."""
    message = "the server has as many connections as it takes; try again"
    return ApiError(503, message, SERVER, code="overloaded", retry_after=FULL_SECONDS)


def long_head(most: int) -> ApiError:
    """Return the error for a head beyond the limit."""
    message = f"the head of the request is longer than {most} bytes, the most of this server"
    return ApiError(431, message, code="head_too_large")


def of_head(url: bytes, headers: Sequence[tuple[bytes, bytes]], version: str) -> ApiError | None:
    """Return the error for a head that is not served; ``None`` if it may be.

    Args:
        url: Target of the request, as it was sent.
        headers: Names in lower case, and values.
        version: Of HTTP.
    """
    if version not in ("1.1", "1.0"):
        message = f"HTTP/{version} is not spoken here; HTTP/1.1 is"
        return ApiError(505, message, code="unknown_version")
    if len(headers) > MOST_FIELDS:
        message = f"the request has {len(headers)} headers; at most {MOST_FIELDS} are taken"
        return ApiError(431, message, code="too_many_headers")
    if url.count(b"&") >= MOST_FIELDS:
        message = f"the query has more than {MOST_FIELDS} parameters, the most that are taken"
        return ApiError(414, message, code="too_many_parameters")
    hosts = [value.strip().decode("latin-1") for name, value in headers if name == b"host"]
    fault = host_fault(hosts, version)
    if fault is not None:
        return ApiError(400, fault, code="invalid_host")
    if b"://" in url and not url.startswith(b"/"):
        target = url.partition(b"://")[2].partition(b"/")[0].rpartition(b"@")[2].lower()
        if [target] != [host.lower().encode("latin-1") for host in hosts]:
            message = "the target of the request names another host than its `Host` header"
            return ApiError(400, message, code="unknown_host")
    return None


def no_content(most: int) -> ApiError:
    """Return the error for a body whose chunks hold too little of it."""
    message = f"{most} bytes of the body's chunks are no content (extensions, trailers)"
    return ApiError(400, message, code="invalid_http")


def invalid() -> ApiError:
    """Return the error for what cannot be parsed."""
    return ApiError(400, "this is not a request of HTTP/1.1", code="invalid_http")


def slow_head(seconds: float) -> ApiError:
    """Return the error for a head that did not come in time."""
    message = f"the head of the request did not come in {seconds:g} s"
    return ApiError(408, message, code="head_timeout")


def slow_body(rate: int) -> ApiError:
    """Return the error for a body that is too slow."""
    return ApiError(408, f"the body came slower than {rate} bytes a second", code="body_timeout")


def _closing(send: Send) -> Send:
    """Close the connection behind the answer."""

    async def last(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await send(message)

    return last
