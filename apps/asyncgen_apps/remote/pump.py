"""Read one answer from engines that may be lost, and pass it to the mailbox of its reader."""

from __future__ import annotations

import logging
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

import anyio

from asyncgen import EngineClosedError, OverloadedError, Timing, TokenEvent, Usage
from asyncgen_apps.remote.messages import Failure, ReplicaLostError, StreamStarted, unpacked
from asyncgen_apps.remote.progress import Progress

if TYPE_CHECKING:
    from asyncgen_apps.remote.messages import Call, Calls, Item, PackedEvents, StreamRequest
    from streamers import Mailbox

MOST_LOST = 5
"""Most engines lost in a row without a token; after one more the stream fails."""

PATIENCE = 60.0
"""Seconds for which a stream that has begun waits for a free engine."""

_RETRY_SECONDS = 0.2
"""Seconds between two attempts to find a free engine."""

_log = logging.getLogger(__name__)


class Pump:
    """Reads one answer, from the next engine whenever one is lost.

    Attributes:
        num_resumed: Number of times that another engine resumed it.
    """

    def __init__(self, calls: Calls, request: StreamRequest, mailbox: Mailbox[object]) -> None:
        """Begin without an engine.

        Args:
            calls: Transport to the engines.
            request: Request of the caller.
            mailbox: Receives the first message, lists of events, and the exception if it fails.
        """
        self._calls = calls
        self._mailbox = mailbox
        self._progress = Progress(request)
        self._scope = anyio.CancelScope()
        self._began_at = monotonic()
        self._is_over = False
        self._is_cancelled = False
        self.num_resumed = 0

    def cancel(self) -> None:
        """End the answer with ``"cancelled"``; in the event loop that runs it."""
        self._is_cancelled = True
        self._scope.cancel()

    async def run(self) -> None:
        """Read the answer to its end."""
        try:
            with self._scope:
                await self._follow()
        except BaseException as error:
            is_ours = isinstance(error, Exception)
            self._mailbox.put_nowait(error if is_ours else EngineClosedError("it was closed"))
            if not is_ours:
                raise
            return
        if not self._is_over and self._is_cancelled:
            self._put_cancelled()

    async def _follow(self) -> None:
        """Read from one engine after another until the answer has ended."""
        progress = self._progress
        while True:
            try:
                failure = await self._read()
            except ReplicaLostError as error:
                progress.lose(monotonic() - self._began_at)
                if progress.num_lost > MOST_LOST:
                    raise progress.lost(f"{progress.num_lost} engines were lost") from error
                self.num_resumed += progress.first is not None
                _log.info("an engine was lost, another one resumes: %s", error)
                continue
            if failure is None:
                return
            if progress.first is None or not progress.repeats_after(failure):
                raise failure

    async def _read(self) -> Exception | None:
        """Read the answer of one engine to its end; return the exception that it raised."""
        call, item = await self._start()
        try:
            while item is not None:
                if isinstance(item, Failure):
                    return item.error
                if isinstance(item, StreamStarted):
                    is_new = self._progress.first is None
                    self._progress.begin(item)
                    if is_new:
                        self._mailbox.put_nowait(item)
                else:
                    self._deliver(item)
                if self._is_over:
                    return None
                item = await call.next()
        finally:
            call.close()
        raise ReplicaLostError("an engine said no more in the middle of an answer")

    async def _start(self) -> tuple[Call, Item | None]:
        """Start a call and return its first message; an answer that has begun waits for it."""
        until = monotonic() + PATIENCE
        while True:
            call = self._calls.stream(self._progress.next_request())
            try:
                return call, await call.next()
            except BaseException as error:
                call.close()
                if not isinstance(error, OverloadedError):
                    raise
                if self._progress.first is None:
                    raise
                if monotonic() > until:
                    reason = f"all engines were full for {PATIENCE:.0f} s"
                    raise self._progress.lost(reason) from error
            await anyio.sleep(_RETRY_SECONDS)

    def _deliver(self, given: PackedEvents) -> None:
        events = self._progress.take(unpacked(given, self._progress.offset))
        if not events:
            return
        if (last := events[-1]).usage is not None:
            self._is_over = True
            if self.num_resumed and last.timing is not None:
                total = monotonic() - self._began_at
                events[-1] = replace(last, timing=replace(last.timing, total=total))
        self._mailbox.put_nowait(events)

    def _put_cancelled(self) -> None:
        """Put the events by which an engine ends a cancelled request."""
        first, delivered = self._progress.first, self._progress.delivered
        if first is None:
            first = StreamStarted([], 0, (0,), None, "")
            self._mailbox.put_nowait(first)
        seconds = monotonic() - self._began_at
        given = sum(first.position)
        usage = Usage(len(first.prompt_ids), given + sum(map(len, delivered.values())))
        left = [row for row in range(len(first.position)) if not self._progress.is_over(row)] or [0]
        events = [TokenEvent(row, (), "", None, seconds, "cancelled") for row in left]
        timing = Timing(None, None, seconds, None)
        events[-1] = replace(events[-1], usage=usage, timing=timing)
        self._mailbox.put_nowait(events)
