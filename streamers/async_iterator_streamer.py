"""Text for an event loop, as an async iterator on asyncio and trio."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Self

from streamers.broadcast import Item, Subscription, text_of
from streamers.readable_streamer import ReadableStreamer, StreamerReader
from streamers.wakeup import LoopBell, Mailbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamers.base_streamer import RowText


class _AsyncClosing:
    """Closes itself at the end of `async with`."""

    @abstractmethod
    def close(self) -> None:
        """Stop, without waiting for anything."""

    async def aclose(self) -> None:
        """The same as `close`."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class AsyncTextIteratorStreamer(ReadableStreamer[Mailbox[Item]], _AsyncClosing):
    """Streamer whose print-ready text is read by `async for`, while a thread generates.

    Iterating gives `RowText`: text that knows its row. Leaving the loop (`break`, an exception, a
    cancelled task), `aclose`, leaving `async with streamer:` or the end of the event loop set
    `cancelled`, and the producer stops at its next step if that is among its stopping criteria;
    `run` adds it. After the end, another loop over the streamer reads its next `generate`.

    Build it inside a coroutine: otherwise it cannot notice a loop that ends before anybody read.

    Examples:
        >>> async def main():
        ...     streamer = AsyncTextIteratorStreamer(tokenizer)
        ...     Thread(target=streamer.run, args=(model.generate,), kwargs=inputs).start()
        ...     async for text in streamer:
        ...         print(text, end="", flush=True)
    """

    _timeout_error = TimeoutError

    def __aiter__(self) -> AsyncTextReader:
        """Return a reader; several over the streamer itself share the text (see `tee`)."""
        return AsyncTextReader(self, self._own_subscription())

    async def __anext__(self) -> RowText:
        """Return the next text, waiting for it.

        Raises:
            StopAsyncIteration: Generation has ended; the next call waits for the next `generate`.
            TimeoutError: The producer gave no sign of life for `timeout` seconds.
            ProducerError: Generation failed.
        """
        return text_of(await _take(self, self._own_subscription()), StopAsyncIteration)

    def tee(self, n: int) -> tuple[AsyncTextReader, ...]:
        """Return independent readers, each of which sees all text from the start.

        Args:
            n: Number of readers, at least 1. The producer is cancelled when all have left.
        """
        return tuple([AsyncTextReader(self, one) for one in self._new_subscriptions(n)])

    def _new_inbox(self, on_gone: Callable[[], None]) -> Mailbox[Item]:
        return Mailbox(on_gone)


class AsyncTextReader(StreamerReader[AsyncTextIteratorStreamer], _AsyncClosing):
    """An async iterator over a stream's text; dropping it before the end cancels the producer.

    For one task at a time. `close` and the garbage collector may come from any thread.
    """

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RowText:
        """Return the next text; see `AsyncTextIteratorStreamer`. The end stays the end."""
        if self._over:
            raise StopAsyncIteration
        try:
            item = await _take(self._streamer, self._subscription)
        except BaseException:
            # The traceback keeps this frame, and must not keep the reader: a cancelled task that
            # leaves its loop is to be noticed at once, not when garbage is collected.
            del self
            raise
        return self._text_of(item, StopAsyncIteration)


async def _take(
    streamer: AsyncTextIteratorStreamer, subscription: Subscription[Mailbox[Item]]
) -> Item:
    """Wait for the next text or ending of a subscription."""
    since = time.monotonic()
    while (item := subscription.next_item()) is None:
        with LoopBell.current().limit(streamer._seconds_to_wait(since)):
            await subscription.inbox.wait()
    return item
