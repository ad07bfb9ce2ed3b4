"""Protocols of the engine as the chat uses it, so that tests can replace it.

A part of :mod:`asyncgen_apps.engine`: every engine is a model for the page.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol, Self, Unpack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

    from asyncgen import (
        Completion,
        GenerationConfig,
        MetricsSnapshot,
        Prompt,
        StreamParams,
        TokenEvent,
    )
    from asyncgen_apps.gradio_chat.word_tokens import Encode


class ChatStream(Protocol):
    """Part of an ``EngineStream`` that the chat uses."""

    @property
    def result(self) -> Completion:
        """Everything generated; final when the stream has ended."""

    async def __aenter__(self) -> Self:
        """Start the request."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Cancel what still runs."""

    def events(self) -> AsyncIterator[TokenEvent]:
        """Read what each step settled."""

    def cancel(self) -> None:
        """Stop the work at the next step."""


class ChatTokenizer(Protocol):
    """Part of ``asyncgen.Tokenizer`` that the chat uses."""

    def encode_ids(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""


class ChatModel(Protocol):
    """Part of a loaded ``Engine`` that the chat uses."""

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer."""

    @property
    def generation_config(self) -> GenerationConfig:
        """The model's own defaults."""

    def stream(self, prompt: Prompt, **params: Unpack[StreamParams]) -> ChatStream:
        """Answer a prompt."""

    async def measure(self) -> MetricsSnapshot:
        """Return the metrics of the engine."""


def encoder(model: ChatModel) -> Encode:
    """Return what turns words of the panel into token ids of a model."""
    return partial(model.tokenizer.encode_ids, add_special_tokens=False)
