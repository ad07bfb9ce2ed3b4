"""Forgets what Gradio keeps of sessions whose clients have gone.

Anybody can make a session: every call of the API has one, and it holds what its widgets show and
what nobody read, 0.3 MB and more. Gradio keeps the latest ones. Here a session lasts as long as a
connection of its client, and then for a while; who comes back later begins with what its browser
kept. Knows Gradio's queue and states, and the paths on which its clients listen.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import gradio as gr

from asyncgen_apps.gradio_chat.sessions import Sessions

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

KEPT_PAGES = 64
"""Pages that have gone and are still kept: a telephone that slept comes back to where it was."""

PAGE_SECONDS = 3600.0
"""How long such a page is kept."""

CALL_SECONDS = 60.0
"""How long a session that never was a page is kept when nobody listens to it."""

SWEEP_SECONDS = 10.0
"""Between two times that leftovers are looked for, at least."""

_LISTENING = re.compile(
    r"/gradio_api/(?:heartbeat/(?P<page>[^/]+)|call/(?:v2/)?[^/]+/(?P<event>[^/]+)|queue/data)/?$"
)


class ChatBlocks(gr.Blocks):
    """A page that knows its sessions."""

    def __init__(self, sessions: Sessions, **options: Any) -> None:
        """Begin to draw it.

        Args:
            sessions: The open pages.
            **options: For Gradio.
        """
        self.sessions = sessions
        super().__init__(**options)


class SessionCleanupMiddleware:
    """Counts the connections of each session, and removes sessions without one."""

    def __init__(self, app: "ASGIApp", clock: Callable[[], float] = time.monotonic) -> None:
        """Wrap the page's application.

        Args:
            app: The application.
            clock: Tells seconds.
        """
        self._app = app
        self._clock = clock
        self._connected: Counter[str] = Counter()
        self._pages: set[str] = set()
        self._left: dict[str, float] = {}  # when each was first seen without a connection
        self._swept = clock()

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Count a connection on which somebody listens, as long as it lasts."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        page = scope["app"].get_blocks()
        key = self._listener(page, scope)
        self._connected[key] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._connected[key] -= 1
            if not self._connected[key]:
                del self._connected[key]
            if self._clock() - self._swept >= SWEEP_SECONDS:
                self._swept = self._clock()
                self._sweep(page)

    def _listener(self, page: gr.Blocks, scope: "Scope") -> str:
        """Return whose connection this is; empty if it is nobody's in particular."""
        found = _LISTENING.search(scope["path"])
        if found is None or scope["method"] != "GET":
            return ""
        if found["page"] is not None:
            self._pages.add(found["page"])
            return found["page"]
        if found["event"] is not None:
            return _session_of(page, found["event"])
        (key, *_) = parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [""])
        return key

    def _sweep(self, page: gr.Blocks) -> None:
        """Forget those that nobody has listened to for long enough."""
        now = self._clock()
        known = {key for kept in _kept(page) for key in kept}
        if isinstance(page, ChatBlocks):
            known.update(page.sessions)
        absent = (key for key in known if key not in self._connected and not _is_busy(page, key))
        self._left = {key: self._left.get(key, now) for key in absent}
        self._pages &= known | self._connected.keys()
        pages = sorted(self._left.keys() & self._pages, key=self._left.__getitem__)
        crowded = set(pages[: len(pages) - KEPT_PAGES] if len(pages) > KEPT_PAGES else ())
        for key, since in self._left.items():
            seconds = PAGE_SECONDS if key in self._pages else CALL_SECONDS
            if key in crowded or now - since >= seconds:
                _forget(page, key)


def _session_of(page: gr.Blocks, event_id: str) -> str:
    """Return the session of an event; it is the event's own if its client named none."""
    queue = page._queue
    event = queue.event_ids_to_events.get(event_id)
    if event is not None:
        return str(event.session_hash)
    pending = queue.pending_event_ids_session.items()
    return next((key for key, events in pending if event_id in events), event_id)


def _is_busy(page: gr.Blocks, key: str) -> bool:
    """Tell whether an event of a session waits or runs."""
    queue = page._queue
    pending = queue.pending_event_ids_session.get(key, ())
    return any(event in queue.event_ids_to_events for event in pending)


def _kept(page: gr.Blocks) -> Iterator[Any]:
    """Return all that Gradio keeps by session: what widgets show, and what was said."""
    queue = page._queue
    yield page.state_holder.session_data
    yield page.state_holder.time_last_used
    yield queue.pending_messages_per_session
    yield queue.pending_event_ids_session


def _forget(page: gr.Blocks, key: str) -> None:
    """Let go of all that is kept of a session."""
    with page.state_holder.lock:
        for kept in _kept(page):
            kept.pop(key, None)
    if isinstance(page, ChatBlocks):
        page.sessions.close(key)
