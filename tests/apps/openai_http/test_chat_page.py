"""The chat page obeys the server: its limits, its drain, and the end of its heartbeats."""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.request
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
import pytest
from websockets.sync.client import connect

from asyncgen import AsyncLLM, EngineClosedError, InvalidRequestError, OverloadedError
from asyncgen_apps.openai_http.chat_page import GatedEngine, HeartbeatMiddleware
from asyncgen_apps.openai_http.concurrency_limit import Gate
from asyncgen_apps.openai_http.errors import SERVER, ApiError
from tests.apps.cli.serving import served
from tests.apps.gradio_chat.browsing import ChatPage, chromium

if TYPE_CHECKING:
    import subprocess
    from collections.abc import AsyncIterator

    from starlette.types import Message, Receive, Scope, Send

LEAVING = ApiError(503, "leaving", SERVER)
BEAT = {"type": "http", "path": "/gradio_api/heartbeat/abc"}
ENDLESS: Any = {"max_new_tokens": 900, "eos_token_id": []}
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
async def llm() -> AsyncIterator[AsyncLLM]:
    async with AsyncLLM("demo", num_threads=1) as opened:
        yield opened


@pytest.mark.anyio
async def test_a_stream_is_inside_from_start_to_end(llm: AsyncLLM) -> None:
    gate = Gate(1)
    model = GatedEngine(llm, gate)
    assert model.generation_config is llm.generation_config
    assert (await model.measure()).requests_running == 0
    wanted = (await llm.generate("Once", max_new_tokens=8, seed=1)).text
    async with model.stream("Once", max_new_tokens=8, seed=1) as stream:
        assert gate.count == 1
        with pytest.raises(OverloadedError):
            async with model.stream("Twice"):
                pass
        assert "".join([event.text async for event in stream.events()]) == wanted
    assert gate.count == 0
    assert stream.result.text == wanted
    with pytest.raises(InvalidRequestError):
        async with model.stream("Once", max_new_tokens=-1):
            pass
    assert gate.count == 0


@pytest.mark.anyio
async def test_one_user_of_the_page_leaves_room_for_another(llm: AsyncLLM) -> None:
    gate = Gate(4)
    model = GatedEngine(llm, gate)
    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(model.stream("Once", client="10.0.0.1", **ENDLESS))
        with pytest.raises(OverloadedError, match="3 of at most 4 requests .* 3 of them yours"):
            await stack.enter_async_context(model.stream("Once", client="10.0.0.1"))
        async with model.stream("Once", client="10.0.0.2", max_new_tokens=3) as other:
            assert [text async for text in other]
    assert gate.count == gate.places.used == 0


@pytest.mark.anyio
async def test_a_stream_of_a_server_that_leaves(llm: AsyncLLM) -> None:
    gate = Gate(5)
    model = GatedEngine(llm, gate)
    with pytest.raises(EngineClosedError, match="shutting down"):
        async with model.stream("Once", **ENDLESS) as stream:
            async for _ in stream.events():
                gate.abort_all()
    assert stream.result.finish_reason == "cancelled"
    assert gate.count == 0
    with pytest.raises(EngineClosedError):
        async with model.stream("Once"):
            pass
    assert gate.count == 0


@pytest.mark.anyio
async def test_leaving_a_stream_cancels_it(llm: AsyncLLM) -> None:
    gate = Gate(5)
    async with GatedEngine(llm, gate).stream("Once", **ENDLESS) as stream:
        stream.cancel()
        async for _ in stream.events():
            pass
    assert stream.result.finish_reason == "cancelled"
    assert gate.count == 0


class Pages:
    """Heartbeats that beat until they are told that the page has gone, and other requests."""

    def __init__(self) -> None:
        self.release = anyio.Event()
        self.ended = 0
        self.sent: list[Message] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != BEAT["path"]:
            await self.release.wait()
            return
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        self.ended += 1

    async def send(self, message: Message) -> None:
        self.sent.append(message)


async def nothing() -> Message:
    await anyio.sleep_forever()
    raise AssertionError


@pytest.mark.anyio
async def test_a_heartbeat_outlives_the_answers_and_ends_with_them() -> None:
    gate, pages = Gate(5), Pages()
    app = HeartbeatMiddleware(pages, gate)

    class Inside:
        def abort(self, error: ApiError) -> None:
            """Not reached."""

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(app, BEAT, nothing, pages.send)
            group.start_soon(app, {"type": "http", "path": "/x"}, nothing, pages.send)
            with gate.admit(Inside(), "a"):
                await anyio.wait_all_tasks_blocked()
                gate.drain()
                pages.release.set()
                await anyio.sleep(0.1)
                assert not pages.ended
    assert pages.ended == 1
    assert pages.sent[-1] == {"type": "http.response.body", "body": b""}
    with anyio.fail_after(60):
        await app(BEAT, nothing, pages.send)  # one that comes late


@pytest.mark.anyio
async def test_a_page_that_goes_by_itself() -> None:
    pages = Pages()

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    with anyio.fail_after(60):
        await HeartbeatMiddleware(pages, Gate(1))(BEAT, gone, pages.send)
    assert pages.ended == 1


def ended(process: subprocess.Popen[str]) -> str:
    """Wait for the end of a server that was asked to leave; return what it still said."""
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return said


@pytest.mark.gate
def test_the_chat_the_api_and_the_streams_share_a_port() -> None:
    pytest.importorskip("gradio")
    with served("--threads", "1", "--drain", "600", "--ws-port", "0") as (process, url, lines):
        assert f"chat at {url}" in lines[-1]
        found = re.search(r"streams at (ws://\S+)$", lines[-1])
        assert found is not None
        for stream in (found.group(1), f"ws{url.removeprefix('http')}/v1/stream"):
            with connect(stream, open_timeout=60) as wire:
                assert json.loads(wire.recv(60))["protocol"] == "asyncgen.v1"
        with urllib.request.urlopen(f"{url}/", timeout=60) as got:
            assert b"gradio" in got.read()
        with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as got:
            assert got.headers["content-type"] == "application/json"
        port = urlsplit(url).port
        assert port is not None
        with socket.create_connection(("127.0.0.1", port), 60) as open_page:
            open_page.sendall(b"GET /gradio_api/heartbeat/abc HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 200 " in open_page.recv(4096)
            process.send_signal(signal.SIGTERM)
            # Much sooner than the drain allows: an open page does not hold the server.
            assert "Traceback" not in ended(process)


def busy(url: str) -> float:
    """Count the engine's requests."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as got:
        text = got.read().decode()
    found = re.findall(r"^vllm:num_requests_(?:running|waiting)\{\S* (\S+)$", text, re.M)
    assert len(found) == 2
    return sum(map(float, found))


@pytest.mark.browser
@pytest.mark.timeout(300)
@pytest.mark.parametrize("drain", ["60", "0.5"])
def test_a_browser_at_a_server_that_leaves(drain: str) -> None:
    slow = "tests.apps.cli.pacing"
    with chromium() as browser, served("--drain", drain, program=slow) as (process, url, _):
        page = ChatPage(browser, url)
        page.ask("Tell me a story about a fox.")
        first = page.wait_longer(10)
        assert len(page.wait_longer(len(first))) > len(first)
        assert busy(url) == 1
        page.stop.click()
        page.until(lambda: not busy(url))
        assert page.wait_done()
        assert "stopped" in page.folded.last.inner_text()

        page.ask("And then?")
        page.page.wait_for_function("document.querySelectorAll('#chat .bot.message').length == 2")
        page.wait_longer(5)
        process.send_signal(signal.SIGTERM)
        assert "Traceback" not in ended(process)
        page.send.wait_for()
        if drain == "60":
            assert "complete" in page.folded.last.inner_text()
        else:
            assert "The server is closing" in page.answers.last.inner_text()
        assert page.errors == []
        with suppress(Exception):
            page.context.close()
