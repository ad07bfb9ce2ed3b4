"""How many requests are before ours in the queue, from the engine's counters alone.

The engine takes requests up in the order in which they came, whichever door they came through. So
those before ours are those that waited when ours was posted, less those taken up since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen import AsyncgenError

if TYPE_CHECKING:
    from asyncgen_apps.gradio_chat.model import ChatModel


class QueuePosition:
    """A position in the queue; make it just before the request is posted."""

    def __init__(self, model: ChatModel) -> None:
        """Look at the queue's end."""
        self._model = model
        figures = model.metrics()
        self._before = figures.requests_waiting
        self._taken_up = figures.queue_time.count

    def ahead(self) -> int | None:
        """Count the requests before ours; ``None`` once ours is taken up.

        A request that was cancelled in the queue counts until the queue is as short as that.
        """
        try:
            figures = self._model.metrics()
        except AsyncgenError:
            return None
        taken_up = figures.queue_time.count - self._taken_up
        if figures.requests_waiting == 0 or taken_up > self._before:
            return None
        return min(self._before - taken_up, figures.requests_waiting - 1)
