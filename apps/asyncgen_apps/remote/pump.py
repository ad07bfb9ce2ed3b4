"""Gets one answer from engines that may go away, and puts it where its reader finds it."""

from __future__ import annotations

import logging
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

import anyio

from asyncgen import EngineClosedError, OverloadedError, Timing, TokenEvent, Usage
from asyncgen_apps.remote.messages import Begun, Failed, ReplicaLostError, unpacked
from asyncgen_apps.remote.progress import Progress

if TYPE_CHECKING:
    from asyncgen_apps.remote.messages import Call, Calls, Item, Order, Packed
    from streamers import Mailbox

MOST_LOST = 5
"""Engines that may be lost in a row without a token between; one more, and the stream fails."""

PATIENCE = 60.0
"""Seconds for which a stream that has begun asks again where all engines are full."""

_AGAIN_SECONDS = 0.2
"""Between two such questions."""

_log = logging.getLogger(__name__)


class Pump:
    """One answer on its way from whichever engine has it.

    Attributes:
        num_resumed: How often another engine went on with it.
    """

    def __init__(self, calls: Calls, order: Order, mailbox: Mailbox[object]) -> None:
        """Nothing is asked for yet.

        Args:
            calls: The way to the engines.
            order: What is wanted.
            mailbox: Where everything goes: how it began, lists of events, and what ended it if
                not an event.
        """
        self._calls = calls
        self._mailbox = mailbox
        self._progress = Progress(order)
        self._scope = anyio.CancelScope()
        self._began_at = monotonic()
        self._is_over = False
        self._is_cancelled = False
        self.num_resumed = 0

    def cancel(self) -> None:
        """Stop the work, and say so; in the loop that it runs in."""
        self._is_cancelled = True
        self._scope.cancel()

    async def run(self) -> None:
        """Bring the answer to its end."""
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
            self._say_cancelled()

    async def _follow(self) -> None:
        """Ask engine after engine, until one has come to the end."""
        progress = self._progress
        while True:
            try:
                failure = await self._ask()
            except ReplicaLostError as error:
                progress.lose(monotonic() - self._began_at)
                if progress.num_lost > MOST_LOST:
                    raise progress.lost(f"{progress.num_lost} engines were lost") from error
                self.num_resumed += progress.first is not None
                _log.info("an engine was lost, another is asked: %s", error)
                continue
            if failure is None:
                return
            if progress.first is None or not progress.repeats_after(failure):
                raise failure

    async def _ask(self) -> Exception | None:
        """Have one engine answer to the end; returns what it raised."""
        call, item = await self._begun()
        try:
            while item is not None:
                if isinstance(item, Failed):
                    return item.error
                if isinstance(item, Begun):
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

    async def _begun(self) -> tuple[Call, Item | None]:
        """A call, and what came of it first; an answer that has begun waits for a free engine."""
        until = monotonic() + PATIENCE
        while True:
            call = self._calls.stream(self._progress.order())
            try:
                return call, await call.next()
            except BaseException as error:
                call.close()
                if not isinstance(error, OverloadedError):
                    raise
                if self._progress.first is None:
                    raise
                if monotonic() > until:
                    why = f"all engines were full for {PATIENCE:.0f} s"
                    raise self._progress.lost(why) from error
            await anyio.sleep(_AGAIN_SECONDS)

    def _deliver(self, given: Packed) -> None:
        events = self._progress.take(unpacked(given, self._progress.offset))
        if not events:
            return
        if (last := events[-1]).usage is not None:
            self._is_over = True
            if self.num_resumed and last.timing is not None:
                total = monotonic() - self._began_at
                events[-1] = replace(last, timing=replace(last.timing, total=total))
        self._mailbox.put_nowait(events)

    def _say_cancelled(self) -> None:
        """The events that an engine says where a request is cancelled."""
        first, delivered = self._progress.first, self._progress.delivered
        if first is None:
            first = Begun([], 0, (0,), None, "")
            self._mailbox.put_nowait(first)
        seconds = monotonic() - self._began_at
        given = sum(first.position)
        usage = Usage(len(first.prompt_ids), given + sum(map(len, delivered.values())))
        left = [row for row in range(len(first.position)) if not self._progress.is_over(row)] or [0]
        events = [TokenEvent(row, (), "", None, seconds, "cancelled") for row in left]
        timing = Timing(None, None, seconds, None)
        events[-1] = replace(events[-1], usage=usage, timing=timing)
        self._mailbox.put_nowait(events)
