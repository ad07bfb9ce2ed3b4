"""Show one stream on the screen, and stop it on Ctrl-C."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import anyio

from asyncgen_apps.cli.render import REFRESH_SECONDS, PlainView

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from anyio.abc import TaskStatus

    from asyncgen import Completion
    from asyncgen_apps.cli.render import View
    from asyncgen_apps.cli.source import LLMStream


T = TypeVar("T")


class Interrupts:
    """Pass each Ctrl-C to the current action; one that comes between two is kept for the next.

    Attributes:
        count: Number of Ctrl-C since the latest :meth:`meaning` began.
    """

    def __init__(self) -> None:
        """Start at none."""
        self.count = 0
        self._act: Callable[[], None] | None = None
        self._is_pending = False

    @property
    def wants_to_leave(self) -> bool:
        """True if the user pressed Ctrl-C again."""
        return self.count > 1

    def take_pending(self) -> bool:
        """Return whether a Ctrl-C is pending, and forget it."""
        pending, self._is_pending = self._is_pending, False
        return pending

    @contextmanager
    def meaning(self, act: Callable[[], None]) -> Iterator[None]:
        """Let a Ctrl-C call ``act`` while the block runs; at once, if one is pending."""
        self.count, self._act = 0, act
        if self.take_pending():
            self._hear()
        try:
            yield
        finally:
            self._act = None

    async def listen(self, *, task_status: TaskStatus[None]) -> None:
        """Receive the signals until cancelled."""
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            task_status.started()
            async for _ in signals:
                self._hear()

    def _hear(self) -> None:
        self.count += 1
        if self._act is None:
            self._is_pending = True
        else:
            self._act()


async def with_interrupts(work: Callable[[Interrupts], Awaitable[T]]) -> T:
    """Run ``work`` while Ctrl-C raises no exception, but goes to its interrupts.

    One receiver serves all of it: with one for each answer, a Ctrl-C between two answers would end
    the program.

    Args:
        work: Gets the interrupts.

    Returns:
        The result of ``work``.

    Raises:
        Exception: ``work`` raised it.
    """
    interrupts = Interrupts()
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        await tasks.start(interrupts.listen)
        try:
            result = await work(interrupts)
        except Exception as error:
            # Raised after the group, which would wrap it in an exception group.
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return result


async def show_answer(stream: LLMStream, view: View, interrupts: Interrupts) -> Completion:
    """Read a stream into a view until it ends, fails or is stopped by Ctrl-C.

    Args:
        stream: A new stream; it is closed on return.
        view: Gets every piece, a regular refresh, and one ``close`` in any case.
        interrupts: The first one stops the answer, the next one leaves without waiting for it.

    Returns:
        The completion so far, also after Ctrl-C.

    Raises:
        Exception: The stream raised it.
    """
    failure: Exception | None = None

    def stop() -> None:
        stream.cancel()
        if interrupts.wants_to_leave:
            tasks.cancel_scope.cancel()

    async def draw() -> None:
        while True:
            view.refresh()
            await anyio.sleep(REFRESH_SECONDS)

    with _closing(view):
        async with stream, anyio.create_task_group() as tasks:
            with interrupts.meaning(stop):
                tasks.start_soon(draw)
                try:
                    async for piece in stream:
                        view.feed(piece)
                except Exception as error:
                    # As in with_interrupts.
                    failure = error
                tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return stream.result


async def answer_once(stream: LLMStream, prompt: str = "") -> tuple[Completion, int]:
    """Write one answer to standard output as it comes.

    Args:
        stream: A new stream; it is closed on return.
        prompt: What it continues, if it continues a text.

    Returns:
        The completion so far, and the number of Ctrl-C meanwhile.

    Raises:
        Exception: The stream raised it.
    """

    async def show(interrupts: Interrupts) -> tuple[Completion, int]:
        completion = await show_answer(stream, PlainView(prompt=prompt), interrupts)
        return completion, interrupts.count

    return await with_interrupts(show)


@contextmanager
def _closing(view: View) -> Iterator[None]:
    """Close a view at the end, also after an error."""
    try:
        yield
    finally:
        view.close()
