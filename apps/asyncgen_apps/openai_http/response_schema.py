"""The shapes of replies, for the document at ``/openapi.json``.

Replies are not built from these: laying out plain dictionaries costs a stream a tenth of the time.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class Error(BaseModel):
    """An error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """Every reply that is no success."""

    error: Error


class Model(BaseModel):
    """A model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    fingerprint: str | None = Field(
        None, description="Engines of equal ones give the same request the same tokens."
    )


class ModelList(BaseModel):
    """All models."""

    object: Literal["list"]
    data: list[Model]


class Usage(BaseModel):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int] = Field(
        description="`cached_tokens`, and `truncated_tokens` where some were left out."
    )
    completion_tokens_details: dict[str, int] = Field(description="`reasoning_tokens`.")
    fingerprint: str | None = Field(None, description="Of the engine, as in `/v1/models`.")
    exact: bool = Field(
        False, description="Whether every engine of this fingerprint gives these tokens."
    )


class TopLogprob(BaseModel):
    """An alternative of a token."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(TopLogprob):
    """A token."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """The tokens of a choice."""

    content: list[ChatLogprob]
    refusal: None


class ReplyMessage(BaseModel):
    """The model's message."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = Field(None, description="Only where there is any.")
    tool_calls: list[dict[str, Any]] | None = Field(None, description="Only where there are any.")
    tool_call_errors: list[str] | None = Field(
        None, description="What is wrong with calls that are malformed, and so part of the text."
    )


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: ReplyMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: int | str | None
    token_ids: list[int] | None = None


class ChatCompletion(BaseModel):
    """Reply of ``POST /v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    prompt_token_ids: list[int] | None = None
    choices: list[ChatChoice]
    usage: Usage


class TextLogprobs(BaseModel):
    """The tokens of a choice, as lists."""

    tokens: list[str]
    token_logprobs: list[float | None] = Field(
        description="`null` for the first token of a prompt that is told."
    )
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class TextChoice(BaseModel):
    """One continuation."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: str
    stop_reason: int | str | None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class TextCompletion(BaseModel):
    """Reply of ``POST /v1/completions``."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage


class Tokens(BaseModel):
    """Reply of ``POST /tokenize``."""

    count: int
    max_model_len: int | None
    tokens: list[int]


class DetokenizedText(BaseModel):
    """Reply of ``POST /detokenize``."""

    prompt: str


class RenderedPrompt(BaseModel):
    """Reply of ``POST /apply-template``."""

    prompt: str = Field(description="What a chat of these messages goes on behind.")


class EmbeddingUsage(BaseModel):
    """Token counts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingItem(BaseModel):
    """The vector of one text."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(BaseModel):
    """Reply of ``POST /v1/embeddings``."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage


def _error(description: str) -> dict[str, Any]:
    return {"model": ErrorReply, "description": description}


ERRORS: dict[int | str, dict[str, Any]] = {
    400: _error("A field that is unknown, of a wrong type, or out of range."),
    401: _error("No API key, or a wrong one."),
    404: _error("No such model."),
    413: _error("The body is too large."),
    422: _error("The chat template refuses the messages."),
    429: _error("Too many requests; `Retry-After` says when to come back."),
    503: _error("The engine is dead, or the server is shutting down."),
}
