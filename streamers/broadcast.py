"""From one producing thread to any number of readers, each of whom sees everything.

Nobody waits for a reader: text goes to each reader's own inbox, and is kept for those that come
later. When the last reader has left, the producer is asked to stop. Knows nothing of tokens, and
nothing of how a reader waits: an inbox is a queue for threads or a mailbox of an event loop.

What is generated between a first `put` and its end is a round; a streamer may be used for several,
one after the other.
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
        error: what ended it, None if generation came to its end.
    """

    error: BaseException | None = None

    def raise_error(self) -> None:
        """Raise what the reader is to see of the error, if there is one.

        Raises:
            ProducerError: with the original as its cause.
        """
        if isinstance(self.error, ProducerError):
            raise type(self.error)(*self.error.args) from self.error.__cause__
        if self.error is not None:
            name = type(self.error).__name__
            raise ProducerError(f"generation failed with {name}: {self.error}") from self.error


Item = RowText | Ending


class Inbox(Protocol):
    """Where a reader's items wait; see `streamers.wakeup.Mailbox`."""

    def put_nowait(self, item: Item) -> bool: ...

    def drain(self) -> list[Item]: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...

    @property
    def closed(self) -> bool: ...


InboxT = TypeVar("InboxT", bound=Inbox)


class Seat(Generic[InboxT]):
    """A place among the readers: an inbox, and what was taken out of it and merged."""

    def __init__(self, inbox: InboxT) -> None:
        """Args:
        inbox: where the items wait.
        """
        self.inbox = inbox
        self.handles: set[int] = set()  # reader objects that sit here, by identity
        self._ready: deque[Item] = deque()

    def next_ready(self) -> Item | None:
        """Return the next text or ending if there is one; text of a row comes in one piece."""
        if not self._ready:
            self.receive(self.inbox.drain())
        return self._ready.popleft() if self._ready else None

    def receive(self, items: list[Item]) -> None:
        """Add items that were taken out of the inbox."""
        self._ready.extend(_merged(items))


class Broadcast:
    """Carries text to the readers, and the news that they left to the producer.

    `touch` and `publish` belong to the producer; the rest may be called from any thread, and
    `leave` from a finalizer, which is why it takes no lock.
    """

    def __init__(self) -> None:
        self.cancelled = Cancelled()
        self.ended = False  # the round is over
        self.last_put = time.monotonic()
        self.lock = threading.RLock()  # held to send, to join and to end; never across a wait
        self._log: list[Item] = []
        self._seats: tuple[Seat[Any], ...] = ()
        self._occupied: set[Seat[Any]] = set()
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
            for seat in self._seats:
                if not seat.inbox.put_nowait(item):
                    self._seats = tuple(one for one in self._seats if one is not seat)

    def finish(self, error: BaseException | None = None) -> None:
        """End the round, unless it has ended already."""
        with self.lock:
            if not self.ended:
                self.ended = True
                self.publish(Ending(error))

    def join(self, seat: Seat[InboxT]) -> None:
        """Add a reader, who gets the round from its start."""
        with self.lock:
            for item in self._log:
                seat.inbox.put_nowait(item)
            self._seats = (*self._seats, seat)

    def part(self, seat: Seat[InboxT]) -> None:
        """Remove a place where nobody ever read."""
        with self.lock:
            self._seats = tuple(one for one in self._seats if one is not seat)

    def sit(self, seat: Seat[InboxT], handle: int) -> None:
        """Note that a reader object reads at a place."""
        seat.handles.add(handle)
        self._occupied.add(seat)

    def rest(self, seat: Seat[InboxT], handle: int) -> None:
        """Note that a reader object has read to the end; its place stays for another round."""
        seat.handles.discard(handle)
        if not seat.handles:
            self._occupied.discard(seat)

    def leave(self, seat: Seat[InboxT], handle: int | None = None) -> None:
        """Note that a reader object, or with None everybody at a place, is gone for good."""
        if handle is None:
            seat.handles.clear()
        else:
            seat.handles.discard(handle)
        if seat.handles:
            return
        seat.inbox.abandon()
        self._occupied.discard(seat)
        if not self._occupied:
            self.cancel()

    def close(self) -> None:
        """Send all readers away."""
        for seat in self._seats:
            seat.inbox.close()
        self.cancel()

    def cancel(self) -> None:
        """Ask the producer to stop, unless it has ended."""
        if not self.ended:
            self.cancelled.set()

    def producer_died(self) -> bool:
        """Whether the thread that produced last has ended, and the round has not."""
        producer = self._producer
        return not self.ended and producer is not None and not producer.is_alive()


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
