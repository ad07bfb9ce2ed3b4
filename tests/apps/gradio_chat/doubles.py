"""A model that says what a script tells it to, and an engine's figures that a test sets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from asyncgen import (
    Completion,
    FinishReason,
    GenerationConfig,
    Prompt,
    Sample,
    Timing,
    TokenEvent,
    TokenLogprob,
    TopLogprob,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from types import TracebackType


def logprob(text: str, value: float = -0.1, token_id: int = 7) -> TokenLogprob:
    """A token with itself and one other as alternatives."""
    other = TopLogprob(token_id + 1, "other", value - 1)
    return TokenLogprob(token_id, text, value, (TopLogprob(token_id, text, value), other))


class ScriptedStream:
    """Gives pieces, then waits for a cancel, fails, or ends."""

    def __init__(
        self,
        pieces: Sequence[str] = ("An ", "answer."),
        *,
        waits: bool = False,
        fails: Exception | None = None,
        delay: float = 0.0,
    ) -> None:
        self._pieces = pieces
        self._waits = waits
        self._fails = fails
        self._delay = delay
        self._cancelled = asyncio.Event()
        self.given: list[str] = []
        self.is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.is_closed = True

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        self._cancelled.set()

    async def events(self) -> AsyncIterator[TokenEvent]:
        for number, piece in enumerate(self._pieces):
            await asyncio.sleep(self._delay)
            if self.is_cancelled:
                return
            self.given.append(piece)
            yield TokenEvent(0, (number,), piece, (logprob(piece),))
        if self._waits:
            await self._cancelled.wait()
        if self._fails is not None:
            raise self._fails

    @property
    def result(self) -> Completion:
        reason: FinishReason = "cancelled" if self.is_cancelled else "stop"
        ids = tuple(range(len(self.given)))
        sample = Sample(0, "".join(self.given), ids, reason)
        return Completion((sample,), Usage(7, len(ids)), Timing(0.001, 0.25, 1.0, 42.0))


class Letters:
    """A tokenizer: one id for each character."""

    def encode_ids(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return [ord(letter) for letter in text]


@dataclass
class ScriptedModel:
    """Gives one scripted stream after the other, the default one afterwards.

    Attributes:
        streams: What is still to be said; an exception is raised instead.
        asked: Prompt and parameters of each request.
        waiting: Requests in the queue.
        taken_up: Requests that have left it.
        generation_config: The model's defaults.
        tokenizer: The model's tokenizer.
    """

    streams: list[ScriptedStream | Exception] = field(default_factory=list)
    asked: list[tuple[Prompt, dict[str, Any]]] = field(default_factory=list)
    waiting: int = 0
    taken_up: int = 0
    generation_config: GenerationConfig = field(
        default_factory=lambda: GenerationConfig(do_sample=True, temperature=0.6, top_p=0.9)
    )
    tokenizer: Letters = field(default_factory=Letters)

    def stream(self, prompt: Prompt, **params: Any) -> ScriptedStream:
        self.asked.append((prompt, params))
        given = self.streams.pop(0) if self.streams else ScriptedStream()
        if isinstance(given, Exception):
            raise given
        return given

    async def measure(self) -> Any:
        taken_up = SimpleNamespace(count=self.taken_up)
        return SimpleNamespace(requests_waiting=self.waiting, queue_time=taken_up)
