"""What is kept of sessions is counted, and bounded in all; who does not read is let go."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import gradio as gr
import httpx
import pytest
from fastapi import FastAPI

from asyncgen_apps.gradio_chat import build_chat, launch_options, session_bytes, session_cleanup
from asyncgen_apps.gradio_chat.conversations import ChatHistory, Conversation, Turn
from asyncgen_apps.gradio_chat.session_bytes import SESSION_BYTES, UnreadLimit, size_of
from asyncgen_apps.gradio_chat.sessions import Session
from tests.apps.gradio_chat.doubles import ScriptedModel, logprob

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [
    pytest.mark.anyio,
    # Of pandas, which Gradio uses to count its calls.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

MEGABYTE = 2**20


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[tuple[Any, httpx.AsyncClient]]:
    """A page, and a client of it."""
    page = build_chat(ScriptedModel())
    app = gr.mount_gradio_app(FastAPI(), page, path="/", **launch_options(**options))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield page, client


def event(page: Any, name: str, key: str, *data: Any) -> dict[str, Any]:
    """An event of a page."""
    index = next(number for number, one in page.fns.items() if one.fn and one.name == name)
    return {"data": data, "session_hash": key, "fn_index": index}


def kept(key: str, text: str) -> str:
    """What the browser of a page keeps: one chat with one question."""
    chat = Conversation([Turn("user", text, key=key)], key)
    return ChatHistory([chat], chat, key=key).save()


def test_each_value_is_counted_once() -> None:
    text = "x" * 1000
    assert size_of(text) == size_of(text, text) > 1000
    assert size_of([text, {"a": (text,)}]) < size_of(text, "y" * 1000) < 2200
    assert size_of({"a": "x" * 500, "b": ["y" * 500]}) > 1000


async def test_all_that_is_kept_of_a_session_is_counted() -> None:
    async with served() as (page, client):
        loaded = event(page, "_load", "a", kept("a", "x" * MEGABYTE))
        assert (await client.post("/gradio_api/run/predict", json=loaded)).status_code == 200
        session = page.sessions.find("a")
        count = session_bytes.session_bytes(page, "a", session)
        # The text itself, the store of the page and the message on it.
        assert 2 * MEGABYTE < count < 4 * MEGABYTE + SESSION_BYTES
        session.record("a", [logprob("x")] * 1000)
        with_logprobs = session_bytes.session_bytes(page, "a", session)
        assert with_logprobs - count == 3000 * session_bytes.LOGPROB_BYTES
        assert session_bytes.session_bytes(page, "b", None) == 0


@pytest.mark.gate
async def test_events_that_wait_and_frames_that_nobody_reads_are_counted() -> None:
    async with served() as (page, client):
        await client.get("/gradio_api/startup-events")
        joined = event(page, "_follow", "a", kept("a", "x" * MEGABYTE))
        assert (await client.post("/gradio_api/queue/join", json=joined)).status_code == 200
        assert session_bytes.session_bytes(page, "a", page.sessions.find("a")) > MEGABYTE


@pytest.mark.gate
async def test_idle_sessions_give_way_the_oldest_first() -> None:
    async with served(max_memory_bytes=16 * MEGABYTE) as (page, client):
        for key in "abcdefgh":
            loaded = event(page, "_load", key, kept(key, key * MEGABYTE))
            assert (await client.post("/gradio_api/run/predict", json=loaded)).status_code == 200
            counted = sum(
                session_bytes.session_bytes(page, each, page.sessions.find(each))
                for each in page.sessions
            )
            assert counted <= 16 * MEGABYTE
        left = list(page.sessions)
        assert 2 <= len(left) < 8
        assert left == list("abcdefgh")[-len(left) :]
        # Who comes back begins with what its browser kept.
        loaded = event(page, "_load", "a", kept("a", "a" * MEGABYTE))
        assert (await client.post("/gradio_api/run/predict", json=loaded)).status_code == 200
        assert page.sessions.find("a").history.current.turns[0].text == "a" * MEGABYTE


async def test_an_event_that_does_not_fit_is_refused_by_name() -> None:
    async with served(max_memory_bytes=MEGABYTE) as (page, client):
        small = event(page, "_load", "a", None)
        assert (await client.post("/gradio_api/run/predict", json=small)).status_code == 200
        large = event(page, "_load", "b", kept("b", "x" * MEGABYTE))
        got = await client.post("/gradio_api/run/predict", json=large)
        assert (got.status_code, got.json()["error"]["code"]) == (429, "chat_full")
        assert "--chat-max-memory" in got.json()["detail"]
        assert "b" not in page.sessions
        assert (await client.post("/gradio_api/run/predict", json=small)).status_code == 200


@asynccontextmanager
async def another_of(client: httpx.AsyncClient, address: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the same page at another address."""
    app = client._transport.app  # type: ignore[attr-defined]
    transport = httpx.ASGITransport(app, client=(address, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as other:
        yield other


async def test_one_client_leaves_the_others_half(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        served(max_memory_bytes=4 * MEGABYTE) as (page, client),
        another_of(client, "10.0.0.2") as other,
    ):

        async def load(by: httpx.AsyncClient, key: str) -> httpx.Response:
            loaded = event(page, "_load", key, kept(key, "x" * 1000))
            return await by.post("/gradio_api/run/predict", json=loaded)

        assert (await load(other, "first")).status_code == 200
        for number in range(15):  # what is over its share makes its own idle ones give way
            assert (await load(client, f"a{number}")).status_code == 200
        assert {"first", "a14"} < set(page.sessions)
        assert "a0" not in page.sessions
        monkeypatch.setattr(session_cleanup, "_is_busy", lambda page, key: True)
        got = await load(client, "a15")
        assert (got.status_code, got.json()["error"]["code"]) == (429, "chat_full")
        assert "your sessions hold" in got.json()["detail"]
        assert f"{2 * MEGABYTE} at most" in got.json()["detail"]
        assert (await load(other, "b")).status_code == 200


async def test_a_call_without_a_session_belongs_to_who_made_it() -> None:
    async with served() as (page, client), another_of(client, "10.0.0.2") as other:
        body = {"data": ["hi", [], {}]}
        event_id = (await other.post("/gradio_api/call/chat", json=body)).json()["event_id"]
        assert session_cleanup._owner_of(page, event_id) == "10.0.0.2"
        assert session_cleanup._owner_of(page, "unknown") is None


@pytest.mark.parametrize("name", ["max_body_bytes", "max_memory_bytes"])
def test_limits_are_above_zero(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0"):
        launch_options(**{name: 0})  # type: ignore[arg-type]


def test_who_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_bytes, "MOST_UNREAD_BYTES", 100_000)
    waiting: asyncio.Queue[Any] = asyncio.Queue()
    queued = SimpleNamespace(alive=True, session_hash="a")
    queue = SimpleNamespace(
        pending_messages_per_session={"a": waiting},
        pending_event_ids_session={"a": {"one"}},
        event_ids_to_events={"one": queued},
        send_message=lambda event, message: waiting.put_nowait(message),
    )
    page: Any = SimpleNamespace(_queue=queue)
    gone: list[str] = []
    limit = UnreadLimit(lambda page, key: gone.append(key))
    limit.watch(page)
    limit.watch(page)

    def send() -> None:
        queue.send_message(queued, SimpleNamespace(output={"data": ["x" * 1000]}))

    for _ in range(300):  # a client that reads may have any number of them
        send()
        waiting.get_nowait()
    for _ in range(50):
        send()
    assert (gone, queued.alive) == ([], True)
    for _ in range(100):
        send()
        if gone:
            break
    assert (gone, queued.alive) == (["a"], False)
    assert waiting.qsize() < 120


def test_only_so_many_probabilities_are_kept() -> None:
    session = Session(ChatHistory.new())
    for number in range(6):
        session.record(str(number), [logprob("x")] * 5000)
    assert list(session.logprobs) == ["2", "3", "4", "5"]
    assert session.num_logprobs == 60_000
    session.record("long", [logprob("x")] * 50_000)
    assert list(session.logprobs) == ["long"]


def test_json_of_a_store_is_the_text_of_one_value() -> None:
    assert isinstance(json.loads(kept("a", "Who?")), dict)
