"""Let a reader wait: as a task of an event loop, or by blocking its thread.

What a stream does is written once, as coroutines (`asyncgen.llm.answer`). A task awaits them. A
thread runs them with :func:`run_blocking`, and whatever they await blocks it: they end without ever
having been suspended, so there is no event loop, and one that runs in the same thread is not
touched.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio
import anyio.lowlevel

from asyncgen.engine.output.events import is_last
from asyncgen.engine.thread import DecodeThread
from asyncgen.llm.preparing import PreparingThreads
from asyncgen.types import TokenEvent
from streamers import Mailbox, ThreadMailbox

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from asyncgen.llm.opening import Opened

Letter = TokenEvent | BaseException

T = TypeVar("T")

READER_PACE = 0.008
"""Seconds between two wake-ups of a reader, half a frame; the last token wakes it at once.

To wake it for each token, at 800 a second, would cost the decode thread a tenth of its time.
"""


class Inbox(Protocol):
    """Place of the events that a reader has not read."""

    @property
    def closed(self) -> bool:
        """True if nothing more is taken in."""

    def __len__(self) -> int:
        """Number of unread events."""

    def put_nowait(self, item: Letter, /) -> bool:
        """Take in an event, or what ends the stream; never waits."""

    def drain(self) -> list[Letter]:
        """Give all that is unread."""

    def close(self) -> None:
        """Leave, and wake who waits."""

    def abandon(self) -> None:
        """Leave without taking a lock."""


class Waiting(Protocol):
    """One way to wait for everything that a stream waits for."""

    def inbox(self, on_gone: Callable[[], None]) -> Inbox:
        """Make a place for events, and say what to call when their reader can never come."""

    def loaded(self, thread: DecodeThread[Opened]) -> Awaitable[Opened]:
        """Wait until the model is loaded."""

    def prepared(
        self,
        threads: PreparingThreads,
        function: Callable[[], T],
        *,
        length: int,
        limited: bool,
        client: str | None,
    ) -> Awaitable[T]:
        """Wait for a function that makes a request of a client ready."""

    def filled(self, inbox: Any) -> Awaitable[None]:
        """Wait until something is unread; at most once for a reader that never has to."""

    def turn(self) -> Awaitable[None]:
        """Let others have their turn, where nothing is waited for."""

    def pause(self, seconds: float) -> Awaitable[None]:
        """Wait so long."""


class InLoop:
    """Let a task wait, on asyncio and trio; a loop that ended is a reader that left."""

    inbox = partial(Mailbox[Letter], pace=READER_PACE, is_urgent=is_last)
    loaded = staticmethod(DecodeThread.wait_ready)
    prepared = staticmethod(PreparingThreads.run)
    filled = staticmethod(Mailbox.wait)
    turn = staticmethod(anyio.lowlevel.checkpoint)
    pause = staticmethod(anyio.sleep)


class InThread:
    """A thread blocks; Ctrl-C reaches it all the same."""

    def inbox(self, on_gone: Callable[[], None]) -> ThreadMailbox[Letter]:
        """A mailbox for threads; a thread cannot end unseen: it drops its reader."""
        return ThreadMailbox(pace=READER_PACE, is_urgent=is_last)

    async def loaded(self, thread: DecodeThread[Opened]) -> Opened:
        """As the thread does for threads."""
        return thread.wait_ready_in_thread()

    async def prepared(
        self,
        threads: PreparingThreads,
        function: Callable[[], T],
        *,
        length: int,
        limited: bool,
        client: str | None,
    ) -> T:
        """As the threads do for threads, first come, first served."""
        return threads.run_in_thread(function, length=length, limited=limited)

    async def filled(self, inbox: ThreadMailbox[Letter]) -> None:
        """As a mailbox does."""
        inbox.wait()

    async def turn(self) -> None:
        """The interpreter sees to it."""

    async def pause(self, seconds: float) -> None:
        """A sleep."""
        time.sleep(seconds)  # noqa: ASYNC251 - no loop runs this


def run_blocking(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine that waits in no other way than `InThread`'s.

    Args:
        function: Written in Python, makes the coroutine: one that is made before this is called
            may be dropped in between by Ctrl-C, and the interpreter warns of that.

    Raises:
        StopIteration: In place of its ``StopAsyncIteration``.
        Exception: What else it raised.
    """
    coroutine = function()
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    except StopAsyncIteration:
        raise StopIteration from None
    coroutine.close()
    raise AssertionError("it waited for an event loop")
