"""Mount the chat page in the application, if gradio is installed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from starlette.routing import BaseRoute, Match

from asyncgen_apps.openai_http.chat_page import GatedEngine, HeartbeatMiddleware

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import FastAPI
    from starlette.types import Receive, Scope, Send

    from asyncgen_apps.engine import Engine
    from asyncgen_apps.openai_http.concurrency_limit import Gate


CHAT = "asyncgen_apps.gradio_chat"
API = "/v1"


def has_chat() -> bool:
    """Tell whether the chat page can be mounted; import nothing of it."""
    return find_spec("gradio") is not None and find_spec(CHAT) is not None


def mount_chat(
    app: FastAPI,
    llm: Engine,
    gate: Gate,
    *,
    name: str,
    examples: Sequence[str] = (),
    origins: Sequence[str] = (),
    trusted_proxies: Sequence[str] = (),
    max_body_bytes: int | None = None,
    max_memory_bytes: int | None = None,
) -> FastAPI:
    """Mount the chat page at ``/``, behind all routes that are there.

    Args:
        app: The application.
        llm: The engine that the page talks to.
        gate: Lets its answers in, and says when the server leaves.
        name: Title of the page.
        examples: Questions that an empty chat offers.
        origins: Origins whose pages may speak to it beside its own.
        trusted_proxies: Whose word about the address of a user is taken.
        max_body_bytes: Most bytes of an event of the page; ``None`` is the page's own default.
        max_memory_bytes: Most bytes that are kept of all its sessions; ``None`` likewise.

    Returns:
        The application.
    """
    # By name: importing gradio takes seconds, and this module must work without it.
    gradio = import_module("gradio")
    chat = import_module(CHAT)
    model = GatedEngine(llm, gate)
    page = chat.build_chat(model, name=name, examples=examples, trusted_proxies=trusted_proxies)
    app.add_middleware(HeartbeatMiddleware, gate=gate)
    routes = app.router.routes
    own = len(routes)
    given = {"max_body_bytes": max_body_bytes, "max_memory_bytes": max_memory_bytes}
    limits = {name: value for name, value in given.items() if value is not None}
    options = chat.launch_options(origins=origins, **limits)
    mounted: FastAPI = gradio.mount_gradio_app(app, page, path="/", **options)
    routes[own:] = [_OutsideApi(route) for route in routes[own:]]
    return mounted


class _OutsideApi(BaseRoute):
    """A route that leaves ``/v1`` alone.

    The page takes every path there is: what the API does not have, it would refuse in words of its
    own, which no client of the API understands.
    """

    def __init__(self, route: BaseRoute) -> None:
        self._route = route

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["path"] == API or scope["path"].startswith(f"{API}/"):
            return Match.NONE, {}
        return self._route.matches(scope)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._route.handle(scope, receive, send)
