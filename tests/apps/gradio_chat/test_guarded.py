"""The page takes no files and no orders from other sites, wherever it hangs."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import gradio as gr
import httpx
import pytest
from fastapi import FastAPI

from asyncgen_apps.gradio_chat import build_chat, launch_options
from asyncgen_apps.gradio_chat.sessions import MOST_SESSIONS
from asyncgen_apps.serving.origins import LOCAL_HOSTS
from tests.apps.gradio_chat.doubles import ScriptedModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.apps.gradio_chat.serving import Served

FILE = {"path": "http://127.0.0.1:1/big", "meta": {"_type": "gradio.FileData"}}
EVENT: dict[str, Any] = {"data": ["hi", [FILE], None], "session_hash": "a", "fn_index": 0}
RESET = {"event_id": "none"}
FOREIGN = {"origin": "https://evil.example"}
pytestmark = pytest.mark.anyio


@asynccontextmanager
async def mounted(**options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of somebody's application with the page in it, and a route of its own."""
    app = FastAPI()

    @app.post("/own")
    async def own() -> str:
        return "mine"

    page = build_chat(ScriptedModel())
    app = gr.mount_gradio_app(app, page, path="/chat", **launch_options(**options))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def below(folder: Path) -> list[Path]:
    """List all files below a folder."""
    return list(folder.rglob("*"))


async def test_no_file_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    async with mounted() as client:
        for headers in ({}, FOREIGN):
            files = {"files": ("big", b"x" * 100_000)}
            got = await client.post("/chat/gradio_api/upload", files=files, headers=headers)
            assert (got.status_code, got.json()["error"]["code"]) == (403, "closed")
        for path in ("upload_progress?upload_id=1", "file=/etc/passwd", "deep_link?session_hash=a"):
            assert (await client.get(f"/chat/gradio_api/{path}")).status_code == 403
        got = await client.post("/chat/gradio_api/component_server", json={})
        assert got.status_code == 403
    assert below(tmp_path) == []


@pytest.mark.parametrize("path", ["call/chat", "queue/join", "run/chat", "api/chat"])
async def test_no_file_is_fetched(path: str) -> None:
    body = json.dumps(EVENT)
    async with mounted() as client:
        for content in (body, body.replace("gradio.", "\\u0067radio.")):
            got = await client.post(f"/chat/gradio_api/{path}", content=content)
            assert (got.status_code, got.json()["error"]["code"]) == (403, "closed")


async def test_pages_of_other_sites_change_nothing() -> None:
    async with mounted(origins=("https://friend.example",)) as client:
        got = await client.post("/chat/gradio_api/reset", json=RESET, headers=FOREIGN)
        assert (got.status_code, got.json()["error"]["code"]) == (403, "bad_origin")
        for origin in ("http://localhost", "https://friend.example"):
            own = {"origin": origin}
            got = await client.post("/chat/gradio_api/reset", json=RESET, headers=own)
            assert got.status_code == 200
        # The rest of the application is its owner's.
        assert (await client.post("/own", headers=FOREIGN)).status_code == 200


async def test_hosts_of_the_page() -> None:
    async with mounted(allowed_hosts=LOCAL_HOSTS) as client:
        got = await client.get("/chat/config", headers={"host": "evil.example"})
        assert (got.status_code, got.json()["error"]["code"]) == (421, "unknown_host")
        assert (await client.get("/chat/config")).status_code == 200


@pytest.mark.gate
def test_a_page_that_is_launched(chat: Served) -> None:
    """The same holds there; the tests of the browser show that the page itself notices nothing."""
    for path, headers in (("upload", {}), ("reset", FOREIGN)):
        asked = urllib.request.Request(
            f"{chat.url}gradio_api/{path}", json.dumps(RESET).encode(), headers
        )
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(asked, timeout=60)


async def test_the_state_of_pages_is_bounded() -> None:
    page = build_chat(ScriptedModel())
    app = gr.mount_gradio_app(FastAPI(), page, path="/chat", **launch_options())
    assert page.state_session_capacity == MOST_SESSIONS
    holder = next(one.app for one in app.routes if getattr(one, "path", "") == "/chat").state_holder
    assert holder.capacity == MOST_SESSIONS
