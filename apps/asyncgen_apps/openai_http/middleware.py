"""Middleware before the routes: request ids, keys, body limits, and a fast path.

Plain ASGI, so that nothing stands between a stream and its client. Knows no engine.
"""

from __future__ import annotations

import json
import re
import secrets
from contextlib import nullcontext
from typing import TYPE_CHECKING

import anyio
from pydantic import ValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException

from asyncgen_apps.openai_http.errors import ApiError, from_validation
from asyncgen_apps.openai_http.response_writer import ResponseWriter
from asyncgen_apps.serving.client_turns import ClientTurns, TurnsOnLoop
from asyncgen_apps.serving.clients import ANYBODY, bearer_key
from asyncgen_apps.serving.get_turns import HAS_LEFT
from asyncgen_apps.serving.limits import LARGE, LARGE_AT_ONCE, MOST_LARGE, MOST_OF_LARGE, SMALL
from asyncgen_apps.serving.origins import route_path
from asyncgen_apps.serving.shared_budget import SharedBudget
from asyncgen_apps.serving.sliced_json import (
    RepeatedKeyError,
    TooManyNested,
    decoded,
    parse,
    unique_keys,
)
from asyncgen_apps.serving.time_slices import rest, short_turns, slices

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from asyncgen_apps.serving.clients import Client, Keys, Proxies

    Answers = Mapping[str, Callable[[object, str], ASGIApp]]
    """For a path, what makes the answer to a JSON body, of a request with this id."""


STREAM_PATH = "/v1/stream"
REQUEST_ID = "x-request-id"
_SAFE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


class RequestIdMiddleware:
    """Gives every request an id, the client's if it is valid, and returns it in a header."""

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


class ApiKeyMiddleware:
    """Requires a key below ``/v1``, and notes the client of each request."""

    def __init__(
        self, app: ASGIApp, keys: Keys, proxies: Proxies, also: Collection[str] = ()
    ) -> None:
        """Wrap an application.

        Args:
            app: The application.
            keys: None of them lets everybody in.
            proxies: Whose word about an address is taken, where there are no keys.
            also: Further paths that need a key.
        """
        self._app = app
        self._keys = keys
        self._proxies = proxies
        self._also = also

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look at the ``Authorization`` header; the client is in ``scope["state"]["client"]``.

        Browsers cannot send one with a WebSocket, so the streams look themselves, also at their
        first message; no other WebSocket is opened below ``/v1``.
        """
        kind = scope["type"]
        path = route_path(scope) if kind in ("http", "websocket") else ""
        if kind == "websocket" and self._keys and _is_api(path) and path != STREAM_PATH:
            await send({"type": "websocket.close", "code": 1008, "reason": "no such path"})
            return
        if kind == "http" and (_is_api(path) or path in self._also):
            client = self._client(scope)
            if isinstance(client, ApiError):
                await ResponseWriter(send).fail(client)
                return
            scope.setdefault("state", {})["client"] = client
        await self._app(scope, receive, send)

    def _client(self, scope: Scope) -> Client | ApiError:
        if not self._keys:
            return self._proxies.client_of(scope)
        headers = Headers(scope=scope)
        key, found = bearer_key(", ".join(headers.getlist("authorization"))), None
        if key is None:
            message = "no API key: send `Authorization: Bearer <key>`"
        else:
            found = self._keys.find(key)
            message = "this API key is not valid"
        return found or ApiError(401, message, "authentication_error", code="invalid_api_key")


class BodyLimitMiddleware:
    """Refuses bodies that are too large, by their length or as soon as they are, or too slow.

    Those above `LARGE` share a budget, from their first bytes until they are answered: parsed, they
    take more memory than before.
    """

    def __init__(
        self, app: ASGIApp, limits: Mapping[str, int], seconds: float, *, is_shared: bool = True
    ) -> None:
        """Wrap an application.

        Args:
            app: The application.
            limits: Bytes, by path; ``""`` stands for all others.
            seconds: Time from the head to the end of the body.
            is_shared: False where all bodies come from one client.
        """
        self._app = app
        self._limits = limits
        self._seconds = seconds
        most = max(MOST_LARGE, MOST_OF_LARGE * max(limits.values()))
        self._bytes = SharedBudget(most, is_shared=is_shared)
        self._large: set[object] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count what the application reads of the requests below ``/v1``."""
        path = route_path(scope) if scope["type"] == "http" else ""
        if not (_is_api(path) or (path and path in self._limits)):
            await self._app(scope, receive, send)
            return
        limit = self._limits.get(path, self._limits[""])
        headers = Headers(scope=scope)
        if scope["method"] == "POST" and (unread := _unread(headers)) is not None:
            await ResponseWriter(send).fail(unread)
            return
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > limit:
            await ResponseWriter(send).fail(too_large(limit))
            return
        read = kept = 0
        is_whole = False
        state = scope.setdefault("state", {})
        client = state.get("client", ANYBODY).id
        deadline = anyio.current_time() + self._seconds

        async def counted() -> Message:
            nonlocal read, kept, is_whole
            if is_whole:
                return await receive()  # the body is complete: this waits for the client to leave
            with anyio.CancelScope(deadline=deadline) as waiting:
                message = await receive()
            if waiting.cancelled_caught:
                raise HTTPException(408, detail=f"the body did not come in {self._seconds} s")
            if message["type"] == "http.request":
                is_whole = not message.get("more_body", False)
                read += len(message.get("body", b""))
                if read > limit:
                    # The one exception that the framework hands on while it reads a body.
                    raise HTTPException(413, detail=str(too_large(limit)))
                if read > LARGE:
                    self._keep(client, read - kept)
                    kept = read
                await self._let_others_read(counted, is_whole or read <= LARGE)
            return message

        is_small = length.isdecimal() and int(length[:20]) <= LARGE
        with nullcontext() if is_small else short_turns():
            try:
                await self._app(scope, counted, send)
            finally:
                self._large.discard(counted)
                self._bytes.give_back(client, kept)

    def _keep(self, client: str, num_bytes: int) -> None:
        """Count bytes of a large body, or refuse it."""
        if not self._bytes.take(client, num_bytes):
            reason = self._bytes.refusal(client, "MiB of large bodies are read or answered", 2**20)
            raise HTTPException(429, f"{reason}; try again", {"retry-after": "1"})

    async def _let_others_read(self, reader: object, is_done: bool) -> None:
        """Rest after a piece of a large body, so that all of them leave half of the time.

        Args:
            reader: Key of the reader.
            is_done: True if the body is whole, or not large.
        """
        if is_done:
            self._large.discard(reader)
        else:
            self._large.add(reader)
            await anyio.sleep(rest(len(self._large)))


class FastPathMiddleware:
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
        self._large = ClientTurns(LARGE_AT_ONCE)
        self._turns = TurnsOnLoop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, and answer it or hand it on."""
        make = self._answers.get(route_path(scope)) if scope["type"] == "http" else None
        if make is None or scope["method"] != "POST" or not _may_be_json(scope):
            await self._app(scope, receive, send)
            return
        body = _ReplayableBody(receive)
        if await body.read():
            state, pieces = scope["state"], body.pieces
            name = state["request_id"]
            size = sum(map(len, pieces))
            if size > SMALL:
                client = state.get("client", ANYBODY).id
                has_left = scope.get(HAS_LEFT, bool)
                if size > LARGE:
                    checked = await self._large.run(
                        client, _check_large, make, pieces, name, has_left
                    )
                else:
                    checked = await self._turns.run(client, _check, make, pieces, name, has_left)
                del body, pieces
                if isinstance(checked, ApiError):
                    await ResponseWriter(send).fail(checked)
                elif checked is not None:
                    await checked(scope, receive, send)
                return
            if _is_json(scope):
                try:
                    # Too deep to be parsed is not JSON either.
                    text = decoded(b"".join(pieces))
                    answer = make(json.loads(text, object_pairs_hook=unique_keys), name)
                except (ValueError, RecursionError, ApiError):
                    pass
                else:
                    await answer(scope, receive, send)
                    return
        await self._app(scope, body.receive, send)


class _ReplayableBody:
    """Body that is read here and can be read once more."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._messages: list[Message] = []
        self._failure: HTTPException | None = None

    @property
    def pieces(self) -> list[bytes]:
        """Parts of the body that were read."""
        return [message.get("body", b"") for message in self._messages]

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


def _parse_at_once(content: bytes) -> object:
    return json.loads(decoded(content), object_pairs_hook=unique_keys)


class _ClientLeft(Exception):
    """Raised amid the work for a client that is gone."""


def _check_large(
    make: Callable[[object, str], ASGIApp],
    pieces: list[bytes],
    name: str,
    has_left: Callable[[], bool] = bool,
) -> ASGIApp | ApiError | None:
    """Make the answer to a large body, or return its error; on a worker thread.

    Returns:
        Either, or ``None`` if the client has left: its body would only keep others waiting.
    """

    def check() -> None:
        if has_left():
            raise _ClientLeft

    with slices(check):
        return _check(make, pieces, name, has_left, parse)


def _check(
    make: Callable[[object, str], ASGIApp],
    pieces: list[bytes],
    name: str,
    has_left: Callable[[], bool],
    read: Callable[[bytes], object] = _parse_at_once,
) -> ASGIApp | ApiError | None:
    """Make the answer to a body as `_check_large` does; what is to rest meanwhile is up to it."""
    if has_left():
        return None
    try:
        return make(read(b"".join(pieces)), name)
    except _ClientLeft:
        return None
    except ApiError as refused:
        return refused
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        return from_validation([dict(one) for one in details])
    except TooManyNested as error:
        return ApiError(400, f"the body is too large: {error}", code="invalid_json")
    except RepeatedKeyError as error:
        return repeated_key(error)
    except (ValueError, RecursionError):
        return ApiError(400, "the body is not JSON in UTF-8", code="invalid_json")


def _may_be_json(scope: Scope) -> bool:
    """Tell whether a body may be JSON."""
    kind = Headers(scope=scope).get("content-type", "json").partition(";")[0]
    return kind.strip().lower().endswith("json")


def _is_json(scope: Scope) -> bool:
    """Tell whether a body is certainly JSON."""
    kinds = [value for name, value in scope["headers"] if name == b"content-type"]
    return len(kinds) == 1 and kinds[0].partition(b";")[0].strip().lower() == b"application/json"


def repeated_key(error: RepeatedKeyError) -> ApiError:
    """Return the error for a body with a key twice in one object."""
    return ApiError(400, f"{error.msg}; which of them counts is not defined", code="invalid_json")


def _unread(headers: Headers) -> ApiError | None:
    """Refuse a body that is compressed, or text in another encoding than UTF-8."""
    coding = ",".join(headers.getlist("transfer-encoding"))
    if coding.strip().lower() not in ("", "chunked"):
        text = f"`Transfer-Encoding` is {coding[:40]!r}: only `chunked` is taken"
        return ApiError(501, text, code="unsupported_transfer_encoding")
    encoding = ",".join(headers.getlist("content-encoding"))
    if any(one.strip().lower() not in ("", "identity") for one in encoding.split(",")):
        text = f"`Content-Encoding` is {encoding[:40]!r}: send the body uncompressed"
        return ApiError(415, text, code="unsupported_media_type")
    for part in headers.get("content-type", "").split(";")[1:]:
        name, _, value = part.partition("=")
        value = value.strip().strip('"').lower()
        if name.strip().lower() == "charset" and value not in ("utf-8", "utf8"):
            text = f"`charset` is {value[:40]!r}: bodies are taken in UTF-8 only"
            return ApiError(415, text, code="unsupported_media_type")
    return None


def too_large(limit: int) -> ApiError:
    """Return the error for a body of more than ``limit`` bytes."""
    message = (
        f"the body is larger than {limit} bytes, the most that is taken here; "
        "the server's option --max-body allows more"
    )
    return ApiError(413, message, code="request_too_large")


def _is_api(path: str) -> bool:
    return path == "/v1" or path.startswith("/v1/")
