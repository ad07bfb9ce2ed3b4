"""Brings one stream to the screen, and lets Ctrl-C stop it.

Knows streams and views; not where the question came from.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from asyncgen_apps.cli.render import REFRESH_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from asyncgen import Completion
    from asyncgen_apps.cli.render import View
    from asyncgen_apps.cli.source import LLMStream


class Interrupts:
    """Counts the Ctrl-C of one answer: the first stops the answer, the next one leaves.

    Attributes:
        count: How many there were.
    """

    def __init__(self) -> None:
        """Start at none."""
        self.count = 0

    @property
    def wants_to_leave(self) -> bool:
        """Whether the user insisted."""
        return self.count > 1


async def show_answer(stream: LLMStream, view: View, interrupts: Interrupts) -> Completion:
    """Read a stream into a view until it ends, fails or is stopped by Ctrl-C.

    Args:
        stream: Just begun; it is closed on return.
        view: Gets every piece, a regular refresh, and one ``close`` in any case.
        interrupts: Counts the Ctrl-C.

    Returns:
        What was generated, also after Ctrl-C.

    Raises:
        Exception: What the stream raised.
    """

    failure: Exception | None = None

    async def watch(signals: AsyncIterator[signal.Signals]) -> None:
        async for _ in signals:
            interrupts.count += 1
            stream.cancel()
            if interrupts.wants_to_leave:
                tasks.cancel_scope.cancel()

    async def draw() -> None:
        while True:
            view.refresh()
            await anyio.sleep(REFRESH_SECONDS)

    with _closing(view), anyio.open_signal_receiver(signal.SIGINT) as received:
        async with stream, anyio.create_task_group() as tasks:
            tasks.start_soon(watch, received)
            tasks.start_soon(draw)
            try:
                async for piece in stream:
                    view.feed(piece)
            except Exception as error:
                # Raised behind the group, which would wrap it in an exception group.
                failure = error
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return stream.result


@contextmanager
def _closing(view: View) -> Iterator[None]:
    """Close a view whatever happens."""
    try:
        yield
    finally:
        view.close()
