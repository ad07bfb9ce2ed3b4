"""Run one engine in a replica of Ray Serve."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, aclosing, suppress
from typing import TYPE_CHECKING, Any

from ray import serve

from asyncgen import AsyncLLM
from asyncgen_apps.ray_serve.autoscaling import scaling_metrics
from asyncgen_apps.ray_serve.calls import direct, translated_errors
from asyncgen_apps.remote.worker import answer, facts_of, reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from ray.serve.handle import DeploymentHandle

    from asyncgen import MetricsSnapshot
    from asyncgen_apps.remote import EngineFacts, StreamRequest
    from asyncgen_apps.remote.messages import Item

REPORT_SECONDS = 1.0
"""Seconds between two reports to the metrics board."""


class Replica:
    """Engine that callers reach by a handle of Serve."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, source: str, options: Mapping[str, Any], board: DeploymentHandle
    ) -> None:
        """Load the model, and generate one token to warm up.

        Args:
            source: Name or folder of the model.
            options: Options of ``AsyncLLM``.
            board: Handle of the metrics board.
        """
        self._stack = AsyncExitStack()
        self._llm = await self._stack.enter_async_context(AsyncLLM(source, **options))
        await self._llm.generate([1], max_new_tokens=1)
        self._name = serve.get_replica_context().replica_id.unique_id
        self._board = direct(board)
        self._reporting = asyncio.create_task(self._report())

    async def stream(self, request: StreamRequest) -> AsyncIterator[Item]:
        """Yield the messages of a stream; cancelling it stops the engine's work."""
        async with aclosing(answer(self._llm, request, replica=self._name)) as items:
            async for item in items:
                yield item

    async def ask(self, kind: str, *given: Any) -> Any:
        """Answer a question; an error is returned, not raised."""
        return await reply(self._llm, kind, given)

    async def facts(self) -> EngineFacts:
        """Return the values that callers keep of the engine."""
        return facts_of(self._llm)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the values that autoscaling uses; Serve calls this."""
        return scaling_metrics(self._llm.metrics())

    async def metrics(self) -> MetricsSnapshot:
        """Return the metrics of the engine."""
        return self._llm.metrics()

    async def process(self) -> int:
        """Return the id of its process."""
        return os.getpid()

    async def check_health(self) -> None:
        """Raise if the engine is dead, so that Serve restarts the replica."""
        if not self._llm.is_healthy:
            raise RuntimeError("the engine is dead")

    async def __del__(self) -> None:
        """Close the engine; Serve calls this when the replica stops."""
        self._reporting.cancel()
        with suppress(asyncio.CancelledError):
            await self._reporting
        await self._stack.aclose()

    async def _report(self) -> None:
        """Report the metrics to the board every second."""
        while True:
            with suppress(Exception), translated_errors():  # the next report may reach the board
                await self._board.report.remote(self._name, self._llm.metrics())
            await asyncio.sleep(REPORT_SECONDS)
