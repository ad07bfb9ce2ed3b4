"""Reads a stream at the pace of a screen.

The model may give hundreds of tokens a second; a browser gets ten pictures a second at most, each
with all the text there is. Runs on asyncio, which is what Gradio runs on. Knows no Gradio.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from asyncgen_apps.gradio_chat.reasoning import CLOSE, OPEN

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from asyncgen import Completion, TokenEvent, TokenLogprob
    from asyncgen_apps.engine import EventStream


MIN_INTERVAL = 0.1
"""Least seconds between two updates."""
MAX_INTERVAL = 0.5
"""Most seconds between two updates, also when nothing has come: a reader that has gone is noticed
at an update only."""


@dataclass(slots=True)
class PartialAnswer:
    """Received part of an answer.

    Attributes:
        texts: The pieces; joined they are the text.
        logprobs: One entry a token, if asked for.
        is_begun: True after the first token.
        failure: Exception of the stream, if it failed.
        completion: The result of a stream that ended without one.
        ended: True after the last event.
        is_thinking: True if the text so far ends within reasoning.
    """

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    is_begun: bool = False
    failure: Exception | None = None
    completion: Completion | None = None
    ended: bool = False
    is_thinking: bool = False

    def add(self, event: TokenEvent) -> None:
        """Take in an event; reasoning stands in front of the text, between tags."""
        if event.reasoning:
            if not self.is_thinking:
                self.texts.append(OPEN)
            self.is_thinking = True
            self.texts.append(event.reasoning)
        if event.text:
            if self.is_thinking:
                self.texts.append(CLOSE)
            self.is_thinking = False
            self.texts.append(event.text)

    @property
    def text(self) -> str:
        """All the text there is."""
        if len(self.texts) > 1:
            self.texts[:] = ["".join(self.texts)]
        return self.texts[0] if self.texts else ""


async def read_throttled(
    stream: EventStream, *, min_interval: float = MIN_INTERVAL, max_interval: float = MAX_INTERVAL
) -> AsyncGenerator[PartialAnswer, None]:
    """Read a stream to its end; leaving the loop cancels it.

    Args:
        stream: The answer, not yet started.
        min_interval: Least seconds between two updates.
        max_interval: Most seconds between two updates.

    Yields:
        The same object each time, further on. The last one has ended; an error of the stream is
        its ``failure``, not raised.
    """
    partial = PartialAnswer()
    news = asyncio.Event()
    task = asyncio.create_task(_read(stream, partial, news))
    try:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max_interval):
                    await news.wait()
            news.clear()
            is_last = partial.ended
            yield partial
            if is_last:
                return
            await asyncio.sleep(min_interval)
    finally:
        stream.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=5)


async def _read(stream: EventStream, partial: PartialAnswer, news: asyncio.Event) -> None:
    """Take in events as they come, until the stream ends."""
    try:
        async with stream:
            async for event in stream.events():
                partial.is_begun = True
                partial.add(event)
                partial.logprobs.extend(event.logprobs or ())
                news.set()
        partial.completion = stream.result
    except Exception as error:
        partial.failure = error
    finally:
        partial.ended = True
        news.set()
