"""Engines of this process as if they were elsewhere: lost at chosen moments, full, or slow."""

from __future__ import annotations

import pickle
import random
from typing import TYPE_CHECKING, Any

import anyio

from asyncgen import OverloadedError
from asyncgen_apps.remote import ReplicaLostError
from asyncgen_apps.remote.worker import answer, reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from asyncgen import AsyncLLM
    from asyncgen_apps.remote import StreamRequest


class LocalCall:
    """An order under way, whose engine is lost after so many messages."""

    def __init__(self, items: AsyncIterator[Any], messages: int | None) -> None:
        self._items = items
        self._left = messages

    async def next(self) -> Any:
        if self._left == 0:
            await self._items.aclose()  # type: ignore[attr-defined]
            raise ReplicaLostError("killed")
        item = await anext(self._items, None)
        if self._left is not None:
            self._left -= 1
        return pickle.loads(pickle.dumps(item))

    def close(self) -> None:
        pass


class FullCall:
    async def next(self) -> Any:
        raise OverloadedError("full", 0.01)

    def close(self) -> None:
        pass


class LocalCalls:
    """The way to some engines, in turn.

    Attributes:
        requests: All that were given.
        full: Orders that find everything full, from now on.
        messages: How many messages the next call may give; ``None``: all.
    """

    def __init__(self, *engines: AsyncLLM, messages: Callable[[], int | None] | None = None):
        self.engines = engines
        self.messages = messages or (lambda: None)
        self.requests: list[StreamRequest] = []
        self.full = 0
        self.is_healthy = True
        self.silent: Any = None

    def stream(self, order: StreamRequest) -> Any:
        self.requests.append(order)
        if self.full:
            self.full -= 1
            return FullCall()
        engine = self.engines[len(self.requests) % len(self.engines)]
        return LocalCall(answer(engine, order, replica="r", interval=0.0), self.messages())

    async def ask(self, kind: Any, *given: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        return await reply(self.engines[0], kind, given)

    async def metrics_by_engine(self) -> dict[str, Any]:
        if self.silent is not None:
            return await self.silent()
        return {str(number): one.metrics() for number, one in enumerate(self.engines)}


def at_random(seed: int, most: int = 12) -> Callable[[], int | None]:
    """Most calls end after a few messages."""
    chooser = random.Random(seed)
    return lambda: chooser.choice([None, *range(most)])
