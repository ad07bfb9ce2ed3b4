"""Iterators over a stream that leave it when they are dropped."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, Self, TypeVar

T_co = TypeVar("T_co", covariant=True)
ReadT = TypeVar("ReadT")


class _CancelsOnDrop(Generic[ReadT]):
    """Base of the iterators; dropping one leaves the stream, which cancels it."""

    _abandon: Callable[[], object] = staticmethod(lambda: None)  # while it is being made

    def __init__(self, read: ReadT, leave: Callable[[], None], abandon: Callable[[], None]) -> None:
        """Read a stream.

        Args:
            read: Function that returns the next item, or raises the end of the loop.
            leave: Function that ends the stream; idempotent.
            abandon: The same without a lock, for finalizers in any thread.
        """
        self._read = read
        self._leave = leave
        self._abandon = abandon

    def __del__(self) -> None:
        """Leave the stream, silently, in whatever thread drops this."""
        self._abandon()


class Reader(_CancelsOnDrop[Callable[[], Awaitable[T_co]]], Generic[T_co]):
    """Iterator of an ``async for`` over a stream."""

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> T_co:
        """Return the next item."""
        return await self._read()

    async def aclose(self) -> None:
        """Leave the stream."""
        self._leave()


class ThreadReader(_CancelsOnDrop[Callable[[], T_co]], Generic[T_co]):
    """Iterator of a ``for`` over a stream."""

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> T_co:
        """Return the next item; blocks until it is there."""
        return self._read()

    def close(self) -> None:
        """Leave the stream."""
        self._leave()
