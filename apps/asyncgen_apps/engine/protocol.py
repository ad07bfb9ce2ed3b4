"""Define the engine and its streams, as the applications use them.

``asyncgen.AsyncLLM`` is one such engine. An engine may run in another process: methods that need it
are async, properties (health, fingerprint, tokenizer) are local, and all values and exceptions can
be pickled. Tests run the applications with an engine behind a pipe.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol, Self, Unpack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from asyncgen import (
        Completion,
        Embedding,
        EmbedParams,
        GenerationConfig,
        MetricsSnapshot,
        Prompt,
        PromptParams,
        StreamParams,
        TokenEvent,
        Tokenizer,
    )

__all__ = ["Engine", "EngineStream", "EventStream"]


class EventStream(AbstractAsyncContextManager["EventStream", None], Protocol):
    """Part of a stream that the commands and the chat page read."""

    @property
    def result(self) -> Completion:
        """Generated text with finish reason, usage and timings."""

    async def __aenter__(self) -> Self:
        """Start the request.

        Raises:
            AsyncgenError: The engine refuses the request.
        """

    def events(self) -> AsyncIterator[TokenEvent]:
        """Read the events of each step.

        Raises:
            EngineDiedError: The engine or its process died.
            Exception: The request raised it.
        """

    def cancel(self) -> None:
        """Ask the request to end with ``"cancelled"``; the stream can be read to its end."""


class EngineStream(EventStream, Protocol):
    """Stream of one answer, as ``asyncgen.TextStream``; read once, by one task.

    ``async with`` or the first read starts the request; leaving cancels it. ``prompt_ids``,
    ``seed``, ``position`` and ``is_separated`` are known after the start, ``result`` after the end
    or after leaving.
    """

    @property
    def prompt_ids(self) -> list[int]:
        """Token ids of the prompt."""

    @property
    def seed(self) -> int:
        """Seed of its random draws."""

    @property
    def position(self) -> tuple[int, ...]:
        """Number of tokens of each sample that were read, with its ``generated_ids``."""

    @property
    def prompt_progress(self) -> tuple[int, int, int, float] | None:
        """Tokens of the prompt, those cached, those read, and seconds; ``None``: nobody tells."""

    def drop_logprobs(self) -> None:
        """Leave log-probabilities out of ``result``; call it before the first read."""

    @property
    def is_separated(self) -> bool:
        """True if its events keep reasoning or tool calls apart from the text."""

    async def aclose(self) -> None:
        """Leave; cancels what still runs. Idempotent."""

    def __aiter__(self) -> AsyncIterator[str]:
        """Read the text of a single sample, merged if the reader is slow."""


class Engine(Protocol):
    """Engine with a loaded model, as an open ``asyncgen.AsyncLLM``."""

    @property
    def is_healthy(self) -> bool:
        """True if it accepts requests; otherwise only a restart helps."""

    @property
    def is_degraded(self) -> bool:
        """True if long texts are refused because too many threads hang in a tokenizer."""

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint: equal ones promise equal tokens, ``None`` nothing. Needs a live engine."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the model."""

    @property
    def config(self) -> object:
        """Configuration of the model, with ``vocab_size`` and ``max_position_embeddings``."""

    @property
    def generation_config(self) -> GenerationConfig:
        """Default parameters of the model."""

    def stream(self, prompt: Prompt, **params: Unpack[StreamParams]) -> EngineStream:
        """Answer a prompt; nothing runs before the stream is entered or read.

        Raises:
            AsyncgenError: The engine is closed, or the prompt or a parameter is not valid.
        """

    async def count_tokens(self, prompt: Prompt, **params: Unpack[PromptParams]) -> int:
        """Count the tokens of a prompt, as a stream would.

        Raises:
            AsyncgenError: The reasons are those of a stream.
        """

    async def tokenize(self, prompt: Prompt, **params: Unpack[PromptParams]) -> list[int]:
        """Return the token ids of a prompt, as a stream would have them.

        Raises:
            AsyncgenError: The reasons are those of a stream.
        """

    async def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], **params: Unpack[PromptParams]
    ) -> str:
        """Return the prompt that a stream makes of messages, as one text.

        Raises:
            AsyncgenError: The reasons are those of a stream; or one text cannot tell all of it.
        """

    async def embed(
        self, prompt: Sequence[str | Sequence[int]], **params: Unpack[EmbedParams]
    ) -> list[Embedding]:
        """Turn texts, or lists of token ids, into vectors.

        Raises:
            AsyncgenError: The engine is closed, or a text cannot be embedded.
        """

    async def measure(self) -> MetricsSnapshot:
        """Return the metrics since the model was loaded.

        Raises:
            AsyncgenError: The engine is closed.
        """
