"""Call the engines by handles of Ray Serve."""

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
from asyncgen_apps.ray_serve.settings import MESSAGE_ENV
from asyncgen_apps.remote import MessageTooLargeError, ReplicaLostError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

    from asyncgen_apps.remote import StreamRequest
    from asyncgen_apps.remote.messages import Item

RETRY_SECONDS = 1.0
"""Seconds after which a refused request may come again."""

_TOO_LARGE = re.compile(r"\bmessage larger than max\b( \([^)]*\))?")
"""Text of a gRPC error besides `RESOURCE_EXHAUSTED`, which gRPC also sends for too many pings."""


def direct(handle: DeploymentHandle, **options: Any) -> DeploymentHandle:
    """Return a handle that sends messages directly between processes, at half of the usual cost.

    By default Ray stores each message as an object that the receiver fetches by reference.
    """
    return handle.options(_by_reference=False, **options)


class RayCall:
    """Stream from an engine."""

    def __init__(self, items: DeploymentResponseGenerator[Item]) -> None:
        """Keep the messages of a handle."""
        self._items = items

    async def next(self) -> Item | None:
        """Wait for the next message; ``None`` at the end."""
        with translated_errors():
            return await anext(self._items, None)

    def close(self) -> None:
        """Stop the stream; cancelling a call that was refused raises the refusal again."""
        with suppress(Exception):
            self._items.cancel()


class RayCalls:
    """Transport to the replicas of a deployment."""

    def __init__(self, replicas: DeploymentHandle, board: DeploymentHandle) -> None:
        """Keep the handles.

        Args:
            replicas: Handle of the deployment of `Replica`.
            board: Handle of the deployment of `MetricsBoard`.
        """
        self._replicas, self._board = direct(replicas), direct(board)
        self._streams = direct(
            replicas, stream=True, method_name="stream", response_serialization="pickle"
        )

    @property
    def is_healthy(self) -> bool:
        """True if Ray runs."""
        return bool(ray.is_initialized())

    def stream(self, request: StreamRequest) -> RayCall:
        """Send a request."""
        return RayCall(self._streams.remote(request))

    async def ask(self, kind: str, *given: Any) -> Any:
        """Ask any engine."""
        with translated_errors():
            return await self._replicas.ask.remote(kind, *given)

    async def metrics_by_engine(self) -> dict[str, Any]:
        """Return the newest metrics of each engine by its name."""
        with translated_errors():
            found: dict[str, Any] = await self._board.read.remote()
            return found


@contextmanager
def translated_errors() -> Iterator[None]:
    """Translate the errors of Ray while waiting for it.

    Over gRPC, the cancellation of a remote task looks like one of the task that waits.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ReplicaLostError("Serve gave the request up") from error
    except Exception as error:
        if (better := translated(error)) is error:
            raise
        raise better from error


def translated(error: Exception) -> Exception:
    """Translate an error of Ray for the caller."""
    if isinstance(error, BackPressureError):
        return OverloadedError("all engines are full, and so is the queue", RETRY_SECONDS)
    if (isinstance(error, RpcError) or _has_no_response(error)) and (text := _too_large(error)):
        return MessageTooLargeError(text)
    lost = RayActorError | TaskCancelledError | DeploymentUnavailableError | RayError | RpcError
    if isinstance(error, lost) or _has_no_response(error):
        line = str(error).strip().partition("\n")[0]
        return ReplicaLostError(f"{type(error).__name__}: {line}")
    return error


def _has_no_response(error: Exception) -> bool:
    """Tell whether the replica did not respond; Serve has no exception class for that."""
    return type(error) is RuntimeError and str(error).startswith("Unexpected error (StatusCode.")


def _too_large(error: Exception) -> str | None:
    """Describe a message that is too large for the transport; ``None`` if none is."""
    text = str(error)
    found = _TOO_LARGE.search(text)
    if found is None or "RESOURCE_EXHAUSTED" not in text:
        return None
    (name,) = MESSAGE_ENV
    return f"{found[0]}: set {name} in the environment of the cluster"
