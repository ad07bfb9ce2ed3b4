"""Run work in a thread that ends with it."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, Any

import anyio.to_thread

if TYPE_CHECKING:
    from collections.abc import Callable


async def in_thread(work: Callable[[], Any]) -> Any:
    """Run ``work`` in a new thread, which ends with it."""
    box: list[Any] = []

    def call() -> None:
        try:
            box.append((work(), None))
        except BaseException as error:
            box.append((None, error))

    thread = Thread(target=call)
    thread.start()
    # The waiting thread computes nothing, so it has no team of OpenMP threads.
    await anyio.to_thread.run_sync(thread.join)
    value, error = box[0]
    if error is not None:
        raise error
    return value
