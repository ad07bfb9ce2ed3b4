"""The chat page hangs at ``/``, behind everything else, where there is one."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest
from fastapi import FastAPI

from asyncgen_apps.openai_http import Gate, ServerSettings, chat_mount, create_app
from asyncgen_apps.openai_http.chat_page import GatedEngine, HeartbeatMiddleware
from tests.apps.openai_http.test_answer import scripted

if TYPE_CHECKING:
    from asyncgen_apps.engine import Engine


def test_without_gradio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_mount, "find_spec", lambda name: None)
    assert not chat_mount.has_chat()


def test_the_page_is_of_this_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    gradio, chat = ModuleType("gradio"), ModuleType("chat")
    calls: list[Any] = []

    def mount(app: FastAPI, page: object, path: str, **options: object) -> FastAPI:
        calls.append((page, path, options))
        return app

    gradio.mount_gradio_app = mount  # type: ignore[attr-defined]
    chat.build_chat = lambda model, **rest: ("page of", model)  # type: ignore[attr-defined]
    chat.launch_options = lambda origins: {"css": "x", "origins": origins}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gradio", gradio)
    monkeypatch.setitem(sys.modules, chat_mount.CHAT, chat)
    app = FastAPI()
    gate = Gate(1)
    engine, origins = cast("Engine", "engine"), ("https://a.example",)
    assert chat_mount.mount_chat(app, engine, gate, name="demo", origins=origins) is app
    [((_, model), path, options)] = calls
    assert isinstance(model, GatedEngine)
    assert (path, options) == ("/", {"css": "x", "origins": ("https://a.example",)})
    kinds: list[object] = [each.cls for each in app.user_middleware]
    assert HeartbeatMiddleware in kinds


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/images", 404),
        ("GET", "/v1/models/demo/x", 404),
        ("DELETE", "/v1/models/demo", 405),
        ("GET", "/v1/chat/completions", 405),
        ("GET", "/v1/models", 200),
        ("GET", "/page", 200),
    ],
)
async def test_below_v1_the_page_has_no_say(
    monkeypatch: pytest.MonkeyPatch, method: str, path: str, status: int
) -> None:
    def mount(app: FastAPI, page: FastAPI, path: str) -> FastAPI:
        app.mount(path, page)
        return app

    gradio, chat = ModuleType("gradio"), ModuleType("chat")
    page = FastAPI()
    page.get("/page")(lambda: "the page")
    gradio.mount_gradio_app = mount  # type: ignore[attr-defined]
    chat.build_chat = lambda model, **rest: page  # type: ignore[attr-defined]
    chat.launch_options = lambda origins: {}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gradio", gradio)
    monkeypatch.setitem(sys.modules, chat_mount.CHAT, chat)
    async with scripted()() as llm:
        app = create_app(llm, ServerSettings(model_names=("demo",)))
        chat_mount.mount_chat(app, llm, app.state.gate, name="demo")
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://server"
        ) as client:
            got = await client.request(method, path)
    assert got.status_code == status
    if status >= 400:
        assert got.json()["error"]["type"] == "invalid_request_error"
    assert ("allow" in got.headers) == (status == 405)
