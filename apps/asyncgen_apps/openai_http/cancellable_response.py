"""Compute a response, and cancel it when its client leaves.

It is a Starlette response, because only a response has both ends of the connection: whichever
server runs the application, and whether the reply streams or not, the client's leaving is seen
here, at once, and cancels the work, also in the middle of a prompt.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

import anyio
from starlette.responses import Response

from asyncgen_apps.openai_http.errors import ApiError, from_exception
from asyncgen_apps.openai_http.response_writer import ResponseWriter
from asyncgen_apps.serving.clients import ANYBODY
from asyncgen_apps.websocket.params import NO_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from asyncgen_apps.openai_http.concurrency_limit import Gate
    from asyncgen_apps.openai_http.settings import ServerSettings


T = TypeVar("T")

_log = logging.getLogger("asyncgen.http")

PATIENCE = 1.0
"""Seconds a stream waits for its first token before its head goes out. Until then a failure has
a status of its own."""


class CancellableResponse(Response, ABC):
    """Response that is cancelled when its client leaves; a subclass computes the content."""

    def __init__(
        self,
        gate: Gate,
        settings: ServerSettings,
        *,
        streams: bool,
        prioritises: bool,
        names: Mapping[str, str],
        rows: int = 1,
    ) -> None:
        """Describe the reply; nothing runs before it is called.

        Args:
            gate: Lets it in.
            settings: For the times of patience.
            streams: True if the reply comes as events.
            prioritises: True if the request sets `priority`.
            names: Client's names of parameters that the engine names otherwise.
            rows: Choices, or texts to embed, that are asked for.
        """
        super().__init__()
        self._gate = gate
        self._settings = settings
        self._streams = streams
        self._prioritises = prioritises
        self._names = names
        self._rows = rows
        self._aborted: ApiError | None = None
        self._client = ANYBODY

    @abstractmethod
    async def compute(self, reply: ResponseWriter) -> None:
        """Compute, and write the reply; exceptions are sent to the client."""

    async def on_thread(self, function: Callable[..., T], *args: object) -> T:
        """Call a function beside the event loop, when it is this client's turn."""
        return await self._gate.threads.run(self._client.id, function, *args)

    def abort(self, error: ApiError) -> None:
        """Cancel the work, and send the client this error."""
        self._aborted = error
        self._scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run and reply."""
        self._scope = anyio.CancelScope()  # here: it may have been made on a worker thread
        reply = ResponseWriter(send)
        began = time.monotonic()
        self._client = scope.get("state", {}).get("client", ANYBODY)
        try:
            self._check_priority()
            with self._gate.admit(self, self._client.id, self._rows):
                async with anyio.create_task_group() as group:
                    # In a task of its own: waking one costs by the depth of its calls, and this
                    # one stands below a dozen of the framework's. Here, where little happens, the
                    # client is watched.
                    group.start_soon(self._work, reply, group.cancel_scope)
                    await self._watch(receive, reply, group.cancel_scope)
        except ApiError as refused:
            await reply.fail(refused)
        if not reply.is_finished:
            _log.info("client left after %.3f s", time.monotonic() - began)

    def _check_priority(self) -> None:
        """Refuse `priority` of a client that may not set it."""
        may = self._settings.allow_priority or self._client.may_prioritise
        if self._prioritises and not may:
            raise ApiError(400, NO_PRIORITY, param="priority", code="unsupported_parameter")

    async def _work(self, reply: ResponseWriter, running: anyio.CancelScope) -> None:
        """Answer, or send the error; then stop watching the client."""
        with self._scope:
            try:
                await self.compute(reply)
            except OSError:
                pass  # nobody listens any more
            except Exception as error:
                await reply.fail(from_exception(error, self._names))
        if self._aborted is not None:
            await reply.fail(self._aborted)
        running.cancel()

    async def _watch(
        self, receive: Receive, reply: ResponseWriter, running: anyio.CancelScope
    ) -> None:
        """Leave when the client leaves or reads no more; tell it in a long silence that we live."""
        settings, streams = self._settings, self._streams
        while True:
            early = streams and not reply.is_streaming
            rest = settings.ping_seconds - (time.monotonic() - reply.sent_at)
            pause = rest if streams and rest > 0 else settings.ping_seconds
            with anyio.move_on_after(PATIENCE if early else pause):
                message = await receive()
                if message["type"] == "http.disconnect":
                    running.cancel()
                    return
                continue
            silent = time.monotonic() - reply.sent_at
            if reply.is_sending:  # also in the last write: a place must not be held for ever
                if silent > settings.stall_seconds:
                    _log.warning("a client has read nothing for %.0f s: given up", silent)
                    running.cancel()
                    return
                continue
            if not streams or reply.is_finished:
                continue
            if early:
                await reply.begin()
            if early or silent >= settings.ping_seconds:
                await reply.ping()
