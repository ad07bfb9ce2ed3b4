"""A model that says what a script tells it to, and records what it was asked."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import anyio
from typer.testing import CliRunner, Result

from asyncgen import Completion, FinishReason, Prompt, Sample, Timing, TokenEvent, Usage
from asyncgen_apps.cli.app import app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from types import TracebackType

    from asyncgen_apps.cli.source import Source


def completion(text: str, reason: FinishReason = "stop", tokens: int = 3) -> Completion:
    """A finished completion with round figures."""
    sample = Sample(0, text, tuple(range(tokens)), reason)
    return Completion((sample,), Usage(7, tokens), Timing(0.001, 0.25, 1.0, 42.0))


@dataclass(frozen=True)
class Answer:
    """Answer of the double: pieces of text, then a failure, Ctrl-Cs, or the end.

    Attributes:
        pieces: The text.
        fails: Raised after it.
        interrupts: How many Ctrl-C come after it; from the second on, only leaving helps.
        waits: Go on until it is cancelled.
    """

    pieces: Sequence[str] = ("An ", "answer.")
    fails: Exception | None = None
    interrupts: int = 0
    waits: bool = False


class ScriptedStream:
    """Gives the pieces of an answer; after the Ctrl-C it sends itself, it waits for the cancel."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.given: list[str] = []
        self.cancelled = anyio.Event()
        self.is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.is_closed = True

    async def __aiter__(self) -> AsyncIterator[str]:
        for piece in self.answer.pieces:
            await anyio.lowlevel.checkpoint()
            self.given.append(piece)
            yield piece
        for _ in range(self.answer.interrupts):
            signal.raise_signal(signal.SIGINT)
            await self.cancelled.wait()
        if self.answer.waits:
            await self.cancelled.wait()
        if self.answer.interrupts > 1:
            await anyio.sleep_forever()
        if self.answer.fails is not None:
            raise self.answer.fails

    def events(self) -> AsyncIterator[TokenEvent]:
        raise AssertionError("the command line reads text")

    def cancel(self) -> None:
        self.cancelled.set()

    @property
    def result(self) -> Completion:
        reason: FinishReason = "cancelled" if self.cancelled.is_set() else "stop"
        return completion("".join(self.given), reason, len(self.given))


@dataclass
class ScriptedLLM:
    """Gives one scripted answer after the other.

    Attributes:
        answers: What is still to be said; the default answer afterwards.
        asked: Prompt and parameters of each request.
        source: What it was opened from.
        is_open: Whether it is inside its ``async with``.
        is_healthy: What the property says.
    """

    answers: list[Answer] = field(default_factory=list)
    asked: list[tuple[Prompt, dict[str, Any]]] = field(default_factory=list)
    source: Source | None = None
    is_open: bool = False
    is_healthy: bool = True

    async def __aenter__(self) -> Self:
        self.is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.is_open = False

    def stream(self, prompt: Prompt, **params: Any) -> ScriptedStream:
        assert self.is_open
        self.asked.append((prompt, params))
        return ScriptedStream(self.answers.pop(0) if self.answers else Answer())

    async def generate(self, prompt: Prompt, **params: Any) -> Completion:
        stream = self.stream(prompt, **params)
        text = "".join([piece async for piece in stream])
        first = stream.result
        samples = tuple(
            Sample(index, text, first.token_ids, "stop") for index in range(params.get("n") or 1)
        )
        return Completion(samples, first.usage, first.timing)

    def open(self, source: Source) -> Self:
        """Take the place of ``asyncgen_apps.cli.source.open_llm``."""
        self.source = source
        return self


def run_cli(*arguments: str, stdin: str | None = None) -> Result:
    """Run a command in this process."""
    return CliRunner(env={"OMP_NUM_THREADS": "1", "HF_TOKEN": ""}).invoke(
        app, arguments, input=stdin
    )
