"""Hosts that a server is called by, pages that may speak to it, and a page that takes no files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest

from asyncgen_apps.serving.origins import (
    LOCAL_HOSTS,
    CheckHost,
    check_hosts,
    hosts_for,
    is_host_of,
    is_loopback,
)
from tests.cases import for_each

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))


@for_each(
    ("address", "added", "is_guarded", "expected"),
    [
        ("127.0.0.1", (), False, LOCAL_HOSTS),
        ("localhost", (), False, LOCAL_HOSTS),
        ("::1", (), False, LOCAL_HOSTS),
        ("127.0.0.2", (), False, (*LOCAL_HOSTS, "127.0.0.2")),
        ("127.0.0.1", ("a.example",), False, (*LOCAL_HOSTS, "a.example")),
        ("127.0.0.1", (), True, None),
        ("0.0.0.0", (), False, None),
        ("::", (), True, None),
        ("0.0.0.0", ("a.example",), True, (*LOCAL_HOSTS, "a.example")),
    ],
)
def test_allowed_hosts_follow_address_and_guard(
    address: str, added: tuple[str, ...], is_guarded: bool, expected: tuple[str, ...] | None
) -> None:
    assert hosts_for(address, added, is_guarded=is_guarded) == expected


@for_each(
    ("header", "is_ours"),
    [
        ("localhost", True),
        ("LOCALHOST:8000", True),
        ("127.0.0.1:1", True),
        ("[::1]:8000", True),
        ("[::1]", True),
        ("a.example", True),
        ("a.example:", True),
        ("[fd00::1]:80", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("evil.example:localhost", False),
        ("localhost:80@evil.example", False),
        ("localhost, evil.example", False),
        ("::1", False),
        ("[::1", False),
        ("127.0.0.2", False),
        ("", False),
        (None, False),
    ],
)
def test_hosts(header: str | None, is_ours: bool) -> None:
    assert is_host_of(header, (*LOCAL_HOSTS, "A.example", "fd00::1")) is is_ours
    assert is_host_of(header, None)
    assert is_host_of(header, ("*",))


@for_each("wrong", ["a:80", "http://a", "a/b", "", "*.a", "[::1]:80", "a b"])
def test_hosts_that_are_none(wrong: str) -> None:
    check_hosts(("a.example", "::1", "[::1]", "10.0.0.1", "*"))
    with pytest.raises(ValueError, match="allowed_hosts has .* without a port"):
        check_hosts((wrong,))


async def page(scope: Scope, receive: Receive, send: Send) -> None:
    """Take a body, and say what it was."""
    body = (await receive()).get("body", b"")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"took " + body})


@dataclass
class Reply:
    """Reply of the server."""

    status: int = 0
    body: bytes = b""

    @property
    def code(self) -> Any:
        """The word of an error."""
        return json.loads(self.body)["error"]["code"]

    async def take(self, message: Any) -> None:
        """Take a message of the application."""
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")


async def ask(app: Any, method: str, path: str, content: bytes = b"", /, **headers: str) -> Reply:
    """Send a request to an application."""
    named = {"host": "page.example", **headers}
    scope = {
        "type": "http",
        "method": method,
        "path": unquote(path.partition("?")[0]),
        "headers": [
            (name.replace("_", "-").encode(), value.encode()) for name, value in named.items()
        ],
    }
    reply = Reply()

    async def receive() -> Any:
        return {"type": "http.request", "body": content, "more_body": False}

    await app(scope, receive, reply.take)
    return reply


@pytest.mark.anyio
async def test_unknown_host_is_refused_with_remedy() -> None:
    app = CheckHost(page, LOCAL_HOSTS)
    got = await ask(app, "GET", "/v1/models")
    assert got.status == 421
    assert got.code == "unknown_host"
    assert "--allowed-host" in got.body.decode()
    for path in ("/health", "/ready"):
        assert (await ask(app, "GET", path)).status == 200
    assert (await ask(app, "GET", "/v1/models", host="localhost:8000")).status == 200
    assert (await ask(CheckHost(page, None), "GET", "/v1/models")).status == 200
