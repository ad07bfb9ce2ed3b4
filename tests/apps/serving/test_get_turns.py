"""GETs begin one after another, and none waits for ever."""

from __future__ import annotations

from time import thread_time
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from asyncgen_apps.serving import get_turns
from asyncgen_apps.serving.get_turns import GetTurns

if TYPE_CHECKING:
    from starlette.types import ASGIApp

pytestmark = pytest.mark.anyio


def get(path: str = "/", method: str = "GET") -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path}


async def ask(app: ASGIApp, scope: dict[str, Any]) -> None:
    async def send(message: Any) -> None:
        await anyio.lowlevel.checkpoint()

    await app(scope, send, send)  # type: ignore[arg-type]


def work(seconds: float) -> None:
    began = thread_time()
    while thread_time() - began < seconds:
        pass


async def test_one_page_a_turn() -> None:
    """Beside many pages the loop does other things between any two of them."""
    begun: list[int] = []

    async def page(scope: Any, receive: Any, send: Any) -> None:
        begun.append(len(begun))
        work(0.003)
        await send({"type": "http.response.start"})
        await send({"type": "http.response.body"})

    app, turns = GetTurns(page), 0
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(ask, app, get())
        seen = 0
        while len(begun) < 20:
            await anyio.lowlevel.checkpoint()
            assert len(begun) - seen <= 1
            seen, turns = len(begun), turns + 1
    assert turns >= 20


async def test_clients_take_turns() -> None:
    """A client with hundreds of pages does not have others wait for all of them."""
    begun: list[str] = []

    async def page(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])
        await send({"type": "http.response.start"})

    app = GetTurns(page, client_of=lambda scope: str(scope["path"]))
    async with anyio.create_task_group() as group:
        for path in ["/a"] * 100 + ["/b"] * 2 + ["/c"]:
            group.start_soon(ask, app, get(path))
    assert len(begun) == 103 and not len(app._doors)
    assert {"/b", "/c"} <= set(begun[:5])


async def test_what_waits_itself_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_turns, "MOST_SECONDS", 0.01)
    release, begun = anyio.Event(), []

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])
        if scope["path"] == "/slow":
            await release.wait()
        await send({"type": "http.response.start"})

    app = GetTurns(slow)
    async with anyio.create_task_group() as group:
        group.start_soon(ask, app, get("/slow"))
        while not begun:
            await anyio.lowlevel.checkpoint()
        await ask(app, get("/other"))
        release.set()
    assert begun == ["/slow", "/other"]


async def test_a_turn_ends_with_whoever_has_it() -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/error":
            raise ZeroDivisionError
        if scope["path"] == "/for ever":
            await anyio.sleep_forever()

    app = GetTurns(failing)
    with pytest.raises(ZeroDivisionError):
        await ask(app, get("/error"))
    with anyio.move_on_after(0.01):
        await ask(app, get("/for ever"))
    began = anyio.current_time()
    await ask(app, get("/nothing"))
    assert anyio.current_time() - began < get_turns.MOST_SECONDS


async def test_nothing_is_rendered_for_who_has_left_meanwhile() -> None:
    begun, release = [], anyio.Event()

    async def page(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])
        await release.wait()

    app, gone = GetTurns(page), {**get("/gone"), get_turns.HAS_LEFT: lambda: True}
    async with anyio.create_task_group() as group:
        group.start_soon(ask, app, get("/first"))
        await anyio.wait_all_tasks_blocked()
        for _ in range(50):
            group.start_soon(ask, app, gone)
        group.start_soon(ask, app, {**get("/last"), get_turns.HAS_LEFT: lambda: False})
        release.set()
    assert begun == ["/first", "/last"]


async def test_health_and_what_is_no_get_have_no_turns() -> None:
    async def stuck(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/stuck":
            await anyio.sleep_forever()

    app = GetTurns(stuck)
    async with anyio.create_task_group() as group:
        group.start_soon(ask, app, get("/stuck"))
        await anyio.wait_all_tasks_blocked()
        began = anyio.current_time()
        for scope in (
            get("/health"),
            get("/ready"),
            get("/x", "POST"),
            {**get(), "type": "websocket"},
        ):
            await ask(app, scope)
        assert anyio.current_time() - began < get_turns.MOST_SECONDS
        group.cancel_scope.cancel()
