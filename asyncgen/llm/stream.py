"""The two ways to read an answer: in an event loop, and by blocking a thread."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NoReturn, Self

from asyncgen.llm.answer import Answer
from asyncgen.llm.reader_wait import run_blocking
from streamers import Reader, ThreadReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
    from types import TracebackType
    from typing import Any, TypeVar

    from asyncgen.types import TokenEvent

    T = TypeVar("T")


class TextStream(Answer):
    """An async iterator of text; also of events, and a result at the end.

    ``async for text in stream`` gives the text as it comes, merged where the reader was slow.
    ``async with stream`` starts the request on entry and cancels it on exit, at a known moment.
    A stream is read once, by one task.
    """

    def __aiter__(self) -> AsyncIterator[str]:
        """Read text. Dropping the iterator (a ``break``) cancels the stream."""
        return Reader(self._next_text, self._leave, self._abandon)

    def events(self) -> AsyncIterator[TokenEvent]:
        """Read events instead of text: ids, log-probabilities, several samples by index."""
        return Reader(self._next_event, self._leave, self._abandon)

    def batches(self, *, interval: float = 0.05) -> AsyncIterator[str]:
        """Read text in few pieces: everything that arrived since the last one, at most so often.

        For what costs something for every piece: messages of a socket, repainting a terminal,
        remote procedure calls. The first text comes at once, the last one within 0.05 s of the
        end. Joined, the pieces are the text; leaving and errors are as in a plain loop.

        Args:
            interval: Least seconds between two pieces, from 0; 0 is a plain loop.

        Raises:
            InvalidRequestError: An interval that is none; from the first read, several samples.
        """
        next_batch = partial(self._next_batch, self._pace(interval))
        return Reader(next_batch, self._leave, self._abandon)

    def event_batches(self, *, interval: float = 0.05) -> AsyncIterator[list[TokenEvent]]:
        """Read events in few lists, as :meth:`batches` reads text; no list is empty.

        Args:
            interval: Least seconds between two lists, from 0.

        Raises:
            InvalidRequestError: An interval that is none.
        """
        next_events = partial(self._next_events, self._pace(interval))
        return Reader(next_events, self._leave, self._abandon)

    def partial(self) -> AsyncIterator[Any]:
        """Read the value that the answer stands for while it grows: objects, lists and texts.

        For an answer in JSON (``json_schema``, ``json_object``, ``response_model``). Each value is
        valid so far, and the last one is whole if the stream ended with ``"stop"``; the object of
        ``response_model`` itself is ``result.parsed``. Leaving and errors are as in a plain loop.

        Raises:
            InvalidRequestError: The answer was not asked for as JSON, or there is no pydantic.
        """
        return Reader(self._partial(), self._leave, self._abandon)

    def __anext__(self) -> Awaitable[str]:
        """The text since the last read, at least one character.

        Raises:
            StopAsyncIteration: The stream has ended; see :attr:`result`.
            InvalidRequestError: The stream has several samples: read :meth:`events`.
            Exception: What the request raised.
        """
        return self._next_text()

    async def __aenter__(self) -> Self:
        """Start the request: tokenize, check, post.

        Raises:
            InvalidRequestError: A value or combination that is not allowed.
            ContextLengthError: The prompt and the tokens asked for exceed the context, or the
                memory of the engine.
            OverloadedError: The queue is full, or too many texts hang; nothing was tokenized.
        """
        await self._begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave; cancels what still runs."""
        self._leave()

    async def aclose(self) -> None:
        """Leave; cancels what still runs. Idempotent; :attr:`result` is frozen afterwards."""
        self._leave()

    if not TYPE_CHECKING:  # checkers refuse both by themselves, as long as they see neither

        def __await__(self) -> NoReturn:
            """Say what to write instead."""
            raise TypeError(
                "a stream is not awaited: read it with `async for text in llm.stream(…)`, or write "
                "`await llm.generate(…)` for the whole answer"
            )

        def __iter__(self) -> NoReturn:
            """Say what to write instead."""
            raise TypeError(
                "a stream of an AsyncLLM is read with `async for`, inside of `async def`; for the "
                "whole answer write `await llm.generate(…)`, and without an event loop take "
                "`asyncgen.LLM`"
            )


class SyncTextStream(Answer):
    """An iterator of text that blocks; also of events, and a result at the end.

    ``for text in stream`` gives the text as it comes, merged where the reader was slow.
    ``with stream`` starts the request on entry and cancels it on exit. A stream is read once, by
    one thread; :meth:`cancel` and :meth:`close` may be called from any other.
    """

    def __iter__(self) -> Iterator[str]:
        """Read text. Dropping the iterator (a ``break``) cancels the stream."""
        return self._reader(self._next_text)

    def events(self) -> Iterator[TokenEvent]:
        """Read events instead of text, as :meth:`TextStream.events`."""
        return self._reader(self._next_event)

    def batches(self, *, interval: float = 0.05) -> Iterator[str]:
        """Read text in few pieces, as :meth:`TextStream.batches`.

        Args:
            interval: Least seconds between two pieces, from 0; 0 is a plain loop.

        Raises:
            InvalidRequestError: An interval that is none; from the first read, several samples.
        """
        pace = self._pace(interval)
        return self._reader(lambda: self._next_batch(pace))

    def event_batches(self, *, interval: float = 0.05) -> Iterator[list[TokenEvent]]:
        """Read events in few lists, as :meth:`TextStream.event_batches`.

        Args:
            interval: Least seconds between two lists, from 0.

        Raises:
            InvalidRequestError: An interval that is none.
        """
        pace = self._pace(interval)
        return self._reader(lambda: self._next_events(pace))

    def partial(self) -> Iterator[Any]:
        """Read the value that the answer stands for while it grows, as `TextStream.partial`.

        Raises:
            InvalidRequestError: The answer was not asked for as JSON, or there is no pydantic.
        """
        return self._reader(self._partial())

    def __next__(self) -> str:
        """The text since the last read, at least one character.

        Raises:
            StopIteration: The stream has ended; see :attr:`result`.
            InvalidRequestError: The stream has several samples: read :meth:`events`.
            Exception: What the request raised.
        """
        return run_blocking(self._next_text)

    def __enter__(self) -> Self:
        """Start the request: tokenize, check, post.

        Raises:
            AsyncgenError: As entering a :class:`TextStream`.
        """
        run_blocking(self._begin)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave; cancels what still runs."""
        self._leave()

    def close(self) -> None:
        """Leave; cancels what still runs. Idempotent; :attr:`result` is frozen afterwards."""
        self._leave()

    def _reader(self, read: Callable[[], Coroutine[Any, Any, T]]) -> ThreadReader[T]:
        return ThreadReader(lambda: run_blocking(read), self._leave, self._abandon)

    if not TYPE_CHECKING:

        def __aiter__(self) -> NoReturn:
            """Say what to write instead."""
            raise TypeError(
                "a stream of an LLM is read with a plain `for`, which blocks; in an event loop "
                "take `asyncgen.AsyncLLM`"
            )
