"""Protocols of the engine as the chat uses it, so that tests can replace it.

A part of :mod:`asyncgen_apps.engine`: every engine is a model for the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Unpack

if TYPE_CHECKING:
    from asyncgen import (
        GenerationConfig,
        MetricsSnapshot,
        Prompt,
        StreamParams,
    )
    from asyncgen_apps.engine import EventStream
    from asyncgen_apps.gradio_chat.word_tokens import Encode


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

    def stream(self, prompt: Prompt, **params: Unpack[StreamParams]) -> EventStream:
        """Answer a prompt."""

    async def measure(self) -> MetricsSnapshot:
        """Return the metrics of the engine."""


def encoder(model: ChatModel) -> Encode:
    """Return what turns words of the panel into token ids of a model, which may open later."""

    def encode(text: str) -> list[int]:
        return model.tokenizer.encode_ids(text, add_special_tokens=False)

    return encode
