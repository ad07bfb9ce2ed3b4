"""The one place where the command line opens a model; tests put their own in its place.

Importing this module does not import torch, opening a model does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, Unpack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from asyncgen import Completion, Prompt, StreamParams, TokenEvent

__all__ = ["LLM", "LLMStream", "Source", "open_llm"]


class LLMStream(Protocol):
    """What the commands use of ``asyncgen.TextStream``."""

    @property
    def result(self) -> Completion:
        """Everything generated so far; final when the stream has ended."""

    async def __aenter__(self) -> Self:
        """Return the stream."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """Cancel what still runs."""

    def __aiter__(self) -> AsyncIterator[str]:
        """Read pieces of text."""

    def events(self) -> AsyncIterator[TokenEvent]:
        """Read what each step settled."""

    def cancel(self) -> None:
        """Stop the work at the next step."""


class LLM(Protocol):
    """What the commands use of ``asyncgen.AsyncLLM``."""

    @property
    def healthy(self) -> bool:
        """Whether new requests can be served."""

    def stream(self, prompt: Prompt, **params: Unpack[StreamParams]) -> LLMStream:
        """Start a request."""

    async def generate(self, prompt: Prompt, **params: Unpack[StreamParams]) -> Completion:
        """Run a request to its end."""


@dataclass(frozen=True, slots=True)
class Source:
    """Which model to open, and how.

    Attributes:
        model: ``demo``, a folder, or a hub id.
        device: Where to compute; ``None`` chooses.
        dtype: Data type of the weights; ``None`` takes the checkpoint's.
        threads: Compute threads; ``None`` takes the process's.
        revision: Branch, tag or commit on the hub.
        token: Token for the hub; never shown.
    """

    model: str = "demo"
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    revision: str | None = None
    token: str | None = None


def open_llm(source: Source) -> AbstractAsyncContextManager[LLM]:
    """Describe a model to open; entering the result loads it.

    Args:
        source: Which one, and how.

    Returns:
        A context manager that closes the model on leaving.
    """
    from asyncgen import AsyncLLM

    return AsyncLLM(
        source.model,
        device=source.device,
        dtype=source.dtype,
        num_threads=source.threads,
        revision=source.revision,
        token=source.token,
    )
