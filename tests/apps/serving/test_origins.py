"""Hosts that a server is called by, pages that may speak to it, and a page that takes no files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest

from asyncgen_apps.serving import origins
from asyncgen_apps.serving.origins import (
    LOCAL_HOSTS,
    CheckHost,
    GuardPage,
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


FOREIGN = [
    {"origin": "https://evil.example"},
    {"origin": "http://page.example:81"},
    {"origin": "null"},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},
    {"sec_fetch_site": "cross-site", "origin": "http://page.example"},
]
OWN: list[dict[str, str]] = [
    {},
    {"origin": "http://page.example"},
    {"origin": "https://page.example", "host": "page.example:443"},
    {"sec_fetch_site": "none"},
    # Behind a proxy that writes a host of its own, what the browser says counts.
    {"sec_fetch_site": "same-origin", "origin": "https://page.example", "host": "127.0.0.1:7860"},
    {"origin": "https://friend.example"},
    {"sec_fetch_site": "cross-site", "origin": "https://Friend.example"},
]


@pytest.mark.anyio
@for_each("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_pages_of_other_sites_change_nothing(method: str) -> None:
    app = GuardPage(page, ("https://friend.example/",))
    for headers in FOREIGN:
        got = await ask(app, method, "/gradio_api/queue/join", **headers)
        assert (got.status, got.code) == (403, "bad_origin")
        assert (await ask(app, "GET", "/config", **headers)).status == 200
    for headers in OWN:
        assert (await ask(app, method, "/gradio_api/queue/join", **headers)).status == 200
    everybody = GuardPage(page, ("*",))
    assert (await ask(everybody, method, "/login", **FOREIGN[0])).status == 200


@pytest.mark.anyio
@for_each(
    "path",
    [
        "/gradio_api/upload",
        "/gradio_api/upload/",
        "/chat/gradio_api/upload?upload_id=1",
        "/gradio_api/%75pload",
        "/gradio_api/upload_progress",
        "/gradio_api/component_server",
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/file/x",
        "/gradio_api/proxy=http://10.0.0.1/",
        "/gradio_api/stream/x",
        "/gradio_api/deep_link",
        "/gradio_api/process_recording",
        "/gradio_api/run-history/connect",
        "/gradio_api/whatever-comes-next",
        "/gradio_api",
    ],
)
async def test_file_paths_are_forbidden(path: str) -> None:
    for method in ("GET", "HEAD", "POST"):
        got = await ask(GuardPage(page), method, path)
        assert got.status == 403
        assert method == "HEAD" or got.code == "closed"


FILE = {"path": "http://example.org/big", "meta": {"_type": "gradio.FileData"}}


@pytest.mark.anyio
async def test_a_body_names_no_file() -> None:
    """Gradio would fetch it, and keep it."""
    app = GuardPage(page)
    plain = json.dumps({"data": ["hi", [FILE]]})
    escaped = plain.replace("gradio.", "\\u0067radio.")
    spelled = [
        text.encode(code) for text in (plain, escaped) for code in ("utf-8", "utf-16", "utf-32-le")
    ]
    for content in spelled:
        got = await ask(app, "POST", "/gradio_api/queue/join", content)
        assert (got.status, got.code) == (403, "closed")
    for harmless in ("what is gradio.FileData?", "\\u0067", {"_type": "x"}):
        body = json.dumps({"data": [harmless]}).encode()
        got = await ask(app, "POST", "/gradio_api/queue/join", body)
        assert got.body == b"took " + body


@pytest.mark.anyio
async def test_a_body_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origins, "MAX_EVENT_BYTES", 10)
    app = GuardPage(page)
    assert (await ask(app, "POST", "/gradio_api/run/x", b"x" * 10)).status == 200
    assert (await ask(app, "POST", "/gradio_api/run/x", b"x" * 11)).status == 413


@pytest.mark.anyio
async def test_a_client_that_leaves_in_its_body_is_not_answered() -> None:
    messages = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/gradio_api/run/x", "headers": []}
    await GuardPage(page)(scope, receive, send)
    assert (messages, sent) == ([], [])
