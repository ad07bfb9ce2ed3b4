"""Check the ``Host`` and ``Origin`` of requests that browsers send.

A page of another site can send requests here by a name that it makes point at this machine (DNS
rebinding), or send what needs no permission to read the reply. Both show in headers that no page
can forge. Plain ASGI and plain values; knows no server and no engine.
"""

from __future__ import annotations

import json
import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, MutableMapping, Sequence

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
"""What this machine is called from itself, whatever any name server says."""

PROBES = frozenset({"/health", "/ready", "/healthz", "/readyz"})
"""Paths that are asked by addresses that nobody knows beforehand, and tell nothing."""

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Longest request to a chat page; a browser keeps at most 5 MiB of chats."""

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]*)?")
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_PAGE_API = re.compile(r"/gradio_api(?:/(?P<first>[^/]*))?")
_OPEN_TO_PAGE = frozenset(
    """
    api app_id call cancel heartbeat info login_check openapi.json queue reset run startup-events
    theme.css token user
    """.split()
)
"""What a chat page asks for. Gradio's other paths keep files, or fetch them."""


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches a server that listens at ``host``."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False  # a name may mean any address


def is_address(host: str) -> bool:
    """Tell whether ``host`` is an address and not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def hosts_for(
    address: str, added: Sequence[str] = (), *, is_guarded: bool = False
) -> tuple[str, ...] | None:
    """Choose the hosts that a server is to be called by.

    Args:
        address: Where it listens.
        added: What the operator names beside this machine's own names.
        is_guarded: Whether everything needs a key: a page of another site has none.

    Returns:
        The names; ``None`` if any will do.
    """
    if added or (is_loopback(address) and not is_guarded):
        own = (f"[{address}]" if ":" in address else address,) if is_loopback(address) else ()
        return tuple(dict.fromkeys((*LOCAL_HOSTS, *own, *added)))
    return None


def check_hosts(names: Sequence[str]) -> None:
    """Check what an operator calls hosts.

    Raises:
        ValueError: Names what is none.
    """
    for name in names:
        if name != "*" and not _is_host(name):
            raise ValueError(f"allowed_hosts has {name!r}: give a host without a port, or '*'")


def is_host_of(header: str | None, names: Collection[str] | None) -> bool:
    """Tell whether a ``Host`` header has one of the server's names.

    Args:
        header: ``Host``, with any port.
        names: Its names; ``None`` or ``"*"`` among them is any.
    """
    if names is None or "*" in names:
        return True
    found = _HOST.fullmatch((header or "").lower())
    return found is not None and found["name"] in {_bracketed(name.lower()) for name in names}


def unknown_host(header: str | None) -> str:
    """Say what is wrong with a host, and what to do."""
    shown = (header or "")[:100]
    return f"host {shown!r} is not one of this server; see --allowed-host"


def is_own_origin(origin: str, host: str | None) -> bool:
    """Tell whether a page came from the server that it sends requests to.

    Args:
        origin: ``Origin``.
        host: ``Host``.
    """
    place = _place(origin)
    if place is None or host is None:
        return False
    # The page's scheme says which port its host means; behind a proxy ours may be another.
    return place == _place(f"{origin.partition(':')[0]}://{host}")


def route_path(scope: MutableMapping[str, Any]) -> str:
    """The path of a request inside of the application, wherever that is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


class CheckHost:
    """Refuses requests to a host that this server is not called; probes are let through."""

    def __init__(self, app: App, names: Collection[str] | None) -> None:
        """Wrap an application.

        Args:
            app: The application.
            names: As for :func:`is_host_of`.
        """
        self._app = app
        self._names = None if names is None else frozenset(names)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Look at ``Host``."""
        if scope["type"] in ("http", "websocket") and route_path(scope) not in PROBES:
            host = _header(scope, b"host")
            if not is_host_of(host, self._names):
                await _refuse(scope, send, 421, "unknown_host", unknown_host(host))
                return
        await self._app(scope, receive, send)


class GuardPage:
    """Stands before a chat page: takes no files, and nothing from pages of other sites."""

    def __init__(self, app: App, origins: Sequence[str] = ()) -> None:
        """Wrap the page's application.

        Args:
            app: The application.
            origins: Origins whose pages may speak to it beside its own; ``"*"`` is any.
        """
        self._app = app
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Look at the path and at where the request comes from, then at what it holds."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = _PAGE_API.search(scope["path"])
        if path is not None and (path["first"] or "") not in _OPEN_TO_PAGE:
            message = f"{path[0][:100]} is closed: this page takes and gives no files"
            await _refuse(scope, send, 403, "closed", message)
            return
        if scope["method"] in _SAFE_METHODS:
            await self._app(scope, receive, send)
            return
        if not self._welcomes(scope):
            message = "pages of other sites may not do this here"
            await _refuse(scope, send, 403, "bad_origin", message)
            return
        try:
            body = await _read(receive)
        except _ClientGone:
            return
        if body is None:
            message = f"the body is larger than {MAX_EVENT_BYTES} bytes, the most of this page"
            await _refuse(scope, send, 413, "request_too_large", message)
            return
        if path is not None and _names_file(body):
            message = "the body names a file: this page takes none"
            await _refuse(scope, send, 403, "closed", message)
            return
        await self._app(scope, _Again(body, receive), send)

    def _welcomes(self, scope: MutableMapping[str, Any]) -> bool:
        """Tell whether a request comes from an allowed page, or from no page at all."""
        origin = _header(scope, b"origin")
        if "*" in self._origins or (origin or "").lower() in self._origins:
            return True
        site = _header(scope, b"sec-fetch-site")
        if site is not None:  # what a browser says itself counts, also behind a proxy
            return site in ("same-origin", "none")
        return origin is None or is_own_origin(origin, _header(scope, b"host"))


class _Again:
    """Gives a body that was read, then whatever comes."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


class _ClientGone(Exception):
    """The client left before its body was there."""


async def _read(receive: Receive) -> bytes | None:
    """Read a body; ``None`` if it is too long.

    Raises:
        _ClientGone: It breaks off.
    """
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGone
        part = message.get("body", b"")
        parts.append(part)
        size += len(part)
        if size > MAX_EVENT_BYTES:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


class _FileNamed(Exception):
    """An object in a body means a file."""


def _names_file(body: bytes) -> bool:
    """Tell whether Gradio would read a file for a body; Gradio itself refuses invalid JSON."""
    if not any(mark in body for mark in (b"gradio", b"\\u", b"\0")):
        return False  # spelled out, with escapes, or in UTF-16 or 32: there is no other way
    try:
        json.loads(body, object_hook=_refuse_file)
    except _FileNamed:
        return True
    except (ValueError, RecursionError):
        return b"FileData" in body
    return False


def _refuse_file(found: dict[str, Any]) -> dict[str, Any]:
    if str(found.get("_type", "")).startswith("gradio."):
        raise _FileNamed
    return found


async def _refuse(
    scope: MutableMapping[str, Any], send: Send, status: int, code: str, message: str
) -> None:
    """Say no: to a handshake by a status alone, otherwise in the shape of the API's errors."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": ""})
        return
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    body = json.dumps({"error": error}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _header(scope: MutableMapping[str, Any], name: bytes) -> str | None:
    """A header's value; the values of a repeated one are joined, so that none is accepted."""
    values = [value for key, value in scope["headers"] if key == name]
    return b", ".join(values).decode("latin-1") if values else None


def _is_host(name: str) -> bool:
    """Tell whether it is a host without a port; an IPv6 address may have brackets."""
    if ":" not in name:
        return re.fullmatch(r"[A-Za-z0-9._-]+", name) is not None
    try:
        return ip_address(name.removeprefix("[").removesuffix("]")).version == 6
    except ValueError:
        return False


def _bracketed(name: str) -> str:
    """An IPv6 address as it stands in a URL."""
    return f"[{name}]" if ":" in name and not name.startswith("[") else name


def _place(url: str) -> tuple[str, int | None] | None:
    """Host and port that a URL means."""
    try:
        parts = urlsplit(url.lower())
        if parts.hostname is None:
            return None
        return parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
