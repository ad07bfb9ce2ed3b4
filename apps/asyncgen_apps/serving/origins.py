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

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]*)?")
_HOST_LETTERS = re.compile(r"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]*")
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


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


def host_fault(hosts: Sequence[str], version: str) -> str | None:
    """Say why the ``Host`` headers of a request are none of HTTP (RFC 9112, 3.2).

    Two of them, or one that is no host, mean one server to a proxy and another one to this.

    Args:
        hosts: Values of all of them.
        version: Of HTTP.

    Returns:
        The error message; ``None`` if there is one host, or none in HTTP/1.0, which has no such
        header.
    """
    if len(hosts) > 1:
        return f"the request has {len(hosts)} `Host` headers; it has to have one"
    if not hosts:
        return None if version == "1.0" else "the request has no `Host` header"
    if not _HOST_LETTERS.fullmatch(hosts[0]):
        return f"`Host` is {hosts[0][:100]!r}, which is no host"
    return None


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
            host = header_of(scope, b"host")
            if not is_host_of(host, self._names):
                await refuse_request(scope, send, 421, "unknown_host", unknown_host(host))
                return
        await self._app(scope, receive, send)


async def refuse_request(
    scope: MutableMapping[str, Any], send: Send, status: int, code: str, message: str
) -> None:
    """Refuse a request by an error of the OpenAI API, or a handshake by its status alone."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": ""})
        return
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    # Gradio's pages show `detail`.
    body = json.dumps({"error": error, "detail": message}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def header_of(scope: MutableMapping[str, Any], name: bytes) -> str | None:
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
