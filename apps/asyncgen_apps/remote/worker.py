"""Answer requests and questions of other processes, beside the engine."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from asyncgen_apps.remote.messages import EngineFacts, Failure, StreamStarted, packed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from asyncgen import AsyncLLM
    from asyncgen_apps.remote.messages import Item, StreamRequest


GATHER_SECONDS = 0.05
"""Seconds between two messages of a stream: a message costs as much as many tokens."""


async def answer(
    llm: AsyncLLM, request: StreamRequest, *, replica: str = "", interval: float = GATHER_SECONDS
) -> AsyncGenerator[Item, None]:
    """Yield the messages of a stream; closing the iterator or cancelling its reader stops it.

    Args:
        llm: An open engine.
        request: Request for the stream.
        replica: Name of the engine.
        interval: Seconds between two lists of events; the first comes at once.
    """
    try:
        async with llm.stream(request.prompt, **request.params) as stream:
            first = stream.prompt_ids, stream.seed, stream.position, llm.fingerprint, replica
            yield StreamStarted(*first, is_separated=stream.is_separated)
            async for events in stream.event_batches(interval=interval):
                yield packed(events)
    except Exception as error:
        yield Failure(portable(error))


async def reply(llm: AsyncLLM, kind: str, given: tuple[Any, ...]) -> Any:
    """Answer a question about a prompt; an error is returned, not raised."""
    methods: dict[str, Callable[..., Awaitable[Any]]] = {
        "count": llm.count_tokens,
        "tokenize": llm.tokenize,
        "apply_chat_template": llm.apply_chat_template,
        "embed": llm.embed,
    }
    prompt, params = given
    try:
        return await methods[kind](prompt, **params)
    except Exception as error:
        return Failure(portable(error))


def facts_of(llm: AsyncLLM) -> EngineFacts:
    """Return the values that callers keep of an engine."""
    constants = (llm.fingerprint, llm.tokenizer, llm.generation_config, llm.config)
    return EngineFacts(*constants, llm.metrics())


def portable(error: Exception) -> Exception:
    """Return the error, or a ``RuntimeError`` with its text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
