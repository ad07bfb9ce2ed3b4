"""Counts the requests that generate, refuses one too many, and ends them all on a drain.

Lives on one event loop; knows neither HTTP nor the engine.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, Self

import anyio

from asyncgen_apps.openai_http.errors import SERVER, ApiError
from asyncgen_apps.serving.limits import MOST_REPLIES
from asyncgen_apps.serving.time_slices import LoopTurns

if TYPE_CHECKING:
    from collections.abc import Iterator


BUSY_SECONDS = 1.0
LEAVING_SECONDS = 5.0


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
        reply_bytes: Bytes of these replies that are kept until their ends.
    """

    def __init__(self, limit: int) -> None:
        """Admit requests from now on.

        Args:
            limit: Most requests at a time, at least 1.
        """
        self._limit = limit
        self._inside: set[Abortable] = set()
        self._empty: anyio.Event | None = None
        self._leaving: list[anyio.Event] = []
        self.ready = True
        self.draining = False
        self.turns = LoopTurns()
        self.reply_bytes = 0

    @property
    def count(self) -> int:
        """Number of requests under way."""
        return len(self._inside)

    @contextmanager
    def admit(self, request: Abortable) -> Iterator[None]:
        """Count a request while the block runs.

        Raises:
            ApiError: 429 at the limit, 503 during a drain.
        """
        if self.draining:
            raise leaving()
        if self.count >= self._limit:
            raise ApiError(
                429,
                f"{self.count} requests are being answered, the most of this server; try again",
                "rate_limit_error",
                code="overloaded",
                retry_after=BUSY_SECONDS,
            )
        self._inside.add(request)
        try:
            yield
        finally:
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

    def __init__(self, gate: Gate, what: str, remedy: str) -> None:
        """Begin with none.

        Args:
            gate: Counts those of all replies.
            what: What these bytes are, for the error.
            remedy: What a client can do.
        """
        self.count = 0
        self._gate, self._what, self._remedy = gate, what, remedy

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give the memory back."""
        self.give_back()

    def give_back(self) -> None:
        """Count none any more."""
        self._gate.reply_bytes -= self.count
        self.count = 0

    def add(self, num_bytes: int) -> None:
        """Count some more.

        Raises:
            ApiError: 429: all replies together have too many.
        """
        self.count += num_bytes
        self._gate.reply_bytes += num_bytes
        if self._gate.reply_bytes > MOST_REPLIES:
            message = (
                f"replies in one piece have more than {MOST_REPLIES >> 20} MiB of {self._what} "
                f"together: {self._remedy}"
            )
            busy = BUSY_SECONDS
            raise ApiError(429, message, "rate_limit_error", code="overloaded", retry_after=busy)


def leaving() -> ApiError:
    """Return the error for clients of a server that shuts down."""
    return ApiError(
        503,
        "the server is shutting down; try again",
        SERVER,
        code="shutting_down",
        retry_after=LEAVING_SECONDS,
    )
