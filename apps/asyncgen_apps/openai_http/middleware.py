"""What stands before the routes: names for requests, keys, a limit for bodies, and a short way.

Plain ASGI, so that nothing stands between a stream and its client. Knows no engine.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from typing import TYPE_CHECKING

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException

from asyncgen_apps.openai_http.failures import ApiError
from asyncgen_apps.openai_http.reply import Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    Answers = Mapping[str, Callable[[object, str], ASGIApp]]
    """For a path, what makes the answer to a JSON body, of a request with this id."""


STREAM_PATH = "/v1/stream"
REQUEST_ID = "x-request-id"
_SAFE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


class NameRequests:
    """Gives every request an id, the client's where it sent a sane one, and returns it."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Name the request in ``scope["state"]["request_id"]`` and in the reply's headers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        name = given if _SAFE_ID.fullmatch(given) else secrets.token_hex(12)
        scope.setdefault("state", {})["request_id"] = name

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = name
            await send(message)

        await self._app(scope, receive, named)


class Keys:
    """The keys that are good; comparing takes the same time whatever the key."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Keep the digests of the keys."""
        self._digests = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        """Whether a key is needed at all."""
        return bool(self._digests)

    def accepts(self, key: str) -> bool:
        """Compare a key with all of ours."""
        digest = _digest(key.encode(errors="replace"))
        # All are compared: which one it is, or that the first differs, must not show in the time.
        matches = [hmac.compare_digest(digest, one) for one in self._digests]
        return any(matches)


class RequireKey:
    """Lets requests below ``/v1`` through only with a key."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        """Wrap an application."""
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look at the ``Authorization`` header.

        Browsers cannot send one with a WebSocket, so the streams look themselves, also at their
        first message; no other WebSocket is opened below ``/v1``.
        """
        if scope["type"] == "websocket" and self._keys and _is_api(scope["path"]):
            if scope["path"] != STREAM_PATH:
                await send({"type": "websocket.close", "code": 1008, "reason": "no such path"})
                return
        if scope["type"] == "http" and self._keys and _is_api(scope["path"]):
            refused = self._refusal(Headers(scope=scope).get("authorization", ""))
            if refused is not None:
                await Reply(send).fail(refused)
                return
        await self._app(scope, receive, send)

    def _refusal(self, header: str) -> ApiError | None:
        scheme, _, key = header.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            message = "no API key: send `Authorization: Bearer <key>`"
        elif not self._keys.accepts(key.strip()):
            message = "this API key is not valid"
        else:
            return None
        return ApiError(401, message, "authentication_error", code="invalid_api_key")


class LimitBody:
    """Refuses bodies that are too large, by their length or as soon as they are, or too slow."""

    def __init__(self, app: ASGIApp, limit: int, seconds: float) -> None:
        """Wrap an application.

        Args:
            app: The application.
            limit: Bytes.
            seconds: Time from the head to the end of the body.
        """
        self._app = app
        self._limit = limit
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count what the application reads of the requests below ``/v1``."""
        if scope["type"] != "http" or not _is_api(scope["path"]):
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self._limit:
            await Reply(send).fail(too_large(self._limit))
            return
        read = 0
        is_whole = False
        deadline = anyio.current_time() + self._seconds

        async def counted() -> Message:
            nonlocal read, is_whole
            if is_whole:
                return await receive()  # the body is complete: this waits for the client to leave
            with anyio.CancelScope(deadline=deadline) as waiting:
                message = await receive()
            if waiting.cancelled_caught:
                raise HTTPException(408, detail=f"the body did not come in {self._seconds} s")
            if message["type"] == "http.request":
                is_whole = not message.get("more_body", False)
                read += len(message.get("body", b""))
                if read > self._limit:
                    # The one exception that the framework hands on while it reads a body.
                    raise HTTPException(413, detail=str(too_large(self._limit)))
            return message

        await self._app(scope, counted, send)


class TakeShortWay:
    """Answers well-formed requests directly; leaves all others, and all errors, to the framework.

    The framework's way to a route takes longer than the rest of a request's, and of many that
    come at once each waits for all before it.
    """

    def __init__(self, app: ASGIApp, answers: Answers) -> None:
        """Wrap an application.

        Args:
            app: The application; it has routes of the same paths.
            answers: Raise a ``ValueError`` or an ``ApiError`` for what they do not take; the
                application then gets the request, and says so.
        """
        self._app = app
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, and answer it or hand it on."""
        make = self._answers.get(scope["path"]) if scope["type"] == "http" else None
        if make is None or scope["method"] != "POST" or not _is_json(scope):
            await self._app(scope, receive, send)
            return
        body = _Body(receive)
        if await body.read():
            try:
                # Too deep to be parsed is not JSON either.
                answer = make(json.loads(body.content), scope["state"]["request_id"])
            except (ValueError, RecursionError, ApiError):
                pass
            else:
                await answer(scope, receive, send)
                return
        await self._app(scope, body.receive, send)


class _Body:
    """A body that is read here and may be read once more."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._messages: list[Message] = []
        self._failure: HTTPException | None = None

    @property
    def content(self) -> bytes:
        """What was read."""
        return b"".join([message.get("body", b"") for message in self._messages])

    async def read(self) -> bool:
        """Read to the end; return whether it came."""
        try:
            while True:
                message = await self._receive()
                self._messages.append(message)
                if message["type"] != "http.request":
                    return False
                if not message.get("more_body", False):
                    return True
        except HTTPException as failure:
            self._failure = failure
            return False

    async def receive(self) -> Message:
        """Give again what was read, and how it ended; then what comes."""
        if self._messages:
            return self._messages.pop(0)
        if self._failure is not None:
            raise self._failure
        return await self._receive()


def _is_json(scope: Scope) -> bool:
    """Whether a body is JSON beyond doubt."""
    kinds = [value for name, value in scope["headers"] if name == b"content-type"]
    return len(kinds) == 1 and kinds[0].partition(b";")[0].strip().lower() == b"application/json"


def too_large(limit: int) -> ApiError:
    """What the sender of a body beyond ``limit`` bytes hears."""
    message = f"the body is larger than {limit} bytes, the most of this server"
    return ApiError(413, message, code="request_too_large")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _is_api(path: str) -> bool:
    return path == "/v1" or path.startswith("/v1/")
