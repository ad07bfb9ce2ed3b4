"""The statistics of an answer, and its errors, in words.

Knows the values of a completion; no screen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen import (
    AsyncgenError,
    ContextLengthError,
    EngineClosedError,
    EngineDiedError,
    OverloadedError,
)
from asyncgen_apps.engine.end_words import END_WORDS

if TYPE_CHECKING:
    from asyncgen import Completion


def figures(completion: Completion) -> dict[str, str]:
    """Return name and value of each statistic of an answer, in the order of interest."""
    usage, timing = completion.usage, completion.timing
    shown = {"tokens": _count(usage.completion_tokens)}
    if timing.first_token is not None:
        shown["first token"] = f"first after {_seconds(timing.first_token)}"
    if timing.tokens_per_second is not None:
        shown["speed"] = f"{timing.tokens_per_second:.0f} tokens/s"
        if timing.tokens_per_second < 20:
            shown["speed"] = f"{timing.tokens_per_second:.1f} tokens/s"
    shown["ended by"] = END_WORDS[completion.finish_reason]
    if isinstance(completion.stop_reason, str):
        shown["stop string"] = f"`{completion.stop_reason}`"
    shown["prompt"] = _count(usage.prompt_tokens)
    if timing.queue is not None:
        shown["in the queue"] = _seconds(timing.queue)
    shown["in all"] = _seconds(timing.total)
    return shown


def describe(error: Exception) -> str:
    """Say an error in words that a user of the chat can do something with."""
    if isinstance(error, OverloadedError):
        return f"The server is busy: try again in {error.retry_after:.0f} s."
    if isinstance(error, EngineDiedError):
        return f"The model has stopped unexpectedly, and must be started again. ({error})"
    if isinstance(error, EngineClosedError):
        return "The server is closing."
    if isinstance(error, ContextLengthError) and (
        error.value is None or error.parameter == "prompt"
    ):
        has = "" if error.value is None else f"it has {error.value}; "
        return f"This chat is too long for the model: {has}{error.allowed}"
    if isinstance(error, AsyncgenError):
        return f"This cannot be done: {error}"
    name = type(error).__name__
    return (
        f"Something went wrong: {name}: {error}" if str(error) else f"Something went wrong: {name}"
    )


def _seconds(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 60 else f"{value / 60:.1f} min"


def _count(tokens: int) -> str:
    return f"{tokens} token" + ("" if tokens == 1 else "s")
