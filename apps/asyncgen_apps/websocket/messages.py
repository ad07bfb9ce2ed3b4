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
    """Reasons for closing a connection."""

    NORMAL = 1000
    GOING_AWAY = 1001
    INVALID_DATA = 1007
    POLICY = 1008
    TOO_BIG = 1009
    INTERNAL = 1011
    OVERLOADED = 1013


RequestId: TypeAlias = Annotated[str, Field(min_length=1, max_length=64)]
"""The client's name for a request; one that runs must not be named again on its connection."""

Nonce: TypeAlias = (
    Annotated[str, Field(max_length=64)] | Annotated[int, Field(ge=-(2**53), le=2**53)]
)

Sequence: TypeAlias = Annotated[int, Field(ge=0, le=2**53)]

_Ids: TypeAlias = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(fail_fast=True)]


class _Message(BaseModel):
    """Base of all messages: nothing is converted, nothing is ignored."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True
    )


class Auth(_Message):
    """The first message of a client that could send no ``Authorization`` header.

    Attributes:
        token: The bearer token.
    """

    type: Literal["auth"] = "auth"
    token: Annotated[str, Field(min_length=1, max_length=4096)]


class Wanted(_Message):
    """Prompt and parameters of a request.

    Attributes:
        prompt: A text; or else ``messages`` or ``token_ids``, exactly one of the three.
        messages: Chat messages.
        token_ids: Token ids.
        params: Parameters of ``AsyncLLM.stream``; ``null`` means not given.
        events: ``"text"``, or ``"tokens"`` for deltas with token ids and log-probabilities.
    """

    model_config = ConfigDict(
        json_schema_extra={
            # One that is null is not given, as the models have it.
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
        """The prompt in whichever form it was given."""
        found = self.prompt or self.messages or self.token_ids
        assert found is not None
        return found


class Generate(Wanted):
    """Start a request: what is wanted, under a name.

    Attributes:
        id: Its name, 1 to 64 characters.
    """

    type: Literal["generate"] = "generate"
    id: RequestId


class Cancel(_Message):
    """End a request; its ``done`` says ``"cancelled"``.

    Attributes:
        id: Its name.
    """

    type: Literal["cancel"] = "cancel"
    id: RequestId


class Resume(_Message):
    """Go on with a request of an earlier connection.

    Attributes:
        id: Its name from now on, usually the one it had.
        resume_token: From its ``accepted``.
        after: The last ``seq`` seen, 0 if none; what comes behind it is sent again.
        request: What was asked for, once more: a server that does not know the request goes on
            with it, if it shares the secret of the one that began it.
        generated_ids: With ``request``: for each sample the ``token_ids`` that have arrived.
        positions: With ``request``: the last ``position`` of each sample.
    """

    type: Literal["resume"] = "resume"
    id: RequestId
    resume_token: Annotated[str, Field(min_length=1, max_length=256)]
    after: Sequence
    request: Wanted | None = None
    generated_ids: Annotated[list[_Ids], Field(min_length=1, max_length=128)] | None = None
    positions: Annotated[list[Sequence], Field(min_length=1, max_length=128)] | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        given = [one is not None for one in (self.request, self.generated_ids, self.positions)]
        if len(set(given)) > 1:
            raise ValueError("give all of `request`, `generated_ids` and `positions`, or none")
        return self


class Ping(_Message):
    """Ask for a ``pong``: what a browser has instead of the protocol's own pings.

    Attributes:
        nonce: Comes back.
    """

    type: Literal["ping"] = "ping"
    nonce: Nonce


class Limits(_Message):
    """Limits of this server.

    Attributes:
        max_message_bytes: Longest message from a client.
        max_requests: Most requests at a time on a connection.
        max_prompt_tokens: Longest prompt; ``null`` leaves it to the model's context.
        grace_seconds: How long a request goes on without its client, and is kept after its end.
        replay_bytes: How much of a request is kept to be sent again.
    """

    max_message_bytes: int
    max_requests: int
    max_prompt_tokens: int | None
    grace_seconds: float
    replay_bytes: int


class Hello(_Message):
    """The server's first message, once the client is let in.

    Attributes:
        protocol: Version of the protocol.
        model: Name of the model.
        limits: What is allowed.
        heartbeat_seconds: A client that hears nothing for twice as long should ``ping``.
        authenticated: Whether a token was needed, and was good.
        fingerprint: Of the engine: equal ones promise equal tokens; ``null`` promises nothing.
        takes_over: Whether it takes requests up that another server has begun.
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
    """A request was taken by the engine, or taken up again.

    Attributes:
        id: The request.
        resume_token: Opens it from another connection; as secret as the answer.
        queue_position: How many wait, this one included; ``null`` if it need not.
        seed: Of its draws, given or drawn: with it, and ``generated_ids``, another server goes on.
    """

    type: Literal["accepted"] = "accepted"
    id: RequestId
    resume_token: str
    queue_position: int | None
    seed: int | None = None


class TopLogprob(_Message):
    """One alternative of a position.

    Attributes:
        token_id: The token.
        token: Its text.
        logprob: Natural log of its probability; ``null`` is minus infinity.
    """

    token_id: int
    token: str
    logprob: float | None


class Logprob(TopLogprob):
    """The chosen token of a position, in the raw distribution.

    Attributes:
        top: The most probable tokens, most probable first.
    """

    top: list[TopLogprob] = Field(default_factory=list)


class ToolCall(_Message):
    """A tool that the model wants called.

    Attributes:
        id: Names the call in the message with its result (``tool_call_id``).
        name: Of the tool.
        arguments: A JSON object, as the model wrote it.
    """

    id: str
    name: str
    arguments: str


class ToolCallPiece(_Message):
    """A piece of a call: its name at once, then its arguments as they grow.

    Attributes:
        index: Which call of the sample.
        id: Of the call, with its first piece.
        name: Of the tool, with its first piece.
        arguments: The next piece of the arguments, as JSON.
        error: What is wrong with the call; it is no call then, and its text is part of the text.
    """

    index: Annotated[int, Field(ge=0)]
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    error: str | None = None


class Delta(_Message):
    """The next piece of an answer.

    Attributes:
        id: The request.
        seq: Its number: 1, 2, 3 … without gaps over the deltas and the ``done`` of a request.
        first_seq: Where pieces were merged to be sent again: the first of their numbers. Absent,
            it is ``seq``.
        text: Text that became complete; may be empty with ``events: "tokens"``, and beside the
            next two.
        reasoning: What the model thinks before it answers, which is no part of the text.
        tool_calls: Pieces of calls of tools, which are no part of it either.
        index: Which sample.
        position: Tokens that this sample has now, those of ``generated_ids`` among them.
        token_ids: With ``events: "tokens"``.
        logprobs: With ``events: "tokens"`` and where asked for, one for each token id.
        prompt_logprobs: With ``events: "tokens"`` and where asked for: the next tokens of the
            prompt, ``null`` for the first of all. They come before any text, in as many deltas as
            it takes.
        time: With ``events: "tokens"``: seconds since the engine accepted the request.
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
        completion_tokens: Tokens generated.
        cached_tokens: Those of the prompt that were not computed anew.
        fingerprint: Of the engine, as in ``hello``.
        exact: Whether every engine of this fingerprint gives the request the same tokens; behind
            ``generated_ids``, whether the ``fingerprint`` that came with them is this one.
        reasoning_tokens: Those of the completion that were reasoning.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    fingerprint: str | None = None
    exact: bool = False
    reasoning_tokens: int = 0


class Timing(_Message):
    """Times of a request, in seconds from its acceptance by the engine.

    Attributes:
        queue: Until it was taken up.
        first_token: Until the first token.
        total: Until the end.
        tokens_per_second: Rate after the first token.
    """

    queue: float | None
    first_token: float | None
    total: float
    tokens_per_second: float | None


class Choice(_Message):
    """End of one of several samples.

    Attributes:
        index: Which one.
        finish_reason: Why.
        stop_reason: The end-of-sequence id or the stop string that ended it.
        tool_calls: Its calls, whole.
        text: All of it; only where the request was aborted.
    """

    index: int
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    tool_calls: list[ToolCall] | None = None
    text: str | None = None


class Done(_Message):
    """The end of a request that was not an error; nothing about it follows.

    Attributes:
        id: The request.
        seq: One more than that of its last delta.
        finish_reason: Why it ended; of the first sample, if several.
        stop_reason: The end-of-sequence id or the stop string that ended it.
        usage: Token counts.
        timing: Times.
        tool_calls: The calls of the first sample, whole; only where there are any.
        choices: One for each sample, where there are several.
        text: All that was generated; only where it was aborted.
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
    """Something is wrong: with a request, or, without an ``id``, with a message or the connection.

    Attributes:
        id: The request.
        code: For programs.
        message: For people: the value, the limit, the remedy.
        retry_after: Seconds after which another attempt may succeed.
        param: The parameter that is to blame.
    """

    type: Literal["error"] = "error"
    id: RequestId | None = None
    code: ErrorCode
    message: str
    retry_after: float | None = None
    param: str | None = None


class Pong(_Message):
    """The answer to a ``ping``.

    Attributes:
        nonce: What the ``ping`` had.
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
"""Reads what a client sends."""

SERVER_MESSAGE: TypeAdapter[ServerMessage] = TypeAdapter(ServerMessage)
"""Reads what a server sends."""
