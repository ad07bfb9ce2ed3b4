"""Beside the engine: orders in, what comes of them out."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from asyncgen_apps.remote.messages import Begun, Facts, Failed, packed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from asyncgen import AsyncLLM
    from asyncgen_apps.remote.messages import Item, Order


GATHER_SECONDS = 0.05
"""Between two messages of a stream: a message costs as much as the tokens of many steps."""


async def answer(
    llm: AsyncLLM, order: Order, *, replica: str = "", interval: float = GATHER_SECONDS
) -> AsyncGenerator[Item, None]:
    """Follow an order; closing the iterator, or cancelling who reads it, stops the work.

    Args:
        llm: An open engine.
        order: What is wanted.
        replica: The engine's name.
        interval: Seconds between two lists of events; the first comes at once.
    """
    try:
        async with llm.stream(order.prompt, **order.params) as stream:
            told = stream.prompt_ids, stream.seed, stream.position, llm.fingerprint, replica
            yield Begun(*told, is_separated=stream.is_separated)
            async for events in stream.event_batches(interval=interval):
                yield packed(events)
    except Exception as error:
        yield Failed(portable(error))


async def reply(llm: AsyncLLM, kind: str, given: tuple[Any, ...]) -> Any:
    """Answer a question; an error is returned, not raised."""
    try:
        if kind == "count":
            prompt, params = given
            return await llm.count_tokens(prompt, **params)
        if kind == "tokenize":
            prompt, params = given
            return await llm.tokenize(prompt, **params)
        prompts, params = given
        return await llm.embed(prompts, **params)
    except Exception as error:
        return Failed(portable(error))


def facts_of(llm: AsyncLLM) -> Facts:
    """Collect the facts that callers keep of an engine."""
    known = (llm.fingerprint, llm.tokenizer, llm.generation_config, llm.config)
    return Facts(*known, llm.metrics())


def portable(error: Exception) -> Exception:
    """The error, or one that says the same, where it cannot be pickled, as some of users cannot."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
