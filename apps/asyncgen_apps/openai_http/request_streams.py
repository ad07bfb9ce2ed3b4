"""Runs the streams of one HTTP request side by side.

Knows streams; neither HTTP nor the objects of the API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, cast

import anyio

from asyncgen import Usage
from asyncgen_apps.serving.clients import ANYBODY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from asyncgen import Sample, StreamParams, TokenEvent, Tokenizer, TokenLogprob
    from asyncgen_apps.engine import Engine, EngineStream
    from asyncgen_apps.openai_http.translate import PlannedStream
    from asyncgen_apps.serving.clients import Client

    Take = Callable[[int, TokenEvent], Awaitable[None] | None]
    """Gets the index of a choice and its next event; what it returns is waited for."""


class RequestStreams:
    """Streams of one request, started, read and cancelled together.

    Enter it to start the streams; leaving it cancels what still runs, at once.
    """

    def __init__(
        self,
        llm: Engine,
        parts: tuple[PlannedStream, ...],
        client: Client = ANYBODY,
        *,
        drops_logprobs: bool = False,
    ) -> None:
        """Describe what to run; nothing runs yet.

        Args:
            llm: The engine.
            parts: At least one.
            client: Client of the request.
            drops_logprobs: True leaves log-probabilities out of the results; events have them.
        """
        self._llm = llm
        self._parts = parts
        self._client = client
        self._drops_logprobs = drops_logprobs
        self._streams: list[EngineStream] = []

    async def __aenter__(self) -> Self:
        """Start every stream.

        Raises:
            AsyncgenError: A request that the engine refuses; then none runs.
        """
        try:
            for part in self._parts:
                params = cast("StreamParams", self._client.marked(part.params))
                stream = self._llm.stream(part.prompt, **params)
                self._streams.append(stream)
                if self._drops_logprobs:
                    stream.drop_logprobs()
                await stream.__aenter__()
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Cancel what still runs."""
        await self._leave()

    async def read(self, take: Take) -> None:
        """Read all streams to their ends.

        Args:
            take: Called for every event, from one task for each stream.

        Raises:
            Exception: The first stream to fail raised it; the others are cancelled.
        """
        pairs = list(zip(self._parts, self._streams, strict=True))
        if len(pairs) == 1:
            await _read(*pairs[0], take)
            return
        failures: list[Exception] = []

        async def run(part: PlannedStream, stream: EngineStream) -> None:
            try:
                await _read(part, stream, take)
            except Exception as error:
                # Raised behind the group, which would wrap it in an exception group.
                failures.append(error)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for part, stream in pairs:
                group.start_soon(run, part, stream)
        if failures:
            raise failures[0]

    def samples(self) -> list[Sample]:
        """Return all choices in their order, after the last event."""
        return [sample for stream in self._streams for sample in stream.result.samples]

    def usage(self) -> Usage:
        """Return the token counts of the whole request, after the last event."""
        pairs = zip(self._parts, self._streams, strict=True)
        counts = [(part, stream.result.usage) for part, stream in pairs]
        return Usage(
            sum(usage.prompt_tokens for part, usage in counts if part.counts_prompt),
            sum(usage.completion_tokens for _, usage in counts),
            sum(usage.cached_tokens for part, usage in counts if part.counts_prompt),
            reasoning_tokens=sum(usage.reasoning_tokens for _, usage in counts),
            truncated_tokens=sum(
                usage.truncated_tokens for part, usage in counts if part.counts_prompt
            ),
            fingerprint=counts[0][1].fingerprint,
            exact=all(usage.exact for _, usage in counts),
        )

    @property
    def prompt_ids(self) -> list[list[int]]:
        """Token ids of each prompt, once it is entered."""
        pairs = zip(self._parts, self._streams, strict=True)
        return [stream.prompt_ids for part, stream in pairs if part.counts_prompt]

    @property
    def prompt_logprobs(self) -> list[tuple[TokenLogprob | None, ...] | None]:
        """Log-probabilities of the tokens of each prompt, once everything was read."""
        pairs = zip(self._parts, self._streams, strict=True)
        return [stream.result.prompt_logprobs for part, stream in pairs if part.counts_prompt]

    def reading(self) -> dict[int, EngineStream]:
        """Return the stream of each prompt by the first choice that it gives."""
        pairs = zip(self._parts, self._streams, strict=True)
        return {part.first: stream for part, stream in pairs if part.counts_prompt}

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._llm.tokenizer

    async def _leave(self) -> None:
        for stream in self._streams:
            await stream.aclose()


async def _read(part: PlannedStream, stream: EngineStream, take: Take) -> None:
    """Read one stream to its end."""
    first = part.first
    async for event in stream.events():
        waiting = take(first + event.index, event)
        if waiting is not None:
            await waiting
