"""One answer on its way from a server: the reading end of a request.

Reads like ``asyncgen.TextStream`` and is left like it: ``break``, ``aclose``, a cancelled task or
scope, an exception in the loop's body, or simply being dropped cancel the request on the server.
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
    from types import TracebackType

    from asyncgen import Completion, TokenEvent
    from asyncgen_apps.websocket.client.request import Request


class Attendant(Protocol):
    """Owner of the requests of a client; both methods return at once."""

    def attend(self, request: Request) -> None:
        """Do what the state of a request calls for; in the loop of the client."""

    def attend_soon(self, request: Request) -> None:
        """The same from any thread, and from a finalizer."""


class RemoteStream:
    """An async iterator of text; also of events, and a result at the end.

    ``async for text in stream`` gives the text as it comes, merged where the reader was slow.
    ``async with stream`` starts the request on entry and cancels it on exit, at a known moment.
    A stream is read once, by one task, in the loop that the client was opened in.
    """

    def __init__(self, attendant: Attendant, request: Request) -> None:
        """Keep what will be sent; use ``Client.stream``."""
        self._attendant = attendant
        self._request = request
        self._started = False
        self._reading = False
        self._result: Completion | None = None

    def __aiter__(self) -> AsyncIterator[str]:
        """Read text. Dropping the iterator (a ``break``) cancels the stream."""
        return Reader(self._next_text, self._leave, self._abandon)

    def events(self) -> AsyncIterator[TokenEvent]:
        """Read events instead of text: ids, log-probabilities, several samples by index.

        An event is what the server sent in one message: more than one decode step where the
        connection was slower than the model. ``time`` is that of the last of them, in seconds from
        the acceptance, by the clock of the server.
        """
        return Reader(self._next_event, self._leave, self._abandon)

    def partial(self) -> AsyncIterator[Any]:
        """Read the value that the answer stands for while it grows: objects, lists and texts.

        For an answer in JSON (``json_schema``, ``json_object``), as ``asyncgen.TextStream`` has it:
        each value is valid so far, and the last one is whole if the stream ended with ``"stop"``.

        Raises:
            InvalidRequestError: The answer was not asked for as JSON, or there is no pydantic.
        """
        next_partial = AnswerReader(self._request.params).partial(self._next_text)
        return Reader(next_partial, self._leave, self._abandon)

    async def __anext__(self) -> str:
        """The text since the last read, at least one character.

        Raises:
            StopAsyncIteration: The stream has ended; see :attr:`result`.
            InvalidRequestError: The stream has several samples: read :meth:`events`.
            ConnectionLostError: The server was lost and did not come back in time.
            Exception: What the request raised on the server.
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

    def cancel(self) -> None:
        """Ask the request to end with ``"cancelled"``; the stream can be read to its end.

        May be called from any thread, any number of times. While there is no connection the
        stream ends at once, and the server is told as soon as it is back.
        """
        self._request.cancel_wanted = True
        if self._started:
            self._attendant.attend_soon(self._request)

    @property
    def result(self) -> Completion:
        """Generated text with finish reason, usage and timings, once the stream has ended.

        An answer in a shape has its value in ``parsed``, or ``parse_error`` says why there is none.
        Of a stream that was left early: what had arrived, with timings by the client's clock.

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
        """True if what has arrived is promised to be what one server alone would have said.

        It is, unless the stream has moved to a server of another fingerprint, or from one without.
        """
        return self._request.exact

    @property
    def exact(self) -> bool:
        """Old name of `is_exact`."""
        message = "`exact` is deprecated and goes with the next release; read `is_exact`"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.is_exact

    def __del__(self) -> None:
        """A dropped stream is cancelled, silently, in whatever thread drops it."""
        self._abandon()

    def _start(self) -> None:
        """Post the request, once."""
        if not self._started and not self._request.left:
            self._started = True
            self._attendant.attend(self._request)

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
            # A reader slower than the model never waits; the loop gets its turn all the same.
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
        """Wait for something; a cancelled reader has left."""
        try:
            await wait()
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        """Stop reading: keep what is there, cancel the rest."""
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
            self._attendant.attend_soon(request)
