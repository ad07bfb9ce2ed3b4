"""Base of both iterator streamers: errors, cancellation, timeouts and several readers.

Knows nothing of threads or event loops: a subclass gives the inbox in which a reader waits.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from streamers.base_streamer import RowStreamer, RowText
from streamers.broadcast import Broadcast, Ending, InboxT, Item, Subscription, text_of
from streamers.errors import ProducerDiedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamers.cancel import Cancelled


CHECK_SECONDS = 0.25
"""Seconds after which a waiting reader checks again that the producing thread lives."""


class ReadableStreamer(RowStreamer, Generic[InboxT]):
    """A streamer whose text is read elsewhere while it is generated.

    Text that was not read yet is merged, so the producer never waits and a late reader gets it in
    one piece. A reader that leaves cancels the producer, if that looks at `cancelled`.
    """

    _timeout_error: ClassVar[type[Exception]]

    def __init__(
        self,
        tokenizer: Any,
        skip_prompt: bool = False,
        timeout: float | None = None,
        **decode_kwargs: Any,
    ) -> None:
        """Args:
        tokenizer: Tokenizer that decodes the ids; see `Detokenizer`.
        skip_prompt: Leave the prompt out of the text.
        timeout: Seconds that a reader waits for the producer's next sign of life; None for ever.
        decode_kwargs: Further arguments of the tokenizer's `decode`.

        Raises:
            TypeError: `tokenizer` cannot decode, or `timeout` is no number.
            ValueError: `timeout` is negative.
        """
        super().__init__(tokenizer, skip_prompt, **decode_kwargs)
        if isinstance(timeout, bool) or not isinstance(timeout, Real | None):
            raise TypeError(f"timeout={timeout!r:.40} must be a number of seconds, or None")
        if timeout is not None and not timeout >= 0:
            raise ValueError(
                f"timeout={timeout} must be at least 0 seconds, or None to wait for ever"
            )
        self.timeout = timeout
        self._broadcast = Broadcast()
        self._own: Subscription[InboxT] | None = self._subscribe()

    @property
    def cancelled(self) -> Cancelled:
        """Flag that the readers have left; give it to `generate` as a stopping criterion.

        Setting it by hand stops the producer, too; the readers then get what was generated.
        """
        return self._broadcast.cancelled

    def put(self, value: Any) -> None:
        """Take token ids; see `RowStreamer.put`. Drops them once cancelled. Never waits."""
        if self._broadcast.cancelled:
            return
        self._broadcast.touch()
        super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Send text to the readers, and the end if the stream is ending."""
        if text:
            self._broadcast.publish(text if isinstance(text, RowText) else RowText(text))
        if stream_end:
            self._broadcast.finish()

    def fail(self, error: BaseException) -> None:
        """End the stream with an error; the readers get what was put before it, then the error.

        To be called in the thread that puts. Does nothing after the end.

        Args:
            error: Becomes the `__cause__` of the `ProducerError` that each reader gets.
        """
        with self._broadcast.lock:  # several readers may find out at once that the producer died
            if self._broadcast.ended:
                return
            try:
                for tail in self._finish():
                    if tail:
                        self.on_finalized_text(tail)
            finally:  # whatever an overridden method or a tokenizer does
                self._broadcast.finish(error)

    def run(self, generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `generate` with this streamer and its flag, and end the stream in any case.

        Meant as the target of a thread: `Thread(target=streamer.run, args=(model.generate,),
        kwargs=inputs)`. If the readers have left already, `generate` is not called.

        Args:
            generate: Called as `generate(*args, streamer=self, stopping_criteria=[…], **kwargs)`.
            args: Passed on.
            kwargs: Passed on; `cancelled` is added to the given `stopping_criteria`.

        Returns:
            The result of `generate`; None if it raised. The error goes to the readers; one that
            is no `Exception`, such as `KeyboardInterrupt`, is raised here as well.
        """
        criteria = [*(kwargs.pop("stopping_criteria", None) or ()), self.cancelled]
        if self.cancelled:
            self.end()
            return None
        self._broadcast.touch()
        try:
            result = generate(*args, streamer=self, stopping_criteria=criteria, **kwargs)
            if not self._broadcast.ended:
                self.end()
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):
                raise
            return None
        return result

    def close(self) -> None:
        """Send all readers away and cancel the producer; text that was not read is dropped."""
        self._broadcast.close()

    @abstractmethod
    def _new_inbox(self, on_gone: Callable[[], None]) -> InboxT:
        """Return an inbox of the kind that the readers wait at."""

    def _subscribe(self) -> Subscription[InboxT]:
        """Return a new subscription; nobody reads it yet."""
        broadcast = self._broadcast
        subscription: Subscription[InboxT] = Subscription(
            self._new_inbox(lambda: broadcast.leave(subscription))
        )
        broadcast.subscribe(subscription)
        return subscription

    def _own_subscription(self) -> Subscription[InboxT]:
        """Return the subscription of those who iterate over the streamer itself."""
        if self._own is None:
            self._own = self._subscribe()
        self._own.is_used = True
        return self._own

    def _new_subscriptions(self, n: int) -> list[Subscription[InboxT]]:
        """Return a subscription for each of `n` readers; the streamer's own is then optional."""
        if n < 1:
            raise ValueError(f"n={n} must be at least 1: the number of readers")
        subscriptions = [self._subscribe() for _ in range(n)]
        if self._own is not None and not self._own.is_used:
            self._broadcast.unsubscribe(self._own)
            self._own = None
        return subscriptions

    def _seconds_to_wait(self, since: float) -> float:
        """Return the seconds until a waiting reader looks again; ends a dead producer's stream.

        Args:
            since: Time at which the reader began to wait.

        Raises:
            Exception: Of the type `_timeout_error`: the timeout has passed since the reader began
                to wait and since the producer's latest sign of life.
        """
        seconds = CHECK_SECONDS
        if self.timeout is not None:
            limit = max(since, self._broadcast.last_put) + self.timeout
            seconds = min(limit - time.monotonic(), CHECK_SECONDS)
        if seconds <= 0:
            raise self._timeout_error(
                f"generate gave no sign of life for timeout={self.timeout} seconds; "
                "give the streamer a longer timeout, or None"
            )
        if self._broadcast.producer_died():
            self.fail(
                ProducerDiedError(
                    "the generating thread ended without calling end(); "
                    "start it with Thread(target=streamer.run, args=(generate,)) to learn why"
                )
            )
        return seconds


StreamerT = TypeVar("StreamerT", bound=ReadableStreamer[Any])


class StreamerReader(Generic[StreamerT]):
    """Base of both iterators over a streamer's text; dropping one is leaving the loop."""

    _over = True  # while it is being made

    def __init__(self, streamer: StreamerT, subscription: Subscription[Any]) -> None:
        """Begin to read.

        Args:
            streamer: Streamer of the text.
            subscription: One of its subscriptions.
        """
        self._streamer = streamer
        self._subscription = subscription
        subscription.is_used = True
        self._over = False
        streamer._broadcast.begin_reading(subscription, id(self))

    def close(self) -> None:
        """Stop reading, from any thread; the producer is cancelled if nobody else reads."""
        if not self._over:
            self._over = True
            self._streamer._broadcast.leave(self._subscription, id(self))

    def __del__(self) -> None:
        self.close()

    def _text_of(self, item: Item, end: type[Exception]) -> RowText:
        """Return a text or raise its ending, which stays; the subscription serves more rounds."""
        if isinstance(item, Ending):
            self._over = True
            self._streamer._broadcast.finish_reading(self._subscription, id(self))
        return text_of(item, end)
