"""Use several engines in other processes as one engine."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

import anyio

from asyncgen import EngineClosedError
from asyncgen_apps.remote.messages import (
    Failure,
    MessageTooLargeError,
    ReplicaLostError,
    StreamRequest,
)
from asyncgen_apps.remote.metrics import summed
from asyncgen_apps.remote.pump import Pump
from asyncgen_apps.remote.sessions import session_of
from asyncgen_apps.remote.streams import RemoteStream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from anyio.abc import TaskGroup

    from asyncgen import (
        Embedding,
        EmbedParams,
        MetricsSnapshot,
        Prompt,
        PromptParams,
        StreamParams,
    )
    from asyncgen_apps.remote.messages import Calls, EngineFacts
    from streamers import Mailbox

_METRICS_SECONDS = 0.5
"""Longest wait for metrics; after that the last known ones are used."""

_ATTEMPTS = 5
"""Most engines that get a question, if they are lost one after another."""


class RemoteLLM:
    """An ``asyncgen_apps.engine.Engine`` over several engines of the same model.

    It is open inside ``async with``, in the event loop that opened it. Leaving cancels all streams
    that have not ended.

    Attributes:
        num_resumed: Number of times that an engine resumed a stream of another one.
        is_degraded: Always False; each engine limits itself.
        fingerprint: Fingerprint of the engines.
        tokenizer: Tokenizer of the model.
        config: Configuration of the model.
        generation_config: Default parameters of the model.
    """

    def __init__(self, calls: Calls, facts: EngineFacts) -> None:
        """Keep the transport; use ``async with`` to open it.

        Args:
            calls: Transport to the engines.
            facts: Values that are the same in all of them.
        """
        self._calls = calls
        self._facts = facts
        self.fingerprint = facts.fingerprint
        self.tokenizer = facts.tokenizer
        self.config = facts.config
        self.generation_config = facts.generation_config
        self._metrics = facts.metrics
        self._group: TaskGroup | None = None
        self.is_degraded = False
        self.num_resumed = 0

    async def __aenter__(self) -> Self:
        """Open it."""
        self._group = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> None:
        """Close it, and cancel all streams that have not ended."""
        group, self._group = self._group, None
        if group is not None:
            group.cancel_scope.cancel()
            await group.__aexit__(*details)

    @property
    def is_healthy(self) -> bool:
        """True if a request may get an answer."""
        return self._group is not None and self._calls.is_healthy

    def stream(self, prompt: Prompt, **params: Unpack[StreamParams]) -> RemoteStream:
        """Answer a prompt; nothing runs before the stream is entered or read."""
        given = dict(params)
        request = StreamRequest(prompt, given, session_of(prompt, given))
        return RemoteStream(partial(self._pump, request), given)

    async def count_tokens(self, prompt: Prompt, **params: Unpack[PromptParams]) -> int:
        """Count the tokens of a prompt."""
        return int(await self._ask("count", prompt, dict(params)))

    async def tokenize(self, prompt: Prompt, **params: Unpack[PromptParams]) -> list[int]:
        """Return the token ids of a prompt."""
        found: list[int] = await self._ask("tokenize", prompt, dict(params))
        return found

    async def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], **params: Unpack[PromptParams]
    ) -> str:
        """Return messages as one text."""
        return str(await self._ask("apply_chat_template", messages, dict(params)))

    async def embed(
        self, prompt: Sequence[str | Sequence[int]], **params: Unpack[EmbedParams]
    ) -> list[Embedding]:
        """Turn texts into vectors."""
        found: list[Embedding] = await self._ask("embed", prompt, dict(params))
        return found

    async def measure(self) -> MetricsSnapshot:
        """Sum the metrics of all engines; the last known ones if no replica answers in time."""
        # A stream must not wait for metrics, whose process may be lost or just starting.
        unreachable = suppress(ReplicaLostError, MessageTooLargeError)
        with anyio.move_on_after(_METRICS_SECONDS), unreachable:
            if found := await self._calls.metrics_by_engine():
                self._metrics = summed(found.values())
        return self._metrics

    async def metrics_by_engine(self) -> dict[str, MetricsSnapshot]:
        """Return the metrics of each engine by its name."""
        return await self._calls.metrics_by_engine()

    def _pump(self, request: StreamRequest, mailbox: Mailbox[Any]) -> Pump:
        """Start to read an answer."""
        if self._group is None:
            raise EngineClosedError("this engine is not open")
        pump = Pump(self._calls, request, mailbox)
        self._group.start_soon(self._run, pump)
        return pump

    async def _run(self, pump: Pump) -> None:
        try:
            await pump.run()
        finally:
            self.num_resumed += pump.num_resumed

    async def _ask(self, kind: Any, *given: Any) -> Any:
        for attempt in range(_ATTEMPTS):
            try:
                found = await self._calls.ask(kind, *given)
                break
            except ReplicaLostError:
                if attempt + 1 == _ATTEMPTS:
                    raise
        if isinstance(found, Failure):
            raise found.error
        return found
