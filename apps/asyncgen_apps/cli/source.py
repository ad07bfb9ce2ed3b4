"""Open the model of a command; tests put a double in its place.

Importing this module does not import torch; opening a local model does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from asyncgen_apps.engine import EventStream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from asyncgen import Completion, Prompt, StreamParams


DEMO_EXAMPLES = (
    "Tell me a story about a fox.",
    "Make a table of three things and their colours.",
    "Who are you?",
)


class LLMStream(EventStream, Protocol):
    """Part of ``asyncgen.TextStream`` and of a server's stream that the commands use."""

    def __aiter__(self) -> AsyncIterator[str]:
        """Read pieces of text."""


class LLM(Protocol):
    """Part of ``asyncgen.AsyncLLM`` and of a server's client that the commands use."""

    @property
    def is_healthy(self) -> bool:
        """True if new requests can be served."""

    def stream(self, prompt: Prompt, **params: Unpack[StreamParams]) -> LLMStream:
        """Start a request."""

    async def generate(self, prompt: Prompt, **params: Unpack[StreamParams]) -> Completion:
        """Run a request to its end."""


@dataclass(frozen=True, slots=True)
class Source:
    """Choice of a model, and options of opening it.

    Attributes:
        model: ``demo``, a folder, a hub id, or a GGUF file.
        device: Device to compute on; ``None`` chooses.
        dtype: Data type of the weights; ``None`` takes the checkpoint's.
        threads: Compute threads; ``None`` takes the process's.
        revision: Branch, tag or commit on the hub.
        token: Token for the hub, or for the server; never shown.
        follow_links: True reads what links in the model's folder lead to; ``None`` refuses them.
        special_tokens_in_content: ``text`` keeps control tokens in messages as text; ``None`` is
            the library's choice.
        max_running: Most streams that share a step; ``None`` is the library's choice.
        max_queue_size: Most streams that wait for that; ``None`` is no limit.
        prepare_seconds: Longest time to prepare one request; ``None`` is the library's choice.
        quantize: Format that weights are packed to while they load; ``None`` leaves them as stored.
        kv_cache_dtype: Type of stored keys and values; ``None`` is the model's dtype.
        tool_format: Format of the model's tool calls; ``None`` finds it.
        reasoning_format: Format of its reasoning; ``None`` finds it.
        url: Address of a server that has the model; the fields above, but ``token``, then have no
            effect.
    """

    model: str = "demo"
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    revision: str | None = None
    token: str | None = None
    follow_links: bool | None = None
    max_running: int | None = None
    max_queue_size: int | None = None
    prepare_seconds: float | None = None
    quantize: str | None = None
    kv_cache_dtype: str | None = None
    url: str | None = None
    tool_format: str | None = None
    reasoning_format: str | None = None
    special_tokens_in_content: str | None = None

    @property
    def name(self) -> str:
        """Name that users see."""
        return self.model if self.url is None else self.url


DEMO = Source()
"""The bundled model, with the defaults of the library."""


def open_llm(source: Source) -> AbstractAsyncContextManager[LLM]:
    """Describe a model to open; entering the result loads it, or connects to its server.

    Args:
        source: Choice of the model.

    Returns:
        A context manager that closes the model, or the connection, on leaving.
    """
    if source.url is not None:
        from asyncgen_apps.websocket.client.client import connect

        return connect(source.url, token=source.token)
    from asyncgen import AsyncLLM

    options: dict[str, Any] = {
        "device": source.device,
        "dtype": source.dtype,
        "quantize": source.quantize,
        "kv_cache_dtype": source.kv_cache_dtype,
        "num_threads": source.threads,
        "revision": source.revision,
        "token": source.token,
        "follow_links": source.follow_links,
        "special_tokens_in_content": source.special_tokens_in_content,
        "max_running": source.max_running,
        "max_queue_size": source.max_queue_size,
        "prepare_seconds": source.prepare_seconds,
        "tool_format": source.tool_format,
        "reasoning_format": source.reasoning_format,
    }
    return AsyncLLM(source.model, **{key: one for key, one in options.items() if one is not None})


def examples_of(source: Source) -> tuple[str, ...]:
    """Return example questions for an empty chat; only the bundled model has some."""
    return DEMO_EXAMPLES if source.model == "demo" else ()
