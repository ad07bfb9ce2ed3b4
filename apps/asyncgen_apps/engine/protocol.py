"""Protocols of the engine and its streams, as the applications use them.

``asyncgen.AsyncLLM`` is one such engine.

An engine may live in another process: whatever has to be asked for is awaited, what is told at once
(health, the fingerprint, the tokenizer) it has at hand, and every value and every exception that
goes through here can be pickled. The applications are tried with one behind a pipe.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol, Self, Unpack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

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

__all__ = ["Engine", "EngineStream"]


class EngineStream(AbstractAsyncContextManager["EngineStream", None], Protocol):
    """One answer on its way, as ``asyncgen.TextStream``; read once, by one task.

    The first read starts the request, where ``async with`` has not. ``prompt_ids``, ``seed``,
    ``position`` and ``is_separated`` are known once it has started, and ``result`` once it has
    ended or was left.
    """

    @property
    def result(self) -> Completion:
        """Generated text with finish reason, usage and timings."""

    @property
    def prompt_ids(self) -> list[int]:
        """Token ids of the prompt."""

    @property
    def seed(self) -> int:
        """Seed of its draws."""

    @property
    def position(self) -> tuple[int, ...]:
        """Tokens of each sample, as far as they were read; ``generated_ids`` count."""

    @property
    def is_separated(self) -> bool:
        """True if its events keep reasoning or tool calls apart from the text."""

    async def __aenter__(self) -> Self:
        """Start the request.

        Raises:
            AsyncgenError: What the engine refuses.
        """

    async def aclose(self) -> None:
        """Leave; cancels what still runs. Idempotent."""

    def __aiter__(self) -> AsyncIterator[str]:
        """Read the text of a single sample, merged where the reader was slow."""

    def events(self) -> AsyncIterator[TokenEvent]:
        """Read what each step settled.

        Raises:
            EngineDiedError: The engine died, or the process that it lives in.
            Exception: What the request raised.
        """

    def cancel(self) -> None:
        """Ask the request to end with ``"cancelled"``; the stream can be read to its end."""


class Engine(Protocol):
    """A model that answers, as an open ``asyncgen.AsyncLLM``."""

    @property
    def is_healthy(self) -> bool:
        """True if it takes requests; otherwise only a restart helps."""

    @property
    def is_degraded(self) -> bool:
        """True if long texts are refused, because threads hang over others."""

    @property
    def fingerprint(self) -> str | None:
        """Equal ones promise equal tokens; ``None`` promises nothing. Needs a healthy engine."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""

    @property
    def config(self) -> object:
        """The model's configuration; has its ``vocab_size``, ``max_position_embeddings``."""

    @property
    def generation_config(self) -> GenerationConfig:
        """The model's own defaults."""

    def stream(self, prompt: Prompt, **params: Unpack[StreamParams]) -> EngineStream:
        """Answer a prompt; nothing runs before the stream is entered or read.

        Raises:
            AsyncgenError: No engine is there, or something is no prompt, or an unknown parameter.
        """

    async def count_tokens(self, prompt: Prompt, **params: Unpack[PromptParams]) -> int:
        """Count the tokens of a prompt, as a stream would.

        Raises:
            AsyncgenError: As a stream raises it.
        """

    async def tokenize(self, prompt: Prompt, **params: Unpack[PromptParams]) -> list[int]:
        """Tell the token ids of a prompt, as a stream would have them.

        Raises:
            AsyncgenError: As a stream raises it.
        """

    async def embed(
        self, prompt: Sequence[str | Sequence[int]], **params: Unpack[EmbedParams]
    ) -> list[Embedding]:
        """Turn texts, or lists of token ids, into vectors.

        Raises:
            AsyncgenError: No engine is there, or something cannot be embedded.
        """

    async def measure(self) -> MetricsSnapshot:
        """Ask what it has counted since it was loaded.

        Raises:
            AsyncgenError: No engine is there.
        """
