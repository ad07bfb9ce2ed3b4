"""Forgets what is kept of sessions whose clients have gone, and bounds all of it in bytes.

Anybody can make a session: every call of the API has one, and it holds what its widgets show and
what nobody read, 0.3 MB and more. Gradio keeps the latest ones. Here a session lasts as long as a
connection of its client, and then for a while, or until others need the room; who comes back later
begins with what its browser kept. Knows Gradio's queue and states, and the paths on which its
clients listen.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import gradio as gr
from starlette.requests import HTTPConnection

from asyncgen_apps.gradio_chat.event_turns import CLIENT, refusal, share_jobs
from asyncgen_apps.gradio_chat.guard import EVENT
from asyncgen_apps.gradio_chat.session_bytes import SESSION_BYTES, UnreadLimit, session_bytes
from asyncgen_apps.gradio_chat.sessions import Sessions, client_id
from asyncgen_apps.serving.clients import Proxies
from asyncgen_apps.serving.origins import refuse_request

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

KEPT_PAGES = 64
"""Pages that have gone and are still kept: a telephone that slept comes back to where it was."""

PAGE_SECONDS = 3600.0
"""How long such a page is kept."""

CALL_SECONDS = 60.0
"""How long a session that never was a page is kept when nobody listens to it."""

MAX_MEMORY_BYTES = 256 * 2**20
"""Default limit of the bytes that are kept of all sessions."""

SWEEP_SECONDS = 10.0
"""Between two times that leftovers are looked for, at least."""

_LISTENING = re.compile(
    r"/gradio_api/(?:heartbeat/(?P<page>[^/]+)|call/(?:v2/)?[^/]+/(?P<event>[^/]+)|queue/data)/?$"
)


class ChatBlocks(gr.Blocks):
    """A page that knows its sessions."""

    def __init__(self, sessions: Sessions, proxies: Proxies, **options: Any) -> None:
        """Begin to draw it.

        Args:
            sessions: The open pages.
            proxies: Whose word about the address of a user is taken.
            **options: For Gradio.
        """
        self.sessions = sessions
        self.proxies = proxies
        super().__init__(**options)


class SessionCleanupMiddleware:
    """Counts the connections of each session, and removes sessions without one."""

    def __init__(
        self,
        app: "ASGIApp",
        max_memory_bytes: int = MAX_MEMORY_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wrap the page's application.

        Args:
            app: The application.
            max_memory_bytes: Most bytes that are kept of all sessions, and half of it of those of
                one client.
            clock: Tells seconds.
        """
        self._app = app
        self._max_memory_bytes = max_memory_bytes
        self._share = max_memory_bytes // 2
        self._counted: dict[str, int] = {}
        self._owners: dict[str, str] = {}  # client of each session
        self._admitted: Counter[str] = Counter()  # bytes of events under way, by client
        self._unread = UnreadLimit(_forget)
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
        self._unread.watch(page)
        share_jobs(page)
        key = self._listener(page, scope)
        own, size = scope.get(EVENT, (key, 0))
        client = _client_of(page, HTTPConnection(scope))
        scope[CLIENT] = client
        crowd = refusal(page, client) if size else None
        full = self._make_room(page, own, size, client) if size and crowd is None else None
        if crowd is not None or full is not None:
            see = (
                ""
                if full is None
                else "; see --chat-max-memory, launch_options(max_memory_bytes=…)"
            )
            message = f"{crowd or full} at most: try again later{see}"
            await refuse_request(scope, send, 429, "chat_full", message)
            return
        self._connected[key] += 1
        self._admitted[client] += size
        try:
            await self._app(scope, receive, send)
        finally:
            self._admitted[client] -= size
            if not self._admitted[client]:
                del self._admitted[client]
            self._count(page, own, client)
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

    def _make_room(self, page: gr.Blocks, own: str, size: int, client: str) -> str | None:
        """Forget idle sessions, those first that were used longest ago, until an event fits.

        Those of its client give way before it holds more than its share, and only they; those of
        all before the page holds more than it may.

        Args:
            page: The page.
            own: Session of the event, which is kept.
            size: Bytes that it brings.
            client: Whose event it is.

        Returns:
            Whose sessions hold how many bytes, if it does not fit.
        """
        used = page.state_holder.time_last_used
        for limit, whose in ((self._share, client), (self._max_memory_bytes, None)):
            keys = [key for key in self._counted if whose in (None, self._owners.get(key))]
            held = sum(self._counted[key] for key in keys)
            needed = size + SESSION_BYTES - limit
            needed += self._admitted.total() if whose is None else self._admitted[whose]
            for key in sorted(keys, key=lambda key: used.get(key, datetime.min)):
                if needed + held <= 0:
                    break
                if key != own and not _is_busy(page, key):
                    _forget(page, key)
                    held -= self._counted.pop(key)
            if needed + held > 0:
                subject = (
                    "the sessions of this page hold" if whose is None else "your sessions hold"
                )
                return f"{subject} {held} bytes, and {limit}"
        return None

    def _count(self, page: gr.Blocks, own: str, client: str) -> None:
        """Count a session that has just been used, new ones, and the one counted longest ago.

        A session belongs to the client of its first event.
        """
        known = _known(page)
        self._counted = {key: size for key, size in self._counted.items() if key in known}
        self._owners = {key: owner for key, owner in self._owners.items() if key in known}
        oldest = next(iter(self._counted), own)
        for key in {own, oldest, *(known - self._counted.keys())} & known:
            session = page.sessions.find(key) if isinstance(page, ChatBlocks) else None
            self._counted.pop(key, None)
            self._counted[key] = session_bytes(page, key, session)
            if key not in self._owners:
                self._owners[key] = client if key == own else _owner_of(page, key) or client

    def _sweep(self, page: gr.Blocks) -> None:
        """Forget those that nobody has listened to for long enough."""
        now = self._clock()
        known = _known(page)
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


def _client_of(page: gr.Blocks, request: HTTPConnection) -> str:
    """Say whom a request belongs to."""
    return client_id(request, page.proxies if isinstance(page, ChatBlocks) else Proxies(()))


def _owner_of(page: gr.Blocks, key: str) -> str | None:
    """Return the client of a session by its events; ``None`` if none waits or runs."""
    queue = page._queue
    for event_id in queue.pending_event_ids_session.get(key, ()):
        event = queue.event_ids_to_events.get(event_id)
        if event is not None:
            return _client_of(page, event.request)
    return None


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


def _known(page: gr.Blocks) -> set[str]:
    """Return the sessions that anything is kept of."""
    known = {key for kept in _kept(page) for key in kept}
    if isinstance(page, ChatBlocks):
        known.update(page.sessions)
    return known


def _forget(page: gr.Blocks, key: str) -> None:
    """Let go of all that is kept of a session."""
    with page.state_holder.lock:
        for kept in _kept(page):
            kept.pop(key, None)
    if isinstance(page, ChatBlocks):
        page.sessions.close(key)
