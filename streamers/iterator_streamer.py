"""Text for another thread, as a blocking iterator."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Self

from streamers.broadcast import Item, Subscription, text_of
from streamers.readable_streamer import ReadableStreamer, StreamerReader
from streamers.thread_mailbox import ThreadMailbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamers.base_streamer import RowText


class TextIteratorStreamer(ReadableStreamer["ThreadMailbox[Item]"]):
    """Streamer whose print-ready text is read by an iterator, usually in another thread.

    Iterating gives `RowText`: text that knows its row. Leaving the loop (`break`, an exception),
    `close`, or leaving `with streamer:` sets `cancelled`, and the producer stops at its next step
    if that is among its stopping criteria; `run` adds it. After the end, another loop over the
    streamer reads its next `generate`.

    Examples:
        >>> streamer = TextIteratorStreamer(tokenizer)
        >>> run = Thread(target=streamer.run, args=(model.generate,), kwargs=inputs)
        >>> run.start()
        >>> for text in streamer:
        ...     print(text, end="", flush=True)
    """

    _timeout_error = queue.Empty

    def __iter__(self) -> TextReader:
        """Return a reader; several over the streamer itself share the text (see `tee`)."""
        return TextReader(self, self._own_subscription())

    def __next__(self) -> RowText:
        """Return the next text, waiting for it.

        Raises:
            StopIteration: Generation has ended; the next call waits for the next `generate`.
            queue.Empty: The producer gave no sign of life for `timeout` seconds.
            ProducerError: Generation failed.
        """
        return text_of(_take(self, self._own_subscription()), StopIteration)

    def tee(self, n: int) -> tuple[TextReader, ...]:
        """Return independent readers, each of which sees all text from the start.

        Args:
            n: Number of readers, at least 1. The producer is cancelled when all have left.
        """
        return tuple([TextReader(self, one) for one in self._new_subscriptions(n)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _new_inbox(self, on_gone: Callable[[], None]) -> ThreadMailbox[Item]:
        return ThreadMailbox()


class TextReader(StreamerReader[TextIteratorStreamer]):
    """A blocking iterator over a stream's text; dropping it before the end cancels the producer.

    For one thread at a time.
    """

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RowText:
        """Return the next text; see `TextIteratorStreamer.__next__`. The end stays the end."""
        if self._over:
            raise StopIteration
        try:
            item = _take(self._streamer, self._subscription)
        except BaseException:
            del self  # the traceback keeps this frame, and must not keep the reader
            raise
        return self._text_of(item, StopIteration)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _take(streamer: TextIteratorStreamer, subscription: Subscription[ThreadMailbox[Item]]) -> Item:
    """Wait for the next text or ending of a subscription."""
    since = time.monotonic()
    while (item := subscription.next_item()) is None:
        subscription.inbox.wait(streamer._seconds_to_wait(since))
    return item
