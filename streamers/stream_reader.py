"""What a loop over a stream holds. Knows no tokens and no engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, Self, TypeVar

T_co = TypeVar("T_co", covariant=True)
ReadT = TypeVar("ReadT")


class _Leaving(Generic[ReadT]):
    """Dropping it is leaving the loop, and leaving is cancelling."""

    def __init__(self, read: ReadT, leave: Callable[[], None], abandon: Callable[[], None]) -> None:
        """Read a stream.

        Args:
            read: Gives the next item, or raises what ends the loop.
            leave: Ends the stream; idempotent.
            abandon: The same without taking a lock, as a finalizer must, from any thread.
        """
        self._read = read
        self._leave = leave
        self._abandon = abandon

    def __del__(self) -> None:
        """Leave the stream, silently, in whatever thread drops this."""
        self._abandon()


class Reader(_Leaving[Callable[[], Awaitable[T_co]]], Generic[T_co]):
    """What an ``async for`` over a stream holds."""

    def __aiter__(self) -> Self:
        """Itself."""
        return self

    async def __anext__(self) -> T_co:
        """The next item."""
        return await self._read()

    async def aclose(self) -> None:
        """Leave the stream."""
        self._leave()


class ThreadReader(_Leaving[Callable[[], T_co]], Generic[T_co]):
    """What a ``for`` over a stream holds."""

    def __iter__(self) -> Self:
        """Itself."""
        return self

    def __next__(self) -> T_co:
        """The next item; blocks until it is there."""
        return self._read()

    def close(self) -> None:
        """Leave the stream."""
        self._leave()
