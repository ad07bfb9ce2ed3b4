"""Test that a session is kept while somebody listens, and for a while afterwards."""

from __future__ import annotations

import http.client
import json
import socket
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import gradio as gr
import pytest
import uvicorn
from anyio import from_thread
from fastapi import FastAPI

from asyncgen_apps.gradio_chat import build_chat, launch_options, session_cleanup
from tests.apps.gradio_chat.doubles import ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Iterator

# Of pandas, which Gradio uses to count its calls.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SHORT = 1.0
"""Seconds that a session is kept here."""
PATIENCE = 20.0


class Page:
    """A page that runs, and what is kept of its sessions."""

    def __init__(self, blocks: Any, port: int) -> None:
        """It is served at a port of this machine."""
        self.blocks = blocks
        self.host = f"127.0.0.1:{port}"

    def open(self, path: str, body: object = None) -> http.client.HTTPConnection:
        """Ask on a connection of its own."""
        wire = http.client.HTTPConnection(self.host, timeout=PATIENCE)
        content = None if body is None else json.dumps(body)
        kind = {"Content-Type": "application/json"}
        wire.request("GET" if body is None else "POST", f"/gradio_api/{path}", content, kind)
        return wire

    def ask(self, path: str, body: object = None) -> Any:
        """Ask, and read the whole answer."""
        with closing(self.open(path, body)) as wire:
            got = wire.getresponse()
            assert got.status == 200
            return got.read()

    def call(self, **named: str) -> str:
        """Call the API; nobody listens yet."""
        body = {"data": ["hi", [], {}], **named}
        return str(json.loads(self.ask("call/chat", body))["event_id"])

    def beat(self, stack: ExitStack, key: str) -> None:
        """Open a page that does nothing but live."""
        wire = stack.enter_context(closing(self.open(f"heartbeat/{key}")))
        assert wire.getresponse().read(5) == b"data:"

    @property
    def kept(self) -> set[str]:
        """Sessions that anything is kept of."""
        queue = self.blocks._queue
        holder = self.blocks.state_holder
        return {
            *holder.session_data,
            *holder.time_last_used,
            *queue.pending_messages_per_session,
            *queue.pending_event_ids_session,
            *self.blocks.sessions,
        }

    def wait_for(self, wanted: set[str]) -> None:
        """Have it sweep until these are left."""
        end = time.monotonic() + PATIENCE
        while self.kept != wanted:
            assert time.monotonic() < end, (self.kept, wanted)
            time.sleep(0.05)
            self.ask("startup-events")


@pytest.fixture(scope="module")
def launched() -> Iterator[Page]:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, from_thread.start_blocking_portal() as portal:
        blocks, server = portal.call(_build)
        serving = portal.start_task_soon(server.serve, [listener])
        yield Page(blocks, listener.getsockname()[1])
        server.should_exit = True
        serving.result(PATIENCE)


async def _build() -> tuple[gr.Blocks, uvicorn.Server]:
    """Gradio looks for an event loop when a page is made."""
    blocks = build_chat(ScriptedModel())
    app = gr.mount_gradio_app(FastAPI(), blocks, path="/", **launch_options())
    return blocks, uvicorn.Server(uvicorn.Config(app, log_level="warning"))


@pytest.fixture
def page(launched: Page, monkeypatch: pytest.MonkeyPatch) -> Page:
    """Nobody is there."""
    monkeypatch.setattr(session_cleanup, "SWEEP_SECONDS", 0.0)
    monkeypatch.setattr(session_cleanup, "CALL_SECONDS", SHORT)
    monkeypatch.setattr(session_cleanup, "PAGE_SECONDS", SHORT)
    launched.wait_for(set())
    return launched


def test_calls_that_were_heard_and_calls_that_were_not(page: Page) -> None:
    heard = page.call()
    assert b"event: complete" in page.ask(f"call/chat/{heard}")
    unheard, named = page.call(), page.call(session_hash="mine")
    assert {heard, unheard, "mine"} <= page.kept
    assert b"event: complete" in page.ask(f"call/chat/{named}")
    page.wait_for(set())


def test_events_of_a_page_without_a_heartbeat(page: Page) -> None:
    """Anybody can send them, with as many chats as they like."""
    load = next(number for number, one in page.blocks.fns.items() if one.fn and one.name == "_load")
    saved = {"format": 1, "conversations": []}
    for key in "abc":
        page.ask("run/predict", {"data": [saved], "session_hash": key, "fn_index": load})
        assert key in page.blocks.sessions
    page.wait_for(set())


@pytest.mark.gate
def test_an_open_page_is_kept_however_long_it_is_silent(page: Page) -> None:
    with ExitStack() as stack:
        page.beat(stack, "open")
        answer = page.call(session_hash="open")
        assert b"event: complete" in page.ask(f"call/chat/{answer}")
        time.sleep(2 * SHORT)
        page.wait_for({"open"})
        time.sleep(SHORT)
        page.wait_for({"open"})
    page.wait_for(set())


@pytest.mark.gate
def test_the_last_pages_that_went_are_kept_for_longer(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_cleanup, "PAGE_SECONDS", PATIENCE)
    monkeypatch.setattr(session_cleanup, "KEPT_PAGES", 2)
    for key in "abcd":
        with ExitStack() as stack:
            page.beat(stack, key)
            answer = page.call(session_hash=key)
            page.ask(f"call/chat/{answer}")
        page.ask("startup-events")
        time.sleep(0.1)
        page.ask("startup-events")
    page.wait_for({"c", "d"})
    monkeypatch.setattr(session_cleanup, "PAGE_SECONDS", SHORT)
    page.wait_for(set())
