"""Answers the last question of a conversation: a request in, a growing turn out.

Moves what a stream gives into the conversation; draws nothing, and knows no Gradio.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from asyncgen import InvalidRequestError
from asyncgen_apps.engine.end_words import END_WORDS
from asyncgen_apps.gradio_chat.conversations import Turn
from asyncgen_apps.gradio_chat.queue_position import QueuePosition
from asyncgen_apps.gradio_chat.settings import ALTERNATIVES
from asyncgen_apps.gradio_chat.statistics import describe, figures
from asyncgen_apps.gradio_chat.streaming import MAX_INTERVAL, MIN_INTERVAL, read_throttled

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from asyncgen import StreamParams
    from asyncgen_apps.gradio_chat.conversations import Conversation
    from asyncgen_apps.gradio_chat.model import ChatModel
    from asyncgen_apps.gradio_chat.sessions import Session
    from asyncgen_apps.gradio_chat.streaming import PartialAnswer


_INTERVAL_OF_TURN = 0.0005
"""Seconds between two updates for each turn of a chat, at least."""

READING = "Reading the prompt"
STOPPED = {"ended by": END_WORDS["cancelled"]}


async def answer(
    model: ChatModel,
    session: Session,
    conversation: Conversation,
    params: StreamParams,
    system: str = "",
    *,
    max_interval: float = MAX_INTERVAL,
) -> AsyncGenerator[Turn, None]:
    """Answer the last question; leaving the loop stops the model.

    A model without log-probabilities is asked again without them, unless they were chosen.

    Args:
        model: Model that answers.
        session: The page that asks; its ``running`` holds the stream meanwhile.
        conversation: Ends with a question; the answer becomes its last turn.
        params: Parameters of the stream.
        system: The system prompt, if any.
        max_interval: Most seconds between two updates.

    Yields:
        The answer, at most ten times a second, further on each time; the last time with its
        figures, or with what went wrong.
    """
    prompt = conversation.prompt(system)
    turn = Turn("assistant", "")
    conversation.turns.append(turn)
    again = False
    if not session.has_logprobs and params.get("top_logprobs") == ALTERNATIVES:
        params = _without_logprobs(params)
    try:
        try:
            stream = model.stream(prompt, **params)
            session.start(conversation, stream)
            position = await QueuePosition.last(model)  # the request is posted at the first read
        except Exception as error:
            turn.error = describe(error)
            session.end(conversation)
            yield turn
            return
        # Gradio walks the whole chat at each update: 60 ms for the longest one.
        min_interval = max(MIN_INTERVAL, len(conversation.turns) * _INTERVAL_OF_TURN)
        throttled = read_throttled(stream, min_interval=min_interval, max_interval=max_interval)
        async with aclosing(throttled) as partials:
            async for partial in partials:
                turn.text = partial.text
                if again := _lacks_logprobs(partial, params):
                    break
                if partial.ended:
                    _finish(session, turn, partial)
                    session.end(conversation)
                else:
                    session.statuses[conversation.key] = await _status(partial, position)
                yield turn
    finally:
        session.end(conversation)
        if not turn.figures and not turn.error:
            turn.figures = dict(STOPPED)
    if again:
        session.has_logprobs = False
        conversation.turns.remove(turn)
        turns = answer(model, session, conversation, params, system, max_interval=max_interval)
        async with aclosing(turns) as grown:
            async for each in grown:
                yield each


def _lacks_logprobs(partial: PartialAnswer, params: StreamParams) -> bool:
    """Tell whether a model refused the alternatives that are asked for without being chosen."""
    refused = partial.failure
    return (
        isinstance(refused, InvalidRequestError)
        and refused.parameter in ("logprobs", "top_logprobs")
        and params.get("top_logprobs") == ALTERNATIVES
    )


def _without_logprobs(params: StreamParams) -> StreamParams:
    given = {name: value for name, value in params.items() if name != "top_logprobs"}
    return cast("StreamParams", given)


def _finish(session: Session, turn: Turn, partial: PartialAnswer) -> None:
    """Write down how an answer ended."""
    if partial.failure is not None:
        turn.error = describe(partial.failure)
    if partial.completion is not None:
        turn.figures = figures(partial.completion)
    session.record(turn.key, partial.logprobs)


async def _status(partial: PartialAnswer, position: QueuePosition) -> str:
    """Say what an answer is doing."""
    ahead = None if partial.is_begun else await position.ahead()
    if ahead is None:
        return READING
    if ahead == 0:
        return "In the queue: next"
    return f"In the queue: {ahead} ahead"
