"""Answer GETs in turn: pages are rendered on the event loop, and many may be asked for at once.

One page takes milliseconds, so a few hundred that come together would keep streams and health
waiting for seconds. Of each client one waits for a turn, and its others wait behind that one. Plain
ASGI; knows no paths but those that must answer at any time.
"""

from __future__ import annotations

from contextlib import ExitStack
from time import thread_time
from typing import TYPE_CHECKING

import anyio

from asyncgen_apps.serving.client_turns import ClientDoors
from asyncgen_apps.serving.time_slices import short_turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_SECONDS = 0.25
"""How long the next one waits at most: a page may wait for something itself."""

_MOST_REST = 0.05
_FREE = 0.001
"""Seconds of work behind which nobody rests."""

HAS_LEFT = "asyncgen.has_left"
"""Key of a scope: tells whether the client is gone. Servers that are not ours say nothing."""

_HAS_TURN = "asyncgen.has_turn"
_ALWAYS_OPEN = frozenset({"/health", "/ready"})


def _anybody(_: Scope) -> str:
    return ""


class GetTurns:
    """Middleware that begins one answer after another, and rests as long as each has worked.

    A turn ends before the head of the answer: the page is rendered by then, and all else waits for
    the client.
    """

    def __init__(self, app: ASGIApp, client_of: Callable[[Scope], str] = _anybody) -> None:
        """Wrap an application.

        Args:
            app: The application.
            client_of: Names the client of a request.
        """
        self._app = app
        self._client_of = client_of
        self._doors = ClientDoors()
        self._door = anyio.Lock(fast_acquire=True)
        self._last: anyio.Event | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait for the answer before to begin; then answer."""
        is_get = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if not is_get or scope["path"] in _ALWAYS_OPEN or _HAS_TURN in scope:
            await self._app(scope, receive, send)
            return
        own_door = self._doors.of(self._client_of(scope))
        with ExitStack() as turn:
            if self._last is not None and not self._last.is_set():
                turn.enter_context(short_turns())
            async with own_door, self._door:
                if self._last is not None:
                    with anyio.move_on_after(MOST_SECONDS):
                        await self._last.wait()
                own = self._last = anyio.Event()
            turn.callback(own.set)
            if scope.get(HAS_LEFT, bool)():
                return  # nothing is rendered for nobody
            began = thread_time()

            async def told(message: Message) -> None:
                if message["type"] == "http.response.start" and not own.is_set():
                    worked = thread_time() - began
                    if worked > _FREE:
                        await anyio.sleep(min(worked, _MOST_REST))
                    turn.close()  # first: the head of an answer waits for the client, too
                await send(message)

            await self._app({**scope, _HAS_TURN: True}, receive, told)
