"""The producing side that both iterator streamers share: errors, cancellation, several readers.

Knows nothing of how a reader waits.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Generic

from streamers.base_streamer import RowStreamer, RowText
from streamers.broadcast import Broadcast, Ending, InboxT, Item, Seat
from streamers.errors import ProducerDiedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamers.cancel import Cancelled


CHECK_SECONDS = 0.25
"""How often a waiting reader looks whether the producing thread still lives."""


class ReadableStreamer(RowStreamer, Generic[InboxT]):
    """A streamer whose text is read elsewhere while it is generated.

    Text that was not read yet is merged, so the producer never waits and a late reader gets it in
    one piece. A reader that leaves cancels the producer, if that looks at `cancelled`.
    """

    def __init__(
        self,
        tokenizer: Any,
        skip_prompt: bool = False,
        timeout: float | None = None,
        **decode_kwargs: Any,
    ) -> None:
        """Args:
        tokenizer: what the ids are decoded with; see `Detokenizer`.
        skip_prompt: whether to leave the prompt out of the text.
        timeout: seconds that a reader waits for the producer's next sign of life; None for ever.
        decode_kwargs: further arguments of the tokenizer's `decode`.

        Raises:
            TypeError: `tokenizer` cannot decode.
            ValueError: `timeout` is negative.
        """
        super().__init__(tokenizer, skip_prompt, **decode_kwargs)
        if timeout is not None and not timeout >= 0:
            raise ValueError(
                f"timeout={timeout} must be at least 0 seconds, or None to wait for ever"
            )
        self.timeout = timeout
        self._channel = Broadcast()
        self._own: Subscription[InboxT] | None = Subscription(self, self._new_inbox)

    @property
    def cancelled(self) -> Cancelled:
        """Flag that the readers have left; give it to `generate` as a stopping criterion.

        Setting it by hand stops the producer, too; the readers then get what was generated.
        """
        return self._channel.cancelled

    def put(self, value: Any) -> None:
        """Take token ids; see `RowStreamer.put`. Drops them once cancelled. Never waits."""
        if self._channel.cancelled:
            return
        self._channel.touch()
        super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Send text to the readers, and the end if the stream is ending."""
        if text:
            self._channel.publish(text if isinstance(text, RowText) else RowText(text))
        if stream_end:
            self._channel.finish()

    def fail(self, error: BaseException) -> None:
        """End the stream with an error; the readers get what was put before it, then the error.

        To be called in the thread that puts. Does nothing after the end.

        Args:
            error: becomes the `__cause__` of the `ProducerError` that each reader gets.
        """
        with self._channel.lock:  # several readers may find out at once that the producer died
            if self._channel.ended:
                return
            try:
                for tail in self._finish():
                    if tail:
                        self.on_finalized_text(tail)
            finally:  # whatever an overridden method or a tokenizer does
                self._channel.finish(error)

    def run(self, generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `generate` with this streamer and its flag, and see to it that the end comes.

        Meant as the target of a thread: `Thread(target=streamer.run, args=(model.generate,),
        kwargs=inputs)`. If the readers have left already, `generate` is not called.

        Args:
            generate: called as `generate(*args, streamer=self, stopping_criteria=[…], **kwargs)`.
            args: passed on.
            kwargs: passed on; `cancelled` is added to the given `stopping_criteria`.

        Returns:
            What `generate` returned; None if it raised. What it raised goes to the readers; what
            is no `Exception`, such as `KeyboardInterrupt`, is raised here as well.
        """
        criteria = [*(kwargs.pop("stopping_criteria", None) or ()), self.cancelled]
        if self.cancelled:
            self.end()
            return None
        self._channel.touch()
        try:
            result = generate(*args, streamer=self, stopping_criteria=criteria, **kwargs)
            if not self._channel.ended:
                self.end()
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):
                raise
            return None
        return result

    def close(self) -> None:
        """Send all readers away and cancel the producer; text that was not read is dropped."""
        self._channel.close()

    @abstractmethod
    def _new_inbox(self, on_gone: Callable[[], None]) -> InboxT:
        """Return an inbox of the kind that the readers wait at."""

    def _own_subscription(self) -> Subscription[InboxT]:
        """Return the one of those who iterate over the streamer itself."""
        if self._own is None:
            self._own = Subscription(self, self._new_inbox)
        return self._own

    def _new_subscriptions(self, n: int) -> list[Subscription[InboxT]]:
        """Return one for each independent reader; nobody need read at the streamer's own then."""
        if n < 1:
            raise ValueError(f"n={n} must be at least 1: the number of readers")
        subscriptions = [Subscription(self, self._new_inbox) for _ in range(n)]
        if self._own is not None and not self._own.used:
            self._channel.part(self._own.seat)
            self._own = None
        return subscriptions


class Subscription(Generic[InboxT]):
    """What a reader reads by: shared by its reader objects, and not keeping them alive."""

    def __init__(
        self,
        streamer: ReadableStreamer[InboxT],
        new_inbox: Callable[[Callable[[], None]], InboxT],
    ) -> None:
        """Args:
        streamer: whose text is read.
        new_inbox: builds an inbox from what it is to call when its reader's loop has ended.
        """
        self.streamer = streamer
        self.channel = streamer._channel
        self.used = False
        self.seat = Seat(new_inbox(lambda: self.channel.leave(self.seat)))
        self.channel.join(self.seat)

    def look_after_producer(self) -> None:
        """End the stream if the producing thread has died."""
        if self.channel.producer_died():
            self.streamer.fail(
                ProducerDiedError(
                    "the generating thread ended without calling end(); "
                    "start it with Thread(target=streamer.run, args=(generate,)) to learn why"
                )
            )

    def patience(self, since: float) -> float:
        """Return the seconds to wait now for a reader that waits since then.

        At most `CHECK_SECONDS`; not above 0 where the streamer's timeout has passed since the
        reader began to wait and since the producer's latest sign of life.
        """
        timeout = self.streamer.timeout
        if timeout is None:
            return CHECK_SECONDS
        limit = max(since, self.channel.last_put) + timeout
        return min(limit - time.monotonic(), CHECK_SECONDS)

    def out_of_patience(self) -> str:
        """Return the message for a reader that has waited too long."""
        return (
            f"generate gave no sign of life for timeout={self.streamer.timeout} seconds; "
            "give the streamer a longer timeout, or None"
        )


class SubscriptionReader(Generic[InboxT]):
    """What both iterators over a stream's text share; dropping one is leaving the loop."""

    def __init__(self, subscription: Subscription[InboxT]) -> None:
        """Args:
        subscription: where to read; got from the streamer.
        """
        self._over = False
        self._subscription = subscription
        subscription.used = True
        subscription.channel.sit(subscription.seat, id(self))

    def close(self) -> None:
        """Stop reading, from any thread; the producer is cancelled if nobody else reads."""
        if not self._over:
            self._over = True
            self._subscription.channel.leave(self._subscription.seat, id(self))

    def __del__(self) -> None:
        self.close()

    def _note_end(self, item: Item) -> None:
        """An ending stays the end, and the place is kept for another round."""
        if isinstance(item, Ending):
            self._over = True
            self._subscription.channel.rest(self._subscription.seat, id(self))


def text_of(item: Item, end: type[Exception]) -> RowText:
    """Return a text, or raise what the ending says: an error, or the iterator's own `end`."""
    if isinstance(item, Ending):
        item.raise_error()
        raise end
    return item
