"""The way to the engines, by handles of Ray Serve."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import ray
from grpc import RpcError
from ray.exceptions import RayActorError, RayError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from asyncgen import OverloadedError
from asyncgen_apps.remote import ReplicaLostError

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

    from asyncgen_apps.remote import Order
    from asyncgen_apps.remote.wire import Item

RETRY_SECONDS = 1.0
"""After which a refused request may come again."""


def direct(handle: DeploymentHandle, **options: Any) -> DeploymentHandle:
    """A handle whose messages go from process to process, which costs half of Ray's usual way.

    By that, each message becomes an object that is kept, counted, and fetched by its number.
    """
    return handle.options(_by_reference=False, **options)


class RayCall:
    """An order under way."""

    def __init__(self, items: DeploymentResponseGenerator[Item]) -> None:
        """Read what a handle gives."""
        self._items = items

    async def next(self) -> Item | None:
        """Wait for what comes next."""
        try:
            return await anext(self._items, None)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise ReplicaLostError("Serve gave the request up") from error
        except Exception as error:
            raise told(error) from error

    def close(self) -> None:
        """Stop the work; after back-pressure, cancelling raises that again."""
        with suppress(Exception):
            self._items.cancel()


class RayCalls:
    """The way to the replicas of a deployment."""

    def __init__(self, replicas: DeploymentHandle, board: DeploymentHandle) -> None:
        """Take the handles.

        Args:
            replicas: Of the deployment of `Replica`.
            board: Of the deployment of `Board`.
        """
        self._replicas, self._board = direct(replicas), direct(board)
        self._streams = direct(
            replicas, stream=True, method_name="stream", response_serialization="pickle"
        )

    @property
    def healthy(self) -> bool:
        """Whether Ray is there."""
        return bool(ray.is_initialized())

    def stream(self, order: Order) -> RayCall:
        """Give an order."""
        return RayCall(self._streams.remote(order))

    async def ask(self, kind: str, *given: Any) -> Any:
        """Ask any engine."""
        try:
            return await self._replicas.ask.remote(kind, *given)
        except Exception as error:
            raise told(error) from error

    async def figures(self) -> dict[str, Any]:
        """The newest figures of each engine."""
        try:
            found: dict[str, Any] = await self._board.read.remote()
        except Exception as error:
            raise told(error) from error
        return found


def told(error: Exception) -> Exception:
    """What an error of Ray means to a caller."""
    if isinstance(error, BackPressureError):
        return OverloadedError("all engines are full, and so is the queue", RETRY_SECONDS)
    lost = RayActorError | TaskCancelledError | DeploymentUnavailableError | RayError | RpcError
    if isinstance(error, lost) or _is_unheard(error):
        line = str(error).strip().partition("\n")[0]
        return ReplicaLostError(f"{type(error).__name__}: {line}")
    return error


def _is_unheard(error: Exception) -> bool:
    """Whether Serve heard nothing of who was asked; it has no class of its own for that."""
    return type(error) is RuntimeError and str(error).startswith("Unexpected error (StatusCode.")
