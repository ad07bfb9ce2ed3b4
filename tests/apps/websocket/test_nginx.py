"""The nginx example does what it says, in front of a real server: TLS, upgrade, limits, metrics."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import subprocess
import time
from contextlib import AsyncExitStack
from http.client import HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from websockets.asyncio.client import connect as connect_raw
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin, Subprotocol

import asyncgen_apps
from asyncgen_apps.websocket import connect
from tests.apps.gradio_chat.browsing import chromium
from tests.apps.websocket.web_page import WebPage
from tests.apps.websocket.web_serving import paced_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractAsyncContextManager

    from asyncgen_apps.websocket import Client

EXAMPLE = Path(asyncgen_apps.__file__).with_name("websocket") / "nginx.conf"
PAGE = EXAMPLE.with_name("README.md")
NAME = "chat.example.org"
PATIENCE = 60.0


def _program(name: str, *places: str) -> str:
    found = shutil.which(name) or next((one for one in places if Path(one).exists()), None)
    if found is None:
        pytest.skip(f"no {name} is installed")
    return found


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _certificate(folder: Path) -> None:
    """A certificate for the example's name, signed by itself."""
    command = [_program("openssl"), "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"]
    command += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", f"/CN={NAME}"]
    command += ["-addext", f"subjectAltName=DNS:{NAME},IP:127.0.0.1"]
    command += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True)


def _configuration(folder: Path, port: int, backend: int) -> str:
    """The example with this test's ports and paths; each must be found in it."""
    text = EXAMPLE.read_text(encoding="utf-8")
    for old, new in (
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("server 127.0.0.1:8765;", f"server 127.0.0.1:{backend};"),
        (f"/etc/ssl/certs/{NAME}.pem", str(folder / "cert.pem")),
        (f"/etc/ssl/private/{NAME}.key", str(folder / "key.pem")),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return (
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/errors;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{text}}}\n"
    )


class Proxy:
    """nginx with the example, in front of a server."""

    def __init__(self, folder: Path, port: int) -> None:
        """Remember where it is."""
        self.port = port
        self._tls = ssl.create_default_context(cafile=str(folder / "cert.pem"))

    def get(self, path: str) -> tuple[int, str]:
        """Status and kind of what is there."""
        client = HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE, context=self._trusting())
        try:
            client.request("GET", path, headers={"Host": NAME})
            reply = client.getresponse()
            reply.read()
            return reply.status, reply.headers.get("Content-Type", "")
        finally:
            client.close()

    def client(self) -> AbstractAsyncContextManager[Client]:
        """Connect with the package's client, on whichever loop runs."""
        return connect(f"wss://127.0.0.1:{self.port}", tls=self._tls)

    def page(self) -> Any:
        """Connect as a page of the example's name does, as an async context manager.

        Not with the library's threads: two of them are in OpenSSL at once while a TLS 1.3 server
        hands out its tickets, and now and then the opening request is never sent.
        """
        return connect_raw(
            f"wss://{NAME}:{self.port}/",
            sock=socket.create_connection(("127.0.0.1", self.port), PATIENCE),
            ssl=self._tls,
            proxy=None,
            origin=Origin(f"https://{NAME}:{self.port}"),
            subprotocols=[Subprotocol("asyncgen.v1")],
        )

    def _trusting(self) -> ssl.SSLContext:
        """For a connection by address; the name is checked where a WebSocket is opened."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    nginx = _program("nginx", "/usr/sbin/nginx")
    _certificate(tmp_path)
    port = _free_port()
    with paced_model() as model, model.serving() as backend:
        path = tmp_path / "nginx.conf"
        path.write_text(_configuration(tmp_path, port, backend), encoding="utf-8")
        command = [nginx, "-p", str(tmp_path), "-c", str(path), "-e", str(tmp_path / "errors")]
        checked = subprocess.run([*command, "-t"], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
        assert "[warn]" not in checked.stderr
        with subprocess.Popen(command) as process:
            try:
                _wait_listening(port, process)
                yield Proxy(tmp_path, port)
            finally:
                process.terminate()
                process.wait(PATIENCE)


def _wait_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        assert process.poll() is None and time.monotonic() < end, "nginx did not start"
        try:
            socket.create_connection(("127.0.0.1", port), PATIENCE).close()
        except ConnectionRefusedError:
            time.sleep(0.01)
        else:
            return


def test_the_example_in_front_of_a_server(proxy: Proxy) -> None:
    status, kind = proxy.get("/")
    assert status == 200
    assert kind.startswith("text/html")
    assert proxy.get("/readyz")[0] == 200
    assert proxy.get("/metrics")[0] == 403
    for backend in ("asyncio", "trio"):
        anyio.run(_stream, proxy, backend=backend)
    anyio.run(_page, proxy)
    anyio.run(_fill, proxy)


async def _stream(proxy: Proxy) -> None:
    with anyio.fail_after(PATIENCE):
        async with proxy.client() as client:
            done = await client.generate("Once", max_new_tokens=8)
    assert (done.usage.completion_tokens, done.finish_reason) == (8, "length")


async def _page(proxy: Proxy) -> None:
    request = {"type": "generate", "id": "x", "prompt": "Once", "params": {"max_new_tokens": 8}}
    kinds: list[str] = []
    with anyio.fail_after(PATIENCE):
        async with proxy.page() as socket:
            await socket.send(json.dumps(request))
            while kinds[-1:] != ["done"]:
                kinds.append(json.loads(await socket.recv())["type"])
    assert kinds[:3] == ["hello", "accepted", "delta"]


async def _fill(proxy: Proxy) -> None:
    """Open connections until one is refused."""
    count = 0
    async with AsyncExitStack() as stack:
        with anyio.fail_after(PATIENCE), pytest.raises(InvalidStatus, match="429"):
            while count < 60:
                await stack.enter_async_context(proxy.page())
                count += 1
    assert 10 <= count <= 20


@pytest.mark.browser
def test_page_behind_a_proxy(proxy: Proxy) -> None:
    with chromium() as browser:
        page = WebPage(browser, f"https://127.0.0.1:{proxy.port}/", ignore_https_errors=True)
        page.ready()
        page.configure(max_new_tokens=20)
        page.ask("Tell me a story about a fox.")
        page.wait_done()
        assert page.figures.startswith("20 tokens")
        assert page.sockets == [f"wss://127.0.0.1:{proxy.port}/"]
        assert page.errors == []
        page.context.close()


def test_the_page_shows_the_example() -> None:
    shown = re.findall(r"^```nginx\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert [block for block in shown if block != EXAMPLE.read_text(encoding="utf-8")] == []
