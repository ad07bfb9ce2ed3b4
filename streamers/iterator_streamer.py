"""Text for another thread, as a blocking iterator."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Self

from streamers.broadcast import Ending, Item
from streamers.readable_streamer import ReadableStreamer, Subscription, SubscriptionReader, text_of
from streamers.thread_mailbox import ThreadMailbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamers.base_streamer import RowText


class TextIteratorStreamer(ReadableStreamer["ThreadMailbox[Item]"]):
    """Streamer whose print-ready text is read by an iterator, usually in another thread.

    Iterating gives `RowText`: text that knows its row. Leaving the loop (`break`, an exception),
    `close`, or leaving `with streamer:` sets `cancelled`, and the producer stops at its next step
    if that is among its stopping criteria; `run` sees to it. After the end, another loop over the
    streamer reads its next `generate`.

    Examples:
        >>> streamer = TextIteratorStreamer(tokenizer)
        >>> run = Thread(target=streamer.run, args=(model.generate,), kwargs=inputs)
        >>> run.start()
        >>> for text in streamer:
        ...     print(text, end="", flush=True)
    """

    def __iter__(self) -> TextReader:
        """Return a reader; several over the streamer itself share what there is (see `tee`)."""
        return TextReader(self._own_subscription())

    def __next__(self) -> RowText:
        """Return the next text, waiting for it.

        Raises:
            StopIteration: generation has ended; the next call waits for the next `generate`.
            queue.Empty: the producer gave no sign of life for `timeout` seconds.
            ProducerError: generation failed.
        """
        subscription = self._own_subscription()
        subscription.used = True
        return text_of(_take(subscription), StopIteration)

    def tee(self, n: int) -> tuple[TextReader, ...]:
        """Return independent readers, each of which sees all text from the start.

        Args:
            n: number of readers, at least 1. The producer is cancelled when all have left.
        """
        return tuple([TextReader(subscription) for subscription in self._new_subscriptions(n)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _new_inbox(self, on_gone: Callable[[], None]) -> ThreadMailbox[Item]:
        return ThreadMailbox()


class TextReader(SubscriptionReader["ThreadMailbox[Item]"]):
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
            item = _take(self._subscription)
        except BaseException:
            del self  # the traceback keeps this frame, and must not keep the reader
            raise
        self._note_end(item)
        return text_of(item, StopIteration)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _take(subscription: Subscription[ThreadMailbox[Item]]) -> Item:
    """Wait for the next text or ending of a subscription."""
    seat, since = subscription.seat, time.monotonic()
    item = seat.next_ready()
    while item is None:
        if seat.inbox.closed:
            return Ending()
        seconds = subscription.patience(since)
        if seconds <= 0:
            raise queue.Empty(subscription.out_of_patience())
        subscription.look_after_producer()
        seat.inbox.wait(seconds)
        seat.receive(seat.inbox.drain())
        item = seat.next_ready()
    return item
