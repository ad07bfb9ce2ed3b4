"""Counts the requests that generate, refuses one too many, and ends them all on a drain.

Places and memory are shared among clients. Lives on one event loop; knows neither HTTP nor the
engine.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, Self

import anyio

from asyncgen_apps.openai_http.errors import SERVER, ApiError
from asyncgen_apps.serving.client_turns import ClientTurns
from asyncgen_apps.serving.limits import MOST_REPLIES
from asyncgen_apps.serving.row_budget import RowBudget
from asyncgen_apps.serving.shared_budget import SharedBudget
from asyncgen_apps.serving.time_slices import LoopTurns

if TYPE_CHECKING:
    from collections.abc import Iterator


BUSY_SECONDS = 1.0
LEAVING_SECONDS = 5.0

THREADS = 4
"""Threads on which replies are laid out: texts of prompts, vectors, text of ids."""


class Abortable(Protocol):
    """Request under way that can be aborted."""

    def abort(self, error: ApiError) -> None:
        """End now, and tell the client this."""


class Gate:
    """Limit of concurrent requests that generate, and their drain.

    Attributes:
        ready: True if routers should send new requests.
        draining: True if new requests are refused.
        turns: Turns of the loop for the large replies of these requests.
        threads: Threads for what these requests do beside the loop; clients take turns.
        places: Requests at a time.
        rows: Choices, and texts to embed, at a time.
        reply_bytes: Bytes of replies that are kept until their ends.
    """

    def __init__(self, limit: int, *, is_shared: bool = True) -> None:
        """Admit requests from now on.

        Args:
            limit: Most requests at a time, at least 1.
            is_shared: False where all come from one client.
        """
        self.places = SharedBudget(limit, is_shared=is_shared)
        self.rows = RowBudget(is_shared=is_shared)
        self.reply_bytes = SharedBudget(MOST_REPLIES, is_shared=is_shared)
        self._inside: set[Abortable] = set()
        self._empty: anyio.Event | None = None
        self._leaving: list[anyio.Event] = []
        self.ready = True
        self.draining = False
        self.turns = LoopTurns()
        self.threads = ClientTurns(THREADS)

    @property
    def count(self) -> int:
        """Number of requests under way."""
        return len(self._inside)

    @contextmanager
    def admit(self, request: Abortable, client: str, rows: int = 1) -> Iterator[None]:
        """Count a request while the block runs.

        Args:
            request: The request.
            client: Name of its client.
            rows: Choices, or texts, that it asks for.

        Raises:
            ApiError: 429 at a limit, 503 during a drain.
        """
        if self.draining:
            raise leaving()
        if not self.places.take(client):
            raise _busy(self.places.refusal(client, "requests are being answered") + "; try again")
        if not self.rows.take(client, rows):
            self.places.give_back(client)
            raise _busy(self.rows.refusal(client, rows))
        self._inside.add(request)
        try:
            yield
        finally:
            self.places.give_back(client)
            self.rows.give_back(client, rows)
            self._inside.discard(request)
            if self._empty is not None and not self._inside:
                self._empty.set()

    def drain(self) -> None:
        """Refuse new requests; running ones go on."""
        self.ready = False
        self.draining = True
        for event in self._leaving:
            event.set()

    async def wait_draining(self) -> None:
        """Return when the drain begins."""
        if self.draining:
            return
        event = anyio.Event()
        self._leaving.append(event)
        try:
            await event.wait()
        finally:
            self._leaving.remove(event)

    async def wait_empty(self) -> None:
        """Return when no request runs; after :meth:`drain`, that stays so."""
        if self._inside:
            if self._empty is None or self._empty.is_set():
                self._empty = anyio.Event()
            await self._empty.wait()

    def abort_all(self) -> None:
        """Abort all requests; every client gets the error."""
        self.drain()
        for request in tuple(self._inside):
            request.abort(leaving())


class ReplyBytes:
    """Bytes of a reply that are kept until its end, counted with those of all in a ``with`` block.

    Attributes:
        count: Bytes of this reply.
    """

    def __init__(self, budget: SharedBudget, client: str, what: str, remedy: str) -> None:
        """Begin with none.

        Args:
            budget: Counts those of all replies.
            client: Name of the client.
            what: What these bytes are, for the error.
            remedy: What a client can do.
        """
        self.count = 0
        self._budget, self._client, self._what, self._remedy = budget, client, what, remedy

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give the memory back."""
        self.give_back()

    def give_back(self) -> None:
        """Count none any more."""
        self._budget.give_back(self._client, self.count)
        self.count = 0

    def add(self, num_bytes: int) -> None:
        """Count some more.

        Raises:
            ApiError: 429: all replies together have too many, or those of the client have.
        """
        if not self._budget.take(self._client, num_bytes):
            said = self._budget.refusal(self._client, f"MiB of {self._what} are kept", 2**20)
            raise _busy(f"{said}; {self._remedy}")
        self.count += num_bytes


def _busy(message: str) -> ApiError:
    return ApiError(429, message, "rate_limit_error", code="overloaded", retry_after=BUSY_SECONDS)


def leaving() -> ApiError:
    """Return the error for clients of a server that shuts down."""
    return ApiError(
        503,
        "the server is shutting down; try again",
        SERVER,
        code="shutting_down",
        retry_after=LEAVING_SECONDS,
    )
