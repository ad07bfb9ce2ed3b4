"""Compute a request's position in the waiting queue from the engine's counters.

The engine takes requests up in the order in which they came, from whatever client. So
those before ours are those that waited when ours was posted, less those taken up since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from asyncgen import AsyncgenError

if TYPE_CHECKING:
    from asyncgen import MetricsSnapshot
    from asyncgen_apps.gradio_chat.model import ChatModel


class QueuePosition:
    """A position in the queue."""

    def __init__(self, model: ChatModel, figures: MetricsSnapshot) -> None:
        """Note where the queue ends.

        Args:
            model: Whose queue.
            figures: Its figures just before the request was posted.
        """
        self._model = model
        self._before = figures.requests_waiting
        self._taken_up = figures.queue_time.count

    @classmethod
    async def last(cls, model: ChatModel) -> Self:
        """Look at the queue's end; to be called just before the request is posted."""
        return cls(model, await model.measure())

    async def ahead(self) -> int | None:
        """Count the requests before ours; ``None`` once ours is taken up.

        A request that was cancelled in the queue counts until the queue is as short as that.
        """
        try:
            figures = await self._model.measure()
        except AsyncgenError:
            return None
        taken_up = figures.queue_time.count - self._taken_up
        if figures.requests_waiting == 0 or taken_up > self._before:
            return None
        return min(self._before - taken_up, figures.requests_waiting - 1)
