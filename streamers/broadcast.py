"""Send text from one producing thread to any number of readers, each of whom sees all of it.

Nobody waits for a reader: text goes to each subscription's own inbox, and is kept for those that
come later. When the last reader has left, the producer is asked to stop. Knows nothing of tokens,
nor of waiting: an inbox is a queue for threads or a mailbox of an event loop.

A round is what is generated between a first `put` and its end; a streamer may be used for several
rounds, one after the other.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from streamers.base_streamer import RowText
from streamers.cancel import Cancelled
from streamers.errors import ProducerError


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a round.

    Attributes:
        error: The error that ended it; None if generation came to its end.
    """

    error: BaseException | None = None

    def raise_error(self) -> None:
        """Raise the error as the reader is to see it, if there is one.

        Raises:
            ProducerError: With the original as its cause.
        """
        if isinstance(self.error, ProducerError):
            raise type(self.error)(*self.error.args) from self.error.__cause__
        if self.error is not None:
            name = type(self.error).__name__
            raise ProducerError(f"generation failed with {name}: {self.error}") from self.error


Item = RowText | Ending


class Inbox(Protocol):
    """Queue of a reader's items; see `streamers.wakeup.Mailbox`."""

    def put_nowait(self, item: Item) -> bool: ...

    def drain(self) -> list[Item]: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...

    @property
    def closed(self) -> bool: ...


InboxT = TypeVar("InboxT", bound=Inbox)


class Subscription(Generic[InboxT]):
    """An inbox, and the items that were taken out of it and merged.

    Several reader objects may share one. It does not keep them alive.

    Attributes:
        inbox: Queue of the items.
        readers: Identities of the reader objects that share it.
        is_used: Whether anybody has read from it.
    """

    def __init__(self, inbox: InboxT) -> None:
        """Begin without items and readers.

        Args:
            inbox: Queue of the items.
        """
        self.inbox = inbox
        self.readers: set[int] = set()
        self.is_used = False
        self._ready: deque[Item] = deque()

    def next_item(self) -> Item | None:
        """Return the next text or ending if there is one; text of a row comes in one piece.

        A closed inbox gives an ending.
        """
        if not self._ready:
            self._ready.extend(_merged(self.inbox.drain()))
        if self._ready:
            return self._ready.popleft()
        return Ending() if self.inbox.closed else None


class Broadcast:
    """Carries text to the readers, and their leaving to the producer.

    `touch` and `publish` belong to the producer; the rest may be called from any thread, and
    `leave` from a finalizer, so it takes no lock.
    """

    def __init__(self) -> None:
        self.cancelled = Cancelled()
        self.ended = False  # the round is over
        self.last_put = time.monotonic()
        self.lock = threading.RLock()  # held to send, to subscribe and to end; never across a wait
        self._log: list[Item] = []
        self._subscriptions: tuple[Subscription[Any], ...] = ()
        self._being_read: set[Subscription[Any]] = set()
        self._producer: threading.Thread | None = None

    def touch(self) -> None:
        """Note that the calling thread is producing."""
        self.last_put = time.monotonic()
        self._producer = threading.current_thread()  # identifiers are reused
        if self.ended:
            with self.lock:
                self._log = []
                self.ended = False

    def publish(self, item: Item) -> None:
        """Send an item to every reader; never waits."""
        with self.lock:
            self._log.append(item)
            for subscription in self._subscriptions:
                if not subscription.inbox.put_nowait(item):
                    self.unsubscribe(subscription)

    def finish(self, error: BaseException | None = None) -> None:
        """End the round, unless it has ended already."""
        with self.lock:
            if not self.ended:
                self.ended = True
                self.publish(Ending(error))

    def subscribe(self, subscription: Subscription[InboxT]) -> None:
        """Add a subscription, which gets the round from its start."""
        with self.lock:
            for item in self._log:
                subscription.inbox.put_nowait(item)
            self._subscriptions = (*self._subscriptions, subscription)

    def unsubscribe(self, subscription: Subscription[InboxT]) -> None:
        """Send nothing more to a subscription."""
        with self.lock:
            self._subscriptions = tuple(
                one for one in self._subscriptions if one is not subscription
            )

    def begin_reading(self, subscription: Subscription[InboxT], reader: int) -> None:
        """Note that a reader object reads from a subscription."""
        subscription.readers.add(reader)
        self._being_read.add(subscription)

    def finish_reading(self, subscription: Subscription[InboxT], reader: int) -> None:
        """Note that a reader object has read to the end; the subscription stays for more rounds."""
        subscription.readers.discard(reader)
        if not subscription.readers:
            self._being_read.discard(subscription)

    def leave(self, subscription: Subscription[InboxT], reader: int | None = None) -> None:
        """Note that a reader object, or with None all of a subscription, is gone for good."""
        if reader is None:
            subscription.readers.clear()
        self.finish_reading(subscription, -1 if reader is None else reader)
        if subscription.readers:
            return
        subscription.inbox.abandon()
        if not self._being_read:
            self.cancel()

    def close(self) -> None:
        """Send all readers away."""
        for subscription in self._subscriptions:
            subscription.inbox.close()
        self.cancel()

    def cancel(self) -> None:
        """Ask the producer to stop, unless it has ended."""
        if not self.ended:
            self.cancelled.set()

    def producer_died(self) -> bool:
        """Tell whether the thread that produced last has ended, and the round has not."""
        producer = self._producer
        return not self.ended and producer is not None and not producer.is_alive()


def text_of(item: Item, end: type[Exception]) -> RowText:
    """Return a text, or raise the error of an ending, or the iterator's own `end`."""
    if isinstance(item, Ending):
        item.raise_error()
        raise end
    return item


def _merged(items: list[Item]) -> list[Item]:
    """Join the text of each row, up to each ending; rows in the order of their first text."""
    if len(items) < 2:
        return items
    merged: list[Item] = []
    rows: dict[int, list[str]] = {}

    def close_rows() -> None:
        merged.extend([RowText("".join(parts), row) for row, parts in rows.items()])
        rows.clear()

    for item in items:
        if isinstance(item, Ending):
            close_rows()
            merged.append(item)
        else:
            rows.setdefault(item.row, []).append(item)
    close_rows()
    return merged
