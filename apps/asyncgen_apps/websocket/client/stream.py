"""Read the answer of a server as a stream.

A stream is used like ``asyncgen.TextStream``. Leaving it cancels the request on the server: by
``break``, ``aclose``, a cancelled task or scope, an exception in the loop's body, or dropping it.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Protocol, Self

import anyio
import anyio.lowlevel

from asyncgen import AnswerReader, InvalidRequestError
from asyncgen_apps.websocket.client.request import Phase
from streamers import Reader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from asyncgen import Completion, TokenEvent
    from asyncgen_apps.websocket.client.request import Request


class RequestOwner(Protocol):
    """Owner of the requests of a client; its methods return at once."""

    def update(self, request: Request) -> None:
        """Send or cancel a request, as its state requires; in the event loop of the client."""

    def update_soon(self, request: Request) -> None:
        """Call :meth:`update` soon; from any thread, and from a finalizer."""


class RemoteStream:
    """Async iterator of text or events, with a result at the end.

    ``async for text in stream`` gives the text as it comes, merged if the reader is slow.
    ``async with stream`` starts the request on entry and cancels it on exit. A stream is read once,
    by one task, in the event loop that opened the client.
    """

    _request: Request
    _started = False

    def __init__(self, owner: RequestOwner, request: Request) -> None:
        """Keep the request to send; use ``Client.stream``."""
        self._owner = owner
        self._request = request
        self._started = False
        self._reading = False
        self._result: Completion | None = None

    def __aiter__(self) -> AsyncIterator[str]:
        """Read text; dropping the iterator (a ``break``) cancels the stream."""
        return Reader(self._next_text, self._leave, self._abandon)

    def events(self) -> AsyncIterator[TokenEvent]:
        """Read events instead of text: ids, log-probabilities, several samples by index.

        An event has the content of one message of the server: several decode steps if the
        connection is slower than the model. ``time`` is that of the last step, in seconds from the
        acceptance, by the clock of the server.
        """
        return Reader(self._next_event, self._leave, self._abandon)

    def partial(self) -> AsyncIterator[Any]:
        """Read the value of a JSON answer while it grows, as ``asyncgen.TextStream.partial``.

        Needs ``json_schema`` or ``json_object``. Each value is valid so far; the last one is whole
        if the stream ended with ``"stop"``.

        Raises:
            InvalidRequestError: The request asks for no JSON, or pydantic is not installed.
        """
        next_partial = AnswerReader(self._request.params).partial(self._next_text)
        return Reader(next_partial, self._leave, self._abandon)

    async def __anext__(self) -> str:
        """Return the text since the last read, at least one character.

        Raises:
            StopAsyncIteration: The stream has ended; see :attr:`result`.
            InvalidRequestError: The stream has several samples: read :meth:`events`.
            ConnectionLostError: The server was lost and did not come back in time.
            Exception: The request raised it on the server.
        """
        return await self._next_text()

    async def __aenter__(self) -> Self:
        """Start the request: returns when the server has accepted it.

        Raises:
            InvalidRequestError: A value or combination that is not allowed.
            ContextLengthError: The prompt and the tokens asked for exceed the context.
            OverloadedError: The server takes no more requests for now.
            ConnectionLostError: The server was lost and did not come back in time.
        """
        self._enter()
        try:
            self._start()
            while self._request.phase in (Phase.NEW, Phase.SENT):
                await self._leaving_if_cancelled(self._request.wait)
            if self._request.failure is not None and not self._request.events:
                raise self._request.failure
        finally:
            self._reading = False
        return self

    async def __aexit__(self, *details: object) -> None:
        """Leave; cancels what still runs."""
        self._leave()

    async def aclose(self) -> None:
        """Leave; cancels what still runs. Idempotent; :attr:`result` is frozen afterwards."""
        self._leave()

    def cancel(self) -> None:
        """Ask the request to end with ``"cancelled"``; the stream can be read to its end.

        May be called from any thread, any number of times. While there is no connection the
        stream ends at once, and the server gets the cancel after the next connection.
        """
        self._request.cancel_wanted = True
        if self._started:
            self._owner.update_soon(self._request)

    @property
    def result(self) -> Completion:
        """Generated text with finish reason, usage and timings, once the stream has ended.

        Structured output has its value in ``parsed``, or the error in ``parse_error``. A stream
        that was left early has what was received, with timings by the client's clock.

        Raises:
            RuntimeError: The stream is still being read.
        """
        if self._result is None:
            if not (self._request.left or self._request.phase is Phase.ENDED):
                raise RuntimeError("no result yet; read the stream to its end or close it first")
            result = self._request.build_result()
            self._result = AnswerReader(self._request.params).whole(result)
        return self._result

    @property
    def is_exact(self) -> bool:
        """True if the received tokens are those that one server alone would generate.

        False after a move to a server with another fingerprint, or from a server without one.
        """
        return self._request.exact

    @property
    def exact(self) -> bool:
        """Old name of `is_exact`."""
        message = "`exact` is deprecated and goes with the next release; read `is_exact`"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.is_exact

    def __del__(self) -> None:
        """Cancel a dropped stream silently, in the thread that drops it."""
        if hasattr(self, "_request"):  # else it was not made, as Ctrl-C came before
            self._abandon()

    def _start(self) -> None:
        """Post the request, once."""
        if not self._started and not self._request.left:
            self._started = True
            self._owner.update(self._request)

    async def _next_text(self) -> str:
        text = ""
        while not text:
            await self._fill(as_text=True)
            text = "".join([event.text for event in self._request.events])
            self._request.events.clear()
        return text

    async def _next_event(self) -> TokenEvent:
        await self._fill(as_text=False)
        return self._request.events.popleft()

    async def _fill(self, *, as_text: bool) -> None:
        """Return when something is unread; raise at the end of the stream."""
        request = self._request
        self._enter()
        try:
            self._start()
            self._refuse_samples(as_text)
            # A reader slower than the model never waits; other tasks run here.
            await self._leaving_if_cancelled(anyio.lowlevel.checkpoint)
            while not (request.events or request.left or request.phase is Phase.ENDED):
                await self._leaving_if_cancelled(request.wait)
            self._refuse_samples(as_text)
        finally:
            self._reading = False
        if request.left:
            raise StopAsyncIteration
        if request.events:
            return
        if request.failure is not None:
            raise request.failure
        raise StopAsyncIteration

    def _refuse_samples(self, as_text: bool) -> None:
        samples = self._request.asked
        if as_text and samples > 1:
            self._leave()
            raise InvalidRequestError(
                "num_return_sequences",
                samples,
                "several samples are read through `events()`, told apart by `index`",
            )

    def _enter(self) -> None:
        """Refuse a second task while one reads; the first one goes on."""
        if self._reading:
            raise anyio.BusyResourceError("reading from")
        self._reading = True

    async def _leaving_if_cancelled(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Wait; leave the stream if the wait is cancelled."""
        try:
            await wait()
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        """Stop reading: keep what was received, cancel the rest."""
        self._abandon()
        self._request.events.clear()
        self._request.wake()

    def _abandon(self) -> None:
        """Stop reading without taking a lock, as a finalizer must."""
        request = self._request
        if request.left or request.phase is Phase.ENDED:
            return
        request.left = True
        if self._started:
            self._owner.update_soon(request)
