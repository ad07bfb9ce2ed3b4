"""From the body of a request to its reply in one piece, whoever brings it: HTTP, or a file.

Knows the API; not how a body came, nor how a reply is sent.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread
from pydantic import BaseModel, ValidationError

from asyncgen_apps.openai_http.errors import (
    SERVER,
    ApiError,
    clipped,
    from_exception,
    from_validation,
)
from asyncgen_apps.openai_http.request_schema import ChatCompletionRequest, CompletionRequest
from asyncgen_apps.openai_http.request_streams import RequestStreams
from asyncgen_apps.openai_http.serializers import (
    ChatSerializer,
    CompletionHead,
    CompletionSerializer,
)
from asyncgen_apps.openai_http.translate import COMPLETION_TOKENS, plan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from asyncgen import AsyncLLM, TokenEvent
    from asyncgen_apps.openai_http.echo import Echo
    from asyncgen_apps.openai_http.serializers import Object, Serializer
    from asyncgen_apps.openai_http.translate import Plan


CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, type[ChatCompletionRequest] | type[CompletionRequest]] = {
    CHAT_PATH: ChatCompletionRequest,
    TEXT_PATH: CompletionRequest,
}
"""What is sent to each path."""


def require_model(name: str, names: Sequence[str]) -> None:
    """Refuse a model that is not here.

    Raises:
        ApiError: A 404 that says which are.
    """
    if name not in names:
        message = f"the model {clipped(name)!r} does not exist here; there is: {', '.join(names)}"
        raise ApiError(404, message, param="model", code="model_not_found")


def plan_reply(
    body: ChatCompletionRequest | CompletionRequest,
    request_id: str,
    *,
    text_tokens: int | None = COMPLETION_TOKENS,
) -> tuple[Plan, Serializer]:
    """Plan the streams of a request, and make the serializer of its reply.

    Args:
        body: Checked body.
        request_id: Becomes part of the reply's id.
        text_tokens: Tokens that continue a text where no length is asked for; ``None`` leaves that
            to the model.

    Raises:
        ApiError: It cannot be answered.
    """
    planned = plan(body, text_tokens=text_tokens)
    is_chat = isinstance(body, ChatCompletionRequest)
    prefix = "chatcmpl" if is_chat else "cmpl"
    head = CompletionHead(f"{prefix}-{request_id}", int(time.time()), body.model)
    if is_chat:
        return planned, ChatSerializer(head, planned.logprobs, planned.token_ids)
    options = planned.logprobs, planned.top_logprobs, planned.token_ids
    return planned, CompletionSerializer(head, *options, echo=planned.echo)


_Body = TypeVar("_Body", bound=BaseModel)


def checked(kind: type[_Body], content: object) -> _Body:
    """Check a parsed body.

    Args:
        kind: What it should be.
        content: The body.

    Raises:
        ApiError: Names the first field that does not fit.
    """
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
        raise from_validation([dict(one) for one in details], kind) from None


async def whole(
    streams: RequestStreams,
    serializer: Serializer,
    on_thread: Callable[..., Awaitable[Object]] = anyio.to_thread.run_sync,
) -> Object:
    """Read all streams to their ends, and lay the reply out in one piece.

    Args:
        streams: Entered.
        serializer: Lays the reply out.
        on_thread: Calls a function with arguments on a worker thread.

    Raises:
        ApiError: The engine was closed meanwhile.
        Exception: The first stream to fail raised it.
    """
    await streams.read(check_whole)
    prompt_ids = streams.prompt_ids if serializer.token_ids else []
    if serializer.echo is None:
        return serializer.whole(prompt_ids, streams.samples(), streams.usage())
    # As long as the prompts are: not in the event loop.
    return await on_thread(_echoed, streams, serializer, serializer.echo, prompt_ids)


def _echoed(
    streams: RequestStreams, serializer: Serializer, echo: Echo, prompt_ids: list[list[int]]
) -> Object:
    """Lay a reply with its prompts out; on a worker thread."""
    echo.begin(streams.prompt_ids, streams.tokenizer)
    for number, entries in enumerate(streams.prompt_logprobs):
        if entries is not None and serializer.logprobs:
            echo.learn(number, entries)
    return serializer.whole(prompt_ids, streams.samples(), streams.usage())


def check_whole(index: int, event: TokenEvent) -> None:
    """Raise if the answer was cut short because the engine was closed.

    Raises:
        ApiError: A 503.
    """
    if event.finish_reason in ("aborted", "error"):
        message = "the engine was closed before the answer was complete"
        raise ApiError(503, message, SERVER, code="engine_unavailable", retry_after=5)


async def reply_to(
    llm: AsyncLLM,
    path: str,
    content: object,
    request_id: str,
    *,
    names: Sequence[str],
    text_tokens: int | None = COMPLETION_TOKENS,
) -> Object:
    """Answer a body that came without HTTP, in one piece.

    Args:
        llm: The engine.
        path: One of `BODIES`.
        content: The body, parsed.
        request_id: Becomes part of the reply's id.
        names: Names of the model in bodies.
        text_tokens: As in `plan_reply`.

    Returns:
        The reply.

    Raises:
        ApiError: Error that HTTP would answer.
    """
    body = checked(BODIES[path], content)
    require_model(body.model, names)
    if body.stream:
        raise ApiError(400, "`stream` is true: replies come in one piece here", param="stream")
    planned, serializer = plan_reply(body, request_id, text_tokens=text_tokens)
    try:
        async with RequestStreams(llm, planned.parts) as streams:
            return await whole(streams, serializer)
    except Exception as error:
        raise from_exception(error, planned.names) from error
