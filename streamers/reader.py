"""What an ``async for`` over a stream holds. Knows no tokens, no loop and no engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


T_co = TypeVar("T_co", covariant=True)


class Reader(Generic[T_co]):
    """An iterator over a stream: dropping it is leaving the loop, and leaving is cancelling."""

    def __init__(
        self,
        read: Callable[[], Awaitable[T_co]],
        leave: Callable[[], None],
        abandon: Callable[[], None],
    ) -> None:
        """Read a stream.

        Args:
            read: Gives the next item; raises ``StopAsyncIteration`` at the end.
            leave: Ends the stream; idempotent.
            abandon: The same without taking a lock, as a finalizer must, from any thread.
        """
        self._read = read
        self._leave = leave
        self._abandon = abandon

    def __aiter__(self) -> Self:
        """Itself."""
        return self

    async def __anext__(self) -> T_co:
        """The next item."""
        return await self._read()

    async def aclose(self) -> None:
        """Leave the stream."""
        self._leave()

    def __del__(self) -> None:
        """Leave the stream, silently, in whatever thread drops this."""
        self._abandon()
