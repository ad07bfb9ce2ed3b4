"""Tell a client how much of its prompts is read, until their first tokens come."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from asyncgen_apps.openai_http.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from asyncgen import TokenEvent
    from asyncgen_apps.engine import EngineStream
    from asyncgen_apps.openai_http.request_streams import Take


REPORT_SECONDS = 0.2
"""Between two looks at how far a prompt is."""


class PromptReports:
    """Reports of the prompts of one request, in the form of llama.cpp."""

    def __init__(
        self,
        streams: Mapping[int, EngineStream],
        tell: Callable[[int, dict[str, object]], Awaitable[None]],
    ) -> None:
        """Begin; nothing is told yet.

        Args:
            streams: Streams that have started, by the first choice of each.
            tell: Sends the report of a choice.

        Raises:
            ApiError: The engine does not tell.
        """
        if any(stream.prompt_progress is None for stream in streams.values()):
            message = "`return_progress` is true: engines of other processes do not tell it"
            raise ApiError(400, message, param="return_progress", code="unsupported_parameter")
        self._tell = tell
        self._unread = dict(streams)
        self._told: dict[int, tuple[int, int]] = {}

    async def run(self) -> None:
        """Report what has changed, again and again; end when every prompt is read."""
        with suppress(OSError):  # nobody listens any more, which the reader of events finds too
            while self._unread:
                for index in list(self._unread):
                    await self._report(index)
                await anyio.sleep(REPORT_SECONDS)

    def before(self, take: Take) -> Take:
        """Return a reader of events that first tells the end of their prompt, once."""

        async def last(index: int, event: TokenEvent) -> None:
            await self._report(index)
            del self._unread[index]
            waiting = take(index, event)
            if waiting is not None:
                await waiting

        def taken(index: int, event: TokenEvent) -> Awaitable[None] | None:
            return last(index, event) if index in self._unread else take(index, event)

        return taken

    async def _report(self, index: int) -> None:
        """Tell how far a prompt is, if that is new and it has begun."""
        stream = self._unread.get(index)
        found = None if stream is None else stream.prompt_progress
        if found is None:
            return
        total, cached, processed, seconds = found
        if not seconds or self._told.get(index) == (cached, processed):
            return
        self._told[index] = cached, processed
        milliseconds = round(1000 * seconds)
        report = {"total": total, "cache": cached, "processed": processed}
        await self._tell(index, {**report, "time_ms": milliseconds})
