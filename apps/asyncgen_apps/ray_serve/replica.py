"""A replica: one engine in a process of its own."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, aclosing, suppress
from typing import TYPE_CHECKING, Any

from ray import serve

from asyncgen import AsyncLLM
from asyncgen_apps.ray_serve.autoscaling import told
from asyncgen_apps.ray_serve.calls import direct, telling
from asyncgen_apps.remote.worker import answer, facts_of, reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from ray.serve.handle import DeploymentHandle

    from asyncgen import MetricsSnapshot
    from asyncgen_apps.remote import Facts, Order
    from asyncgen_apps.remote.messages import Item

TELL_SECONDS = 1.0
"""How often it tells the board its figures."""


class Replica:
    """An engine that answers whoever has a handle to it."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, source: str, options: Mapping[str, Any], board: DeploymentHandle
    ) -> None:
        """Load the model, and have one token made, so that nobody waits for what is made first.

        Args:
            source: The model.
            options: Of ``AsyncLLM``.
            board: Where figures are told.
        """
        self._stack = AsyncExitStack()
        self._llm = await self._stack.enter_async_context(AsyncLLM(source, **options))
        await self._llm.generate([1], max_new_tokens=1)
        self._name = serve.get_replica_context().replica_id.unique_id
        self._board = direct(board)
        self._telling = asyncio.create_task(self._tell())

    async def stream(self, order: Order) -> AsyncIterator[Item]:
        """Follow an order; cancelled, it stops the work."""
        async with aclosing(answer(self._llm, order, replica=self._name)) as items:
            async for item in items:
                yield item

    async def ask(self, kind: str, *given: Any) -> Any:
        """Answer a question; an error is returned, not raised."""
        return await reply(self._llm, kind, given)

    async def facts(self) -> Facts:
        """Return the facts that callers keep of the engine."""
        return facts_of(self._llm)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the values that autoscaling uses; Serve calls this."""
        return told(self._llm.metrics())

    async def figures(self) -> MetricsSnapshot:
        """Return the metrics of the engine."""
        return self._llm.metrics()

    async def process(self) -> int:
        """The number of its process."""
        return os.getpid()

    async def check_health(self) -> None:
        """Raise where only a restart helps."""
        if not self._llm.is_healthy:
            raise RuntimeError("the engine is dead")

    async def __del__(self) -> None:
        """Close the engine, when Serve ends the replica."""
        self._telling.cancel()
        with suppress(asyncio.CancelledError):
            await self._telling
        await self._stack.aclose()

    async def _tell(self) -> None:
        """Tell the figures, again and again."""
        while True:
            with suppress(Exception), telling():  # the board may be away; it is told again soon
                await self._board.tell.remote(self._name, self._llm.metrics())
            await asyncio.sleep(TELL_SECONDS)
