"""The face of engines that live elsewhere: one engine, for whoever reads it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

import anyio

from asyncgen import EngineClosedError
from asyncgen_apps.remote.messages import Failed, MessageTooLargeError, Order, ReplicaLostError
from asyncgen_apps.remote.metrics import summed
from asyncgen_apps.remote.pump import Pump
from asyncgen_apps.remote.sessions import session_of
from asyncgen_apps.remote.streams import RemoteStream

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from anyio.abc import TaskGroup

    from asyncgen import (
        Embedding,
        EmbedParams,
        GenerationConfig,
        MetricsSnapshot,
        Prompt,
        PromptParams,
        StreamParams,
        Tokenizer,
    )
    from asyncgen_apps.remote.messages import Calls, Facts
    from streamers import Mailbox

_FIGURES_SECONDS = 0.5
"""How long figures may take; else the last ones count."""

_QUESTIONS = 5
"""How often a question is asked, if those who are asked go away."""


class RemoteLLM:
    """An ``asyncgen_apps.engine.Engine`` over engines of the same model, wherever they are.

    It is open inside ``async with``, in the loop that it was opened in; what was not read to its
    end by then is cancelled.

    Attributes:
        num_resumed: How often an engine went on with what another had begun.
        is_degraded: Always false: of each engine that is known to itself.
    """

    def __init__(self, calls: Calls, facts: Facts) -> None:
        """Describe it.

        Args:
            calls: The way to the engines.
            facts: What is the same in all of them.
        """
        self._calls = calls
        self._facts = facts
        self._figures = facts.figures
        self._group: TaskGroup | None = None
        self.is_degraded = False
        self.num_resumed = 0

    async def __aenter__(self) -> Self:
        """Open it."""
        self._group = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it: what is still read ends."""
        group, self._group = self._group, None
        if group is not None:
            group.cancel_scope.cancel()
            await group.__aexit__(kind, error, traceback)

    @property
    def is_healthy(self) -> bool:
        """True if a request may get an answer."""
        return self._group is not None and self._calls.is_healthy

    @property
    def fingerprint(self) -> str | None:
        """Of the engines."""
        return self._facts.fingerprint

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._facts.tokenizer

    @property
    def config(self) -> object:
        """The model's configuration."""
        return self._facts.config

    @property
    def generation_config(self) -> GenerationConfig:
        """The model's own defaults."""
        return self._facts.generation_config

    def stream(self, prompt: Prompt, **params: Unpack[StreamParams]) -> RemoteStream:
        """Answer a prompt; nothing runs before the stream is entered or read."""
        given = dict(params)
        order = Order(prompt, given, session_of(prompt, given))
        return RemoteStream(partial(self._pump, order), given)

    async def count_tokens(self, prompt: Prompt, **params: Unpack[PromptParams]) -> int:
        """Count the tokens of a prompt."""
        return int(await self._ask("count", prompt, dict(params)))

    async def tokenize(self, prompt: Prompt, **params: Unpack[PromptParams]) -> list[int]:
        """Tell the token ids of a prompt."""
        found: list[int] = await self._ask("tokenize", prompt, dict(params))
        return found

    async def embed(
        self, prompt: Sequence[str | Sequence[int]], **params: Unpack[EmbedParams]
    ) -> list[Embedding]:
        """Turn texts into vectors."""
        found: list[Embedding] = await self._ask("embed", prompt, dict(params))
        return found

    async def measure(self) -> MetricsSnapshot:
        """Sum the metrics of all engines; the last known ones if no replica answers in time."""
        # No stream waits for figures: who keeps them may be away, or new.
        is_unheard = suppress(ReplicaLostError, MessageTooLargeError)
        with anyio.move_on_after(_FIGURES_SECONDS), is_unheard:
            if found := await self._calls.figures():
                self._figures = summed(found.values())
        return self._figures

    async def figures(self) -> dict[str, MetricsSnapshot]:
        """Return the metrics of each engine by its name."""
        return await self._calls.figures()

    def _pump(self, order: Order, mailbox: Mailbox[Any]) -> Pump:
        """Begin to get an answer."""
        if self._group is None:
            raise EngineClosedError("this engine is not open")
        pump = Pump(self._calls, order, mailbox)
        self._group.start_soon(self._run, pump)
        return pump

    async def _run(self, pump: Pump) -> None:
        try:
            await pump.run()
        finally:
            self.num_resumed += pump.num_resumed

    async def _ask(self, kind: Any, *given: Any) -> Any:
        for number in range(_QUESTIONS):
            try:
                found = await self._calls.ask(kind, *given)
            except ReplicaLostError:
                if number + 1 == _QUESTIONS:
                    raise
                continue
            if isinstance(found, Failed):
                raise found.error
            return found
        raise AssertionError
