"""Define the messages of ``asyncgen.v1``: one JSON object a text frame, identified by ``type``.

Every message is a strict model. A field of a wrong type, a missing field and an unknown one are
errors, never converted or ignored. Knows no request's state, no socket and no engine.

============  =====================================================================================
client        ``auth``, ``generate``, ``cancel``, ``resume``, ``ping``
server        ``hello``, ``accepted``, ``delta``, ``done``, ``error``, ``pong``
============  =====================================================================================
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, model_validator

from asyncgen_apps.serving.limits import MOST_SAMPLES

SUBPROTOCOL = "asyncgen.v1"
"""Name of the protocol in the opening handshake and in ``hello``."""

FinishReason: TypeAlias = Literal[
    "stop", "length", "incomplete", "time", "cancelled", "aborted", "error"
]

ErrorCode: TypeAlias = Literal[
    "invalid_json",
    "invalid_message",
    "unknown_type",
    "unsupported_data",
    "message_too_big",
    "not_authenticated",
    "unauthorized",
    "bad_origin",
    "duplicate_id",
    "unknown_id",
    "too_many_requests",
    "overloaded",
    "invalid_request",
    "context_length",
    "resume_unknown",
    "resume_gone",
    "resume_ahead",
    "resume_attached",
    "resume_moved",
    "resume_expired",
    "resume_changed",
    "slow_reader",
    "engine_dead",
    "draining",
    "internal",
]
"""Codes of an ``error``. With an ``id``, all end the request except three: ``duplicate_id`` and
``resume_attached`` refuse a second request of that id and leave the first alone; ``unknown_id``
means that there is none."""


class CloseCode(IntEnum):
    """Close codes of a connection."""

    NORMAL = 1000
    GOING_AWAY = 1001
    INVALID_DATA = 1007
    POLICY = 1008
    TOO_BIG = 1009
    INTERNAL = 1011
    OVERLOADED = 1013


RequestId: TypeAlias = Annotated[str, Field(min_length=1, max_length=64)]
"""Id that the client gives a request; ids of running requests differ on a connection."""

Nonce: TypeAlias = (
    Annotated[str, Field(max_length=64)] | Annotated[int, Field(ge=-(2**53), le=2**53)]
)

Sequence: TypeAlias = Annotated[int, Field(ge=0, le=2**53)]

_Ids: TypeAlias = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(fail_fast=True)]


class _Message(BaseModel):
    """Strict base of all messages: values are not converted, unknown fields are errors."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True
    )


class Auth(_Message):
    """Authenticate; first message of a client that sent no ``Authorization`` header.

    Attributes:
        token: Bearer token.
    """

    type: Literal["auth"] = "auth"
    token: Annotated[str, Field(min_length=1, max_length=4096)]


class Wanted(_Message):
    """Prompt and parameters of a request.

    Attributes:
        prompt: Text; exactly one of ``prompt``, ``messages`` and ``token_ids`` is given.
        messages: Chat messages.
        token_ids: Token ids.
        params: Parameters of ``AsyncLLM.stream``; ``null`` means not given.
        events: ``"text"``, or ``"tokens"`` for deltas with token ids and log-probabilities.
    """

    model_config = ConfigDict(
        json_schema_extra={
            # A field that is null counts as not given, as in the models.
            "oneOf": [
                {"required": [name], "properties": {name: {"not": {"type": "null"}}}}
                for name in ("prompt", "messages", "token_ids")
            ]
        }
    )

    prompt: Annotated[str, Field(min_length=1)] | None = None
    messages: Annotated[list[dict[str, JsonValue]], Field(min_length=1, fail_fast=True)] | None = (
        None
    )
    token_ids: Annotated[_Ids, Field(min_length=1)] | None = None
    params: dict[str, JsonValue] = Field(default_factory=dict)
    events: Literal["text", "tokens"] = "text"

    @model_validator(mode="after")
    def _has_one_prompt(self) -> Self:
        given = [one for one in (self.prompt, self.messages, self.token_ids) if one is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of `prompt`, `messages` and `token_ids`")
        return self

    @property
    def source(self) -> str | list[dict[str, JsonValue]] | list[int]:
        """The prompt in the form in which it was given."""
        found = self.prompt or self.messages or self.token_ids
        assert found is not None
        return found


class Generate(Wanted):
    """Start a request.

    Attributes:
        id: Id of the request, 1 to 64 characters.
    """

    type: Literal["generate"] = "generate"
    id: RequestId


class Cancel(_Message):
    """End a request; its ``finish_reason`` is ``"cancelled"``.

    Attributes:
        id: Id of the request.
    """

    type: Literal["cancel"] = "cancel"
    id: RequestId


class Resume(_Message):
    """Resume a request of an earlier connection.

    Attributes:
        id: Id of the request from now on, usually the same as before.
        resume_token: Token from its ``accepted``.
        after: Last received ``seq``, 0 if none; later messages are sent again.
        request: The request as it was sent first. A server that does not know it can resume it,
            if it shares the secret of the server that began it.
        generated_ids: With ``request``: the received ``token_ids`` of each sample.
        positions: With ``request``: the last ``position`` of each sample.
    """

    type: Literal["resume"] = "resume"
    id: RequestId
    resume_token: Annotated[str, Field(min_length=1, max_length=256)]
    after: Sequence
    request: Wanted | None = None
    generated_ids: Annotated[list[_Ids], Field(min_length=1, max_length=MOST_SAMPLES)] | None = None
    positions: Annotated[list[Sequence], Field(min_length=1, max_length=MOST_SAMPLES)] | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        given = [one is not None for one in (self.request, self.generated_ids, self.positions)]
        if len(set(given)) > 1:
            raise ValueError("give all of `request`, `generated_ids` and `positions`, or none")
        return self


class Ping(_Message):
    """Ask for a ``pong``; for browsers, which cannot send pings of the WebSocket protocol.

    Attributes:
        nonce: Value that the ``pong`` returns.
    """

    type: Literal["ping"] = "ping"
    nonce: Nonce


class Limits(_Message):
    """Limits of this server.

    Attributes:
        max_message_bytes: Longest message of a client.
        max_requests: Most requests at a time on a connection.
        max_prompt_tokens: Longest prompt; ``null`` for the model's context.
        grace_seconds: Time for which a request runs without its client, and is kept after its end.
        replay_bytes: Bytes of a request that are kept to be sent again.
    """

    max_message_bytes: int
    max_requests: int
    max_prompt_tokens: int | None
    grace_seconds: float
    replay_bytes: int


class Hello(_Message):
    """First message of the server, after authentication.

    Attributes:
        protocol: Version of the protocol.
        model: Name of the model.
        limits: Limits of the server.
        heartbeat_seconds: A client that receives nothing for twice as long should ``ping``.
        authenticated: True if the server needs a token, and the client's is valid.
        fingerprint: Fingerprint of the engine: equal ones promise equal tokens, ``null`` nothing.
        takes_over: True if the server resumes requests that another one began.
    """

    type: Literal["hello"] = "hello"
    protocol: Literal["asyncgen.v1"] = "asyncgen.v1"
    model: str
    limits: Limits
    heartbeat_seconds: float
    authenticated: bool
    fingerprint: str | None = None
    takes_over: bool = False


class Accepted(_Message):
    """Tell that the engine accepted a request, or that the request was resumed.

    Attributes:
        id: Id of the request.
        resume_token: Token to resume it on another connection; as secret as the answer.
        queue_position: Its place in the queue, from 1; ``null`` if it need not wait.
        seed: Seed of its random draws, with which another server can resume it.
    """

    type: Literal["accepted"] = "accepted"
    id: RequestId
    resume_token: str
    queue_position: int | None
    seed: int | None = None


class TopLogprob(_Message):
    """Alternative token of a position.

    Attributes:
        token_id: Id of the token.
        token: Text of the token.
        logprob: Natural logarithm of its probability; ``null`` is minus infinity.
    """

    token_id: int
    token: str
    logprob: float | None


class Logprob(TopLogprob):
    """Chosen token of a position, in the raw distribution.

    Attributes:
        top: Most probable tokens, in descending order.
    """

    top: list[TopLogprob] = Field(default_factory=list)


class ToolCall(_Message):
    """Call of a tool.

    Attributes:
        id: Id of the call, for the message with its result (``tool_call_id``).
        name: Name of the tool.
        arguments: JSON object, as the model wrote it.
    """

    id: str
    name: str
    arguments: str


class ToolCallPiece(_Message):
    """Piece of a tool call: first its name, then its arguments as they grow.

    Attributes:
        index: Number of the call in its sample.
        id: Id of the call, in its first piece.
        name: Name of the tool, in the first piece of the call.
        arguments: Next piece of the arguments, as JSON.
        error: Error of an invalid call, whose text is then part of the answer's text.
    """

    index: Annotated[int, Field(ge=0)]
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    error: str | None = None


class Delta(_Message):
    """Next piece of an answer.

    Attributes:
        id: Id of the request.
        seq: Number: 1, 2, 3 … without gaps over the deltas and the ``done`` of a request.
        first_seq: First number of pieces that were merged to be sent again; absent if it is
            ``seq``.
        text: New text; may be empty with ``events: "tokens"``, and beside the next two fields.
        reasoning: New reasoning, which is not part of the text.
        tool_calls: Pieces of tool calls, which are not part of the text.
        index: Number of the sample.
        position: Number of tokens of this sample so far, with its ``generated_ids``.
        token_ids: New token ids, with ``events: "tokens"``.
        logprobs: One entry for each token id, with ``events: "tokens"`` and if asked for.
        prompt_logprobs: Next tokens of the prompt, ``null`` for the first of all, with ``events:
            "tokens"`` and if asked for. They come before any text, in one or more deltas.
        time: Seconds since the engine accepted the request, with ``events: "tokens"``.
    """

    type: Literal["delta"] = "delta"
    id: RequestId
    seq: Annotated[int, Field(ge=1)]
    first_seq: Annotated[int, Field(ge=1)] | None = None
    text: str
    reasoning: str | None = None
    tool_calls: list[ToolCallPiece] | None = None
    index: Annotated[int, Field(ge=0)] = 0
    position: Annotated[int, Field(ge=0)] | None = None
    token_ids: list[int] | None = None
    logprobs: list[Logprob] | None = None
    prompt_logprobs: list[Logprob | None] | None = None
    time: float | None = None


class Usage(_Message):
    """Token counts, summed over the samples.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        completion_tokens: Generated tokens.
        cached_tokens: Tokens of the prompt that were found in the prefix cache.
        fingerprint: Fingerprint of the engine, as in ``hello``.
        exact: True if every engine of this fingerprint generates the same tokens for the request;
            with ``generated_ids``, true if the ``fingerprint`` given with them is this one.
        reasoning_tokens: Generated tokens that were reasoning.
        truncated_tokens: Tokens of the prompt that were left out, as ``context_overflow`` asked;
            sent where there are some.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    fingerprint: str | None = None
    exact: bool = False
    reasoning_tokens: int = 0
    truncated_tokens: int = 0


class Timing(_Message):
    """Times of a request, in seconds from its acceptance by the engine.

    Attributes:
        queue: Time until it began to run.
        first_token: Time until the first token.
        total: Time until the end.
        tokens_per_second: Rate after the first token.
    """

    queue: float | None
    first_token: float | None
    total: float
    tokens_per_second: float | None


class Choice(_Message):
    """End of one of several samples.

    Attributes:
        index: Number of the sample.
        finish_reason: Reason of its end.
        stop_reason: End-of-sequence id or stop string that ended it.
        tool_calls: Its whole tool calls.
        text: Its whole text, only if the request was aborted.
    """

    index: int
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    tool_calls: list[ToolCall] | None = None
    text: str | None = None


class Done(_Message):
    """End of a request without an error; its last message.

    Attributes:
        id: Id of the request.
        seq: One more than the number of its last delta.
        finish_reason: Reason of the end, of the first sample if there are several.
        stop_reason: End-of-sequence id or stop string that ended it.
        usage: Token counts.
        timing: Times.
        tool_calls: Whole tool calls of the first sample, if it has any.
        choices: One entry for each sample, if there are several.
        text: Whole text, only if the request was aborted.
    """

    type: Literal["done"] = "done"
    id: RequestId
    seq: Annotated[int, Field(ge=1)]
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    usage: Usage
    timing: Timing
    tool_calls: list[ToolCall] | None = None
    choices: list[Choice] | None = None
    text: str | None = None


class Error(_Message):
    """Error of a request or, without an ``id``, of a message or the connection.

    Attributes:
        id: Id of the request.
        code: Error code, for programs.
        message: Text for people: value, limit, remedy.
        retry_after: Seconds after which another attempt may succeed.
        param: Parameter that caused it.
    """

    type: Literal["error"] = "error"
    id: RequestId | None = None
    code: ErrorCode
    message: str
    retry_after: float | None = None
    param: str | None = None


class Pong(_Message):
    """Answer to a ``ping``.

    Attributes:
        nonce: Value of the ``ping``.
    """

    type: Literal["pong"] = "pong"
    nonce: Nonce


ClientMessage: TypeAlias = Annotated[
    Auth | Generate | Cancel | Resume | Ping, Field(discriminator="type")
]
ServerMessage: TypeAlias = Annotated[
    Hello | Accepted | Delta | Done | Error | Pong, Field(discriminator="type")
]

CLIENT_MESSAGE: TypeAdapter[ClientMessage] = TypeAdapter(ClientMessage)
"""Reader of client messages."""

SERVER_MESSAGE: TypeAdapter[ServerMessage] = TypeAdapter(ServerMessage)
"""Reader of server messages."""
