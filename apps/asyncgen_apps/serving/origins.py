"""Check the ``Host`` and ``Origin`` of requests that browsers send.

A page of another site can reach this machine by a name that points here (DNS rebinding), or send
requests whose reply it need not read. Both show in headers that no page can forge. Plain ASGI and
plain values; knows no server and no engine.
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
"""Names of this machine for itself, independent of name servers."""

PROBES = frozenset({"/health", "/ready", "/healthz", "/readyz"})
"""Paths without secrets that probes ask for, by addresses unknown in advance."""

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
"""Paths that a chat page needs. Gradio's other paths store or fetch files."""


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
    """Return the allowed host names of a server.

    Args:
        address: Address on which it listens.
        added: Names that the operator adds to this machine's own.
        is_guarded: True if every request needs a key, which a page of another site does not have.

    Returns:
        The names; ``None`` allows any.
    """
    if added or (is_loopback(address) and not is_guarded):
        own = (f"[{address}]" if ":" in address else address,) if is_loopback(address) else ()
        return tuple(dict.fromkeys((*LOCAL_HOSTS, *own, *added)))
    return None


def check_hosts(names: Sequence[str]) -> None:
    """Check the host names of an operator.

    Raises:
        ValueError: Names an entry that is not a host.
    """
    for name in names:
        if name != "*" and not _is_host(name):
            raise ValueError(f"allowed_hosts has {name!r}: give a host without a port, or '*'")


def is_host_of(header: str | None, names: Collection[str] | None) -> bool:
    """Tell whether a ``Host`` header has one of the server's names.

    Args:
        header: Header ``Host``, with any port.
        names: Names of the server; ``None`` or ``"*"`` allows any.
    """
    if names is None or "*" in names:
        return True
    found = _HOST.fullmatch((header or "").lower())
    return found is not None and found["name"] in {_bracketed(name.lower()) for name in names}


def unknown_host(header: str | None) -> str:
    """Return the error message for a host that is not allowed."""
    shown = (header or "")[:100]
    return f"host {shown!r} is not one of this server; see --allowed-host"


def is_own_origin(origin: str, host: str | None) -> bool:
    """Tell whether a page came from the server that it sends requests to.

    Args:
        origin: Header ``Origin``.
        host: Header ``Host``.
    """
    found = _host_and_port(origin)
    if found is None or host is None:
        return False
    # The scheme of the page decides the default port; behind a proxy the server's may differ.
    return found == _host_and_port(f"{origin.partition(':')[0]}://{host}")


def route_path(scope: MutableMapping[str, Any]) -> str:
    """Return the path of a request relative to the mount point of the application."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


class CheckHost:
    """Middleware that refuses requests to other host names, except probes."""

    def __init__(self, app: App, names: Collection[str] | None) -> None:
        """Wrap an application.

        Args:
            app: The application.
            names: Allowed names, as for :func:`is_host_of`.
        """
        self._app = app
        self._names = None if names is None else frozenset(names)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Check ``Host``."""
        if scope["type"] in ("http", "websocket") and route_path(scope) not in PROBES:
            host = _header(scope, b"host")
            if not is_host_of(host, self._names):
                await _refuse(scope, send, 421, "unknown_host", unknown_host(host))
                return
        await self._app(scope, receive, send)


class GuardPage:
    """Middleware of a chat page that refuses files, and requests from pages of other sites."""

    def __init__(self, app: App, origins: Sequence[str] = ()) -> None:
        """Wrap the page's application.

        Args:
            app: The application.
            origins: Origins whose pages are allowed besides its own; ``"*"`` is any.
        """
        self._app = app
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Check the path and the origin of a request, then its body."""
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
        if not self._allows(scope):
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
        await self._app(scope, _ReplayedBody(body, receive), send)

    def _allows(self, scope: MutableMapping[str, Any]) -> bool:
        """Tell whether a request comes from an allowed page, or from no page at all."""
        origin = _header(scope, b"origin")
        if "*" in self._origins or (origin or "").lower() in self._origins:
            return True
        site = _header(scope, b"sec-fetch-site")
        if site is not None:  # the browser's own header also holds behind a proxy
            return site in ("same-origin", "none")
        return origin is None or is_own_origin(origin, _header(scope, b"host"))


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
    """Raised if the client disconnects before its whole body has come."""


async def _read(receive: Receive) -> bytes | None:
    """Read a body; return ``None`` if it is too long.

    Raises:
        _ClientGone: The client has disconnected.
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
    """Raised for an object in a body that names a file."""


def _names_file(body: bytes) -> bool:
    """Tell whether Gradio would read a file for a body; Gradio itself refuses invalid JSON."""
    if not any(mark in body for mark in (b"gradio", b"\\u", b"\0")):
        return False  # a file is named in plain text, with escapes, or in UTF-16 or UTF-32
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
    """Refuse a request by an error of the OpenAI API, or a handshake by its status alone."""
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
    """Return a header's value; joining repeated ones makes them invalid, so none is accepted."""
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
    """Return an IPv6 address in the brackets of a URL, and other names unchanged."""
    return f"[{name}]" if ":" in name and not name.startswith("[") else name


def _host_and_port(url: str) -> tuple[str, int | None] | None:
    """Return the host and the port of a URL; ``None`` if it is not valid."""
    try:
        parts = urlsplit(url.lower())
        if parts.hostname is None:
            return None
        return parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
