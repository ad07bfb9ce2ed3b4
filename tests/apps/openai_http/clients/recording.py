"""Records what the clients send, by running their tests with the servers listening in.

``pytest -m "clients and not soak" -n 0 -p tests.apps.openai_http.clients.recording`` writes
``recorded/<client>.json`` anew for each client whose tests ran.
"""

from __future__ import annotations

from collections import defaultdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from tests.apps.openai_http import running
from tests.apps.openai_http.clients import PACKAGES
from tests.apps.openai_http.clients.recorded import HEADERS, Request, write

if TYPE_CHECKING:
    import pytest
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

KEPT = {"guidellm": 16}
"""How many requests of a test are kept, where they all look alike."""

sent: defaultdict[str, defaultdict[str, list[Request]]] = defaultdict(lambda: defaultdict(list))
"""By client and test."""
now: list[tuple[str, str]] = []
"""Client and name of the test that runs."""


class Listen:
    """Notes each request that goes by, once its body was read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on."""
        if scope["type"] != "http" or not now:
            await self._app(scope, receive, send)
            return
        body = bytearray()
        is_noted = False

        async def listen() -> Message:
            nonlocal is_noted
            message = await receive()
            body.extend(message.get("body", b""))
            if not is_noted and not message.get("more_body"):
                is_noted = True
                note(scope, bytes(body))
            return message

        await self._app(scope, listen, send)
        if not is_noted:  # refused before its body was read
            note(scope, b"")


def note(scope: Scope, body: bytes) -> None:
    """Keep a request for the test that runs."""
    client, test = now[-1]
    found = sent[client][test]
    if len(found) == KEPT.get(client):
        return
    query = scope["query_string"].decode()
    path = scope["raw_path"].decode() + (f"?{query}" if query else "")
    headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
    kept = {name: headers[name] for name in HEADERS if name in headers}
    found.append(Request(scope["method"], path, kept, body))


def pytest_configure() -> None:
    """Let every server of the tests listen in."""
    create_app = vars(running)["create_app"]

    def create_listening(*args: Any, **options: Any) -> Any:
        app = create_app(*args, **options)
        app.add_middleware(Listen)
        return app

    vars(running)["create_app"] = create_listening


def pytest_runtest_call(item: pytest.Item) -> None:
    """Name the test that the next requests belong to."""
    client = item.path.stem.removeprefix("test_")
    now[:] = [(client, item.name)] if client in PACKAGES else []


def pytest_sessionfinish() -> None:
    """Write what was heard."""
    for client, tests in sent.items():
        versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES[client])
        write(client, versions, tests)
