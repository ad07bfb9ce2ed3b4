"""Refuse what the page does not take: files, orders from other sites, bodies that are dear to read.

Gradio parses a body in the event loop, walks its values one by one, and keeps what they hold. So a
body is bounded before Gradio sees it, in bytes and in values. Plain ASGI; knows Gradio's paths.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
from starlette.requests import HTTPConnection

from asyncgen_apps.gradio_chat.endpoints import CALLED, called_by
from asyncgen_apps.gradio_chat.json_bounds import too_complex
from asyncgen_apps.gradio_chat.session_bytes import size_of
from asyncgen_apps.gradio_chat.sessions import client_id
from asyncgen_apps.serving.client_turns import TurnsOnLoop
from asyncgen_apps.serving.clients import Proxies
from asyncgen_apps.serving.get_turns import HAS_LEFT
from asyncgen_apps.serving.limits import SMALL
from asyncgen_apps.serving.origins import header_of, is_own_origin, refuse_request
from asyncgen_apps.serving.sliced_json import RepeatedKeyError, unique_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send


MAX_BODY_BYTES = 4 * 2**20
"""Default limit of an event of the page: what the browser keeps, at most 1.5 MB, and a question."""

MOST_VALUES = 8192
"""Most values and keys of a body: Gradio takes up to 5 µs for each. An event of the page has 200,
and a call of the API 6 for each message of its history."""

EVENT = "asyncgen.chat.event"
"""Key of a scope: session and bytes of the event in its body."""

MOST_KEY = 128
"""Longest name of a session; Gradio's own have 11 characters."""

_OTHER_BODY_BYTES = 64 * 1024
"""Longest body of a path that takes no events, which is the login."""

_BODY_SECONDS = 60.0
"""Within which a body must have come."""

_MOST_READING = 64 * 2**20
"""Most bytes of all bodies that are on their way; those of one client have half of it."""

_NO_PROXIES = Proxies(())
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_PAGE_API = re.compile(r"/gradio_api(?:/(?P<first>[^/]*))?")
_SESSION = re.compile(r"/gradio_api/heartbeat/(?P<key>[^/]*)")
_OPEN_TO_PAGE = frozenset(
    """
    api app_id call cancel heartbeat info login_check openapi.json queue reset run startup-events
    theme.css token user
    """.split()
)
"""Paths that a chat page needs. Gradio's other paths store or fetch files."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Status, code and message of an error."""

    status: int
    code: str
    message: str


class GuardPage:
    """Middleware of a chat page that lets only what is harmless and cheap through to Gradio."""

    def __init__(
        self, app: ASGIApp, origins: Sequence[str] = (), max_body_bytes: int = MAX_BODY_BYTES
    ) -> None:
        """Wrap the page's application.

        Args:
            app: The application.
            origins: Origins whose pages are allowed besides its own; ``"*"`` is any.
            max_body_bytes: Most bytes of an event.
        """
        self._app = app
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._max_body_bytes = max_body_bytes
        self._turns = TurnsOnLoop()
        self._reading: Counter[str] = Counter()  # bytes on their way, by client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the path and the origin of a request, then its body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refuse_head(scope)
        if refusal is None and scope["method"] not in _SAFE_METHODS:
            try:
                body = await self._checked_body(scope, receive)
            except _ClientGone:
                return
            refusal = body if isinstance(body, _Refusal) else None
            receive = _ReplayedBody(b"" if isinstance(body, _Refusal) else body, receive)
        if refusal is not None:
            await refuse_request(scope, send, refusal.status, refusal.code, refusal.message)
            return
        await self._app(scope, receive, send)

    def _refuse_head(self, scope: Scope) -> _Refusal | None:
        """Say what is wrong with a request before its body."""
        path = _PAGE_API.search(scope["path"])
        if path is not None and (path["first"] or "") not in _OPEN_TO_PAGE:
            message = f"{path[0][:100]} is closed: this page takes and gives no files"
            return _Refusal(403, "closed", message)
        session = _SESSION.search(scope["path"])
        if session is not None and len(session["key"]) > MOST_KEY:
            return _long_key(session["key"])
        if scope["method"] not in _SAFE_METHODS and not self._allows(scope):
            return _Refusal(403, "bad_origin", "pages of other sites may not do this here")
        return None

    def _allows(self, scope: Scope) -> bool:
        """Tell whether a request comes from an allowed page, or from no page at all."""
        origin = header_of(scope, b"origin")
        if "*" in self._origins or (origin or "").lower() in self._origins:
            return True
        site = header_of(scope, b"sec-fetch-site")
        if site is not None:  # the browser's own header also holds behind a proxy
            return site in ("same-origin", "none")
        return origin is None or is_own_origin(origin, header_of(scope, b"host"))

    async def _checked_body(self, scope: Scope, receive: Receive) -> bytes | _Refusal:
        """Read a body and look at it; its bytes count until then, also while it waits for a turn.

        Raises:
            _ClientGone: The client has disconnected.
        """
        client, parts = client_of(scope), list[bytes]()
        try:
            body = await self._read(scope, receive, client, parts)
            if isinstance(body, _Refusal):
                return body
            if len(body) > SMALL:
                refusal = await self._turns.run(client, _refuse_body_in_turn, scope, body)
            else:
                refusal = _refuse_body(scope, body)
            return body if refusal is None else refusal
        finally:
            self._reading[client] -= sum(map(len, parts))
            if not self._reading[client]:
                del self._reading[client]

    async def _read(
        self, scope: Scope, receive: Receive, client: str, parts: list[bytes]
    ) -> bytes | _Refusal:
        """Read a body, unless it is too long or too slow.

        Args:
            scope: Of the request.
            receive: Gives the body.
            client: Whose it is.
            parts: Gets what was read, and counted.

        Raises:
            _ClientGone: The client has disconnected.
        """
        is_event = _PAGE_API.search(scope["path"]) is not None
        limit = self._max_body_bytes if is_event else _OTHER_BODY_BYTES
        length = header_of(scope, b"content-length") or ""
        size = int(length[:20]) if length.isdecimal() else 0
        read = 0
        with anyio.move_on_after(_BODY_SECONDS):
            while max(size, read) <= limit:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _ClientGone
                parts.append(message.get("body", b""))
                read += len(parts[-1])
                self._reading[client] += len(parts[-1])
                share = max(_MOST_READING // 2, limit)
                if self._reading[client] > share or self._reading.total() > 2 * share:
                    whose = "your bodies" if self._reading[client] > share else "bodies"
                    reason = f"{whose} on their way have too many bytes"
                    return _Refusal(429, "chat_full", f"{reason}: try again later")
                if not message.get("more_body", False) and read <= limit:
                    parts[:] = [b"".join(parts)]
                    return parts[0]
        if max(size, read) <= limit:
            return _Refusal(408, "body_timeout", f"the body did not come in {_BODY_SECONDS} s")
        option = "; see --chat-max-body, launch_options(max_body_bytes=…)" if is_event else ""
        reason = f"the body is larger than {limit} bytes, the most of this page{option}"
        return _Refusal(413, "request_too_large", reason)


def client_of(scope: Scope) -> str:
    """Say whom a request belongs to."""
    page = scope["app"].get_blocks() if "app" in scope else None
    return client_id(HTTPConnection(scope), getattr(page, "proxies", _NO_PROXIES))


class _ReplayedBody:
    """Receives a body that was read before, then further messages."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


class _ClientGone(Exception):
    """Raised if the client disconnects before its body was looked at."""


class _FileNamed(Exception):
    """Raised for an object in a body that names a file."""


def _refuse_body_in_turn(scope: Scope, body: bytes) -> _Refusal | None:
    """Do what `_refuse_body` does, unless the client has left while it waited.

    Raises:
        _ClientGone: It has.
    """
    if scope.get(HAS_LEFT, bool)():
        raise _ClientGone
    return _refuse_body(scope, body)


def _refuse_body(scope: Scope, body: bytes) -> _Refusal | None:
    """Say what is wrong with an event; Gradio itself refuses JSON that is no event."""
    if not body or _PAGE_API.search(scope["path"]) is None:
        return None
    if b"\0" in body:
        return _Refusal(400, "invalid_json", "the body is not JSON in UTF-8")
    reason = too_complex(body, MOST_VALUES)
    if reason is not None:
        return _Refusal(413, "too_complex", f"the body {reason}, the most of this page")
    try:
        event = json.loads(body.decode(), object_pairs_hook=_checked_object)
        if b"\\u" in body:
            json.dumps(event, ensure_ascii=False).encode()
    except _FileNamed:
        return _Refusal(403, "closed", "the body names a file: this page takes none")
    except RepeatedKeyError as error:
        return _Refusal(400, "repeated_key", error.msg)
    except UnicodeEncodeError:
        return _Refusal(400, "invalid_json", "the body has half a surrogate pair")
    except ValueError:
        return _Refusal(400, "invalid_json", "the body is not JSON in UTF-8")
    key = event.get("session_hash") if isinstance(event, dict) else None
    key = key if isinstance(key, str) else ""
    scope[CALLED] = called_by(event)
    scope[EVENT] = key, len(body) + size_of(event)
    return _long_key(key) if len(key) > MOST_KEY else None


def _checked_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its entries, unless it names a file."""
    found = unique_keys(pairs)
    if str(found.get("_type", "")).startswith("gradio."):
        raise _FileNamed
    return found


def _long_key(key: str) -> _Refusal:
    message = f"`session_hash` has {len(key)} characters: at most {MOST_KEY}"
    return _Refusal(400, "bad_session", message)
