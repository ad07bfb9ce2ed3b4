"""Carry items from a computing thread into an event loop, without ever waiting for it.

`LoopBell` schedules callbacks in one loop, at most one wake-up pending at a time; `Mailbox` is a
buffer that any thread fills and one task empties. They know nothing of tokens or text. The running
loop is asked through anyio; asyncio is asked itself only for what costs a multiple through anyio
and happens at every wait.

Thread rules:

- `LoopBell.ring`, `Mailbox.put_nowait`, `Mailbox.close` and `Mailbox.abandon`: any thread.
- `LoopBell.current` and `Mailbox.wait`: in a running loop. `Mailbox.drain`: one reader at a time.
- Locks are held for a few bytecodes, never across a call that waits, and never two at once except
  a bell's own lock around the loop's thread-safe scheduling call. They are reentrant, because a
  signal handler or a finalizer may run inside them.
- A finalizer uses `abandon`, which takes no lock: the garbage collector runs finalizers in any
  thread, also in one that holds another mailbox's lock.
"""

from __future__ import annotations

import sys
import weakref
from contextlib import contextmanager
from functools import partial
from threading import RLock, local
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


T = TypeVar("T")

# The end of a loop is noticed when its reader is woken. If no reader waits, the bell is rung once
# for so many unread items, only to check that the loop still exists.
_PROBE_EVERY = 8

# Most callbacks of one turn of the loop: a thousand at once would delay its other tasks.
_MOST_CALLBACKS = 64


class _GatheredBells(local):
    """Bells that a thread will sound at the end of `LoopBell.together`."""

    bells: set[LoopBell] | None = None


_gathering = _GatheredBells()


class LoopBell:
    """Wakes one event loop from other threads; all sinks of a loop share its bell.

    Any number of rings between two turns of the loop cost it a single wake-up.
    """

    # Values are weak and keep their loop alive, so an entry lives as long as a mailbox uses it and
    # the identity of a loop is never reused under a live entry.
    _bells: weakref.WeakValueDictionary[Any, LoopBell] = weakref.WeakValueDictionary()

    def __init__(self, loop: Any) -> None:
        """Args:
        loop: An asyncio event loop or a `trio.lowlevel.TrioToken`; use `current` instead.
        """
        # asyncio and uvloop loops have the first method, trio tokens the second.
        self._schedule: Callable[[Callable[[], None]], Any] = (
            getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
        )
        self._schedule_inside: Callable[[Callable[[], None]], Any] = (
            getattr(loop, "call_soon", None) or loop.run_sync_soon
        )
        self._loop_is_closed: Callable[[], bool] = getattr(loop, "is_closed", bool)
        self._loop = loop
        # asyncio is imported if one of its loops, or one of uvloop's, exists.
        self._asyncio: Any = sys.modules["asyncio"] if hasattr(loop, "create_future") else None
        self._lock = RLock()
        self._wakes: list[Callable[[], object]] = []
        self._pending = False
        self._gone = False

    @classmethod
    def current(cls) -> LoopBell:
        """Return the bell of the running event loop, the same one for every caller in it.

        Raises:
            anyio.NoEventLoopError: No asyncio or trio loop runs in this thread.
        """
        loop = anyio.lowlevel.current_token().native_token
        bell = cls._bells.get(loop)
        if bell is None:
            bell = cls._bells.setdefault(loop, cls(loop))
        return bell

    def is_here(self) -> bool:
        """Tell whether the caller is a task of this loop; False if only `current` can tell."""
        asyncio = self._asyncio
        if asyncio is None:
            return False
        try:
            # A guest of the loop (trio's guest mode) runs inside of it, but in none of its tasks.
            return asyncio.get_running_loop() is self._loop and asyncio.current_task() is not None
        except RuntimeError:  # no asyncio loop runs in this thread
            return False

    def waiter(self) -> tuple[Callable[[], object], Any]:
        """Make an object for `await_waiter`, on which one task of the loop waits.

        Returns:
            The function that ends the wait, to be called in the loop, and the object: a future of
            asyncio, which costs a fraction of an `anyio.Event`, or on trio one of those.
        """
        if self._asyncio is None:
            event = _TrioEvent()
            return event.set, event
        future = self._loop.create_future()
        if self._pending:
            # A second Ctrl-C may have taken the wake-up out of the loop's queue, unseen: nobody
            # would schedule another one, and the engine's close would wait for good.
            self._schedule_inside(self._run_callbacks)
        return partial(_resolve, future), future

    def limit(self, seconds: float, *, shield: bool = False) -> Any:
        """Return a context manager whose block ends after some seconds; for tasks of the loop.

        Ctrl-C in the midst of anyio's leaves trio a scope that its task never exits; trio's own is
        safe from it.

        Args:
            seconds: As many.
            shield: Whether cancellations from outside wait for its end.
        """
        if self._asyncio is not None:
            return anyio.move_on_after(seconds, shield=shield)
        scope = sys.modules["trio"].move_on_after(seconds)
        scope.shield = shield
        return scope

    async def await_waiter(
        self, waiter: Any, wake: Callable[[], object], most: float | None
    ) -> None:
        """Wait on an object of `waiter`.

        Args:
            waiter: The object.
            wake: The function that ends the wait.
            most: Most seconds to wait; None for no limit.
        """
        if self._asyncio is None:
            if most is None:
                return await waiter.wait()
            with self.limit(most):
                return await waiter.wait()
            # trio holds what ended the wait, an exception with all frames of the reader, until the
            # task yields once more; dropped before that, a reader would go on unseen.
            return await anyio.lowlevel.checkpoint()
        if most is None:
            return await waiter
        timer = self._loop.call_later(most, wake)
        try:
            return await waiter
        finally:
            timer.cancel()

    @property
    def gone(self) -> bool:
        """True once the loop is known to have ended."""
        return self._gone

    @staticmethod
    @contextmanager
    def together() -> Iterator[None]:
        """Gather this thread's rings, and wake each loop once at the end.

        For a thread with items for many readers: otherwise the first ring would wake a loop, which
        takes the interpreter from the thread, sleeps and is woken again for the next ring. The end
        of a loop may be noticed only at the end of the block; later rings are refused.
        """
        if _gathering.bells is not None:  # the outermost block wakes the loops
            yield
            return
        bells: set[LoopBell] = set()
        _gathering.bells = bells
        try:
            yield
        finally:
            _gathering.bells = None
            for bell in bells:
                bell._wake_for_gathered()

    def ring(self, wake: Callable[[], object]) -> bool:
        """Have `wake` called in the loop soon, from any thread, without waiting.

        Args:
            wake: Called once in the loop; it must be quick and must not raise.

        Returns:
            False if the loop is closed or has ended: `wake` and all later ones are dropped.
        """
        with self._lock:
            if self._gone:
                return False
            self._wakes.append(wake)
            if self._pending:
                # A loop may close with our wake-up still queued; nothing else would tell us.
                if not self._loop_is_closed():
                    return True
            elif (gathered := _gathering.bells) is not None:
                if self in gathered or not self._loop_is_closed():
                    gathered.add(self)
                    return True
            elif self._schedule_run(self._schedule):
                return True
            self._mark_gone()
            return False

    def _wake_for_gathered(self) -> None:
        """Wake the loop for gathered rings, unless it was woken meanwhile."""
        with self._lock:
            if self._wakes and not self._pending and not self._schedule_run(self._schedule):
                self._mark_gone()

    def _mark_gone(self) -> None:
        self._gone = True
        self._wakes = []

    def _run_callbacks(self) -> None:
        # Under the lock: a ring that comes after it schedules again, one before it is in the list.
        with self._lock:
            wakes, self._wakes = self._wakes[:_MOST_CALLBACKS], self._wakes[_MOST_CALLBACKS:]
            self._pending = False
            if self._wakes and not self._schedule_run(self._schedule_inside):
                self._mark_gone()
        left = iter(wakes)
        try:
            for wake in left:
                wake()
        finally:
            # Ctrl-C in the midst of one, which asyncio makes a cancellation, ends that one alone.
            for wake in left:
                self.ring(wake)

    def _schedule_run(self, schedule: Callable[[Callable[[], None]], Any]) -> bool:
        self._pending = True
        try:
            schedule(self._run_callbacks)
        except RuntimeError:  # asyncio: "Event loop is closed"; trio: RunFinishedError
            return False
        return True


def _resolve(future: Any) -> None:
    """End the wait for a future of asyncio, unless its task was cancelled meanwhile."""
    if not future.done():
        try:
            future.set_result(None)
        except Exception:
            if not future.done():
                raise  # else Ctrl-C, whose handler cancels the task, came in between


class _TrioEvent:
    """Event of one task that wakes nobody once the task has left.

    Ctrl-C in the midst of ``wait`` leaves the task among those that trio wakes; trio would run it
    once more behind its end, and die.
    """

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._is_left = False

    def set(self) -> None:
        if not self._is_left:
            self._event.set()

    async def wait(self) -> None:
        try:
            await self._event.wait()
        except BaseException:
            self._is_left = True
            raise


class Mailbox(Generic[T]):
    """Items from any thread for one reader in an event loop.

    Nothing blocks the sender and nothing is dropped while the reader is there: unread items wait,
    and `drain` returns all of them. A waiting reader is woken once.

    Attributes:
        closed: True if the reader has left or its loop has ended.
    """

    def __init__(
        self,
        on_loop_gone: Callable[[], None] | None = None,
        *,
        pace: float = 0.0,
        is_urgent: Callable[[T], bool] = lambda item: False,
    ) -> None:
        """Args:
        on_loop_gone: Called once, in the sending thread, when a send finds that the reader's loop
            has ended. The mailbox is closed by then. It must not raise.
        pace: Seconds, from 0. A reader that was woken twice within this time then waits until it
            has passed, and reads all items of that time together: a sender that is much faster
            than people read does not wake the loop for every item.
        is_urgent: Tells whether an item wakes the reader at once, whatever its pace. It must be
            quick and must not raise.
        """
        self._pace = pace
        self._is_urgent = is_urgent
        self._woken_at = float("-inf")
        self._is_paced = False
        self._urgent_only = False  # only an urgent item wakes the reader
        self._on_loop_gone = on_loop_gone
        self._lock = RLock()
        self._items: list[T] = []
        self.closed = False
        self._wake: Callable[[], object] | None = None
        self._bell: LoopBell | None = None
        try:
            self._bell = LoopBell.current()
        except RuntimeError:  # built outside a loop: bound by the first wait
            pass

    def __len__(self) -> int:
        """Number of unread items."""
        return len(self._items)

    def put_nowait(self, item: T) -> bool:
        """Append an item from any thread; never waits.

        Returns:
            False if it will never be read (closed, or the reader's loop has ended).
        """
        with self._lock:
            if self.closed:
                return False
            items = self._items
            items.append(item)
            wake = self._wake
            bell = self._bell
            if wake is not None and self._urgent_only and not self._is_urgent(item):
                wake = None
            is_alive = bell is None or not (bell._gone or bell._loop_is_closed())
            if wake is None and len(items) % _PROBE_EVERY and is_alive:
                return True
            if wake is not None:
                self._wake = None
        if bell is None or bell.ring(wake or _wake_nobody):
            return True
        self.close()
        callback, self._on_loop_gone = self._on_loop_gone, None
        if callback is not None:
            callback()
        return False

    async def wait(self) -> None:
        """Return when there is an item to drain, or the mailbox is closed.

        It is no checkpoint if that is so already. A cancelled wait loses nothing. Any loop may
        wait, one task at a time.

        Raises:
            anyio.BusyResourceError: Another task is waiting.
        """
        if self._items or self.closed:
            return
        if self._is_paced:
            rest = max(0.0, self._woken_at + self._pace - monotonic())
            if await self._wait_for_wake(most=rest) or self._items or self.closed:
                self._woken_at = monotonic()
                return
        await self._wait_for_wake()
        now = monotonic()
        self._is_paced = now - self._woken_at < self._pace
        self._woken_at = now

    async def _wait_for_wake(self, *, most: float | None = None) -> bool:
        """Wait to be woken; with a limit of seconds, only by an urgent item.

        Returns:
            True if it was woken or had no reason to wait; another reader may have drained the item.
        """
        bell = self._bell
        if bell is None or not bell.is_here():
            bell = LoopBell.current()
        wake, waiter = bell.waiter()
        with self._lock:
            if self._items or self.closed:
                return True
            if self._wake is not None:
                raise anyio.BusyResourceError("waiting for")
            self._bell, self._urgent_only, self._wake = bell, most is not None, wake
        try:
            await bell.await_waiter(waiter, wake, most)
            return self._wake is not wake
        finally:
            # A sender that has taken it sets an event on which nobody waits any more.
            if self._wake is wake:
                with self._lock:
                    if self._wake is wake:
                        self._wake = None

    def drain(self) -> list[T]:
        """Take all unread items, oldest first."""
        items = self._items
        count = len(items)
        # No call comes between these two, so no Ctrl-C either: nothing is lost.
        drained = items[:count]
        del items[:count]
        return drained

    def close(self) -> None:
        """Leave: unread items are dropped, later ones refused, a waiting task is woken."""
        with self._lock:
            self.closed = True
            self._items.clear()
            wake, self._wake = self._wake, None
        if wake is not None and self._bell is not None:
            self._bell.ring(wake)

    def abandon(self) -> None:
        """Refuse later items, without taking a lock, as a finalizer must."""
        self.closed = True


def _wake_nobody() -> None:
    """Wake no reader; rung only to check that the loop exists."""
