"""The way to the engines, by handles of Ray Serve."""

from __future__ import annotations

import asyncio
import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import ray
from grpc import RpcError
from ray.exceptions import RayActorError, RayError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from asyncgen import OverloadedError
from asyncgen_apps.ray_serve.settings import MESSAGES
from asyncgen_apps.remote import MessageTooLargeError, ReplicaLostError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

    from asyncgen_apps.remote import Order
    from asyncgen_apps.remote.messages import Item

RETRY_SECONDS = 1.0
"""After which a refused request may come again."""

_TOO_LARGE = re.compile(r"\bmessage larger than max\b( \([^)]*\))?")
"""What gRPC says beside `RESOURCE_EXHAUSTED`, which it also says of pings that are too many."""


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
        with telling():
            return await anext(self._items, None)

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
    def is_healthy(self) -> bool:
        """True if Ray runs."""
        return bool(ray.is_initialized())

    def stream(self, order: Order) -> RayCall:
        """Give an order."""
        return RayCall(self._streams.remote(order))

    async def ask(self, kind: str, *given: Any) -> Any:
        """Ask any engine."""
        with telling():
            return await self._replicas.ask.remote(kind, *given)

    async def figures(self) -> dict[str, Any]:
        """The newest figures of each engine."""
        with telling():
            found: dict[str, Any] = await self._board.read.remote()
            return found


@contextmanager
def telling() -> Iterator[None]:
    """Around a wait for Ray: raises what an error means to a caller.

    Over gRPC, the cancellation of a task elsewhere comes as if it were one of the task that waits.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ReplicaLostError("Serve gave the request up") from error
    except Exception as error:
        if (meant := told(error)) is error:
            raise
        raise meant from error


def told(error: Exception) -> Exception:
    """Translate an error of Ray for the caller."""
    if isinstance(error, BackPressureError):
        return OverloadedError("all engines are full, and so is the queue", RETRY_SECONDS)
    if (isinstance(error, RpcError) or _is_unheard(error)) and (why := _too_large(error)):
        return MessageTooLargeError(why)
    lost = RayActorError | TaskCancelledError | DeploymentUnavailableError | RayError | RpcError
    if isinstance(error, lost) or _is_unheard(error):
        line = str(error).strip().partition("\n")[0]
        return ReplicaLostError(f"{type(error).__name__}: {line}")
    return error


def _is_unheard(error: Exception) -> bool:
    """Tell whether the replica did not respond; Serve has no exception class for that."""
    return type(error) is RuntimeError and str(error).startswith("Unexpected error (StatusCode.")


def _too_large(error: Exception) -> str | None:
    """Describe a message that is too large for the transport; ``None`` if none is."""
    text = str(error)
    found = _TOO_LARGE.search(text)
    if found is None or "RESOURCE_EXHAUSTED" not in text:
        return None
    (name,) = MESSAGES
    return f"{found[0]}: set {name} in the environment of the cluster"
