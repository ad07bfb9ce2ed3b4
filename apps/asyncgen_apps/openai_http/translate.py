"""Turns the body of a request into prompts and parameters of the library.

Nothing is dropped on the way: a field is either handed on, or has been refused before.
Knows the two APIs; not HTTP, not the engine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

from asyncgen_apps.openai_http.echo import Echo
from asyncgen_apps.openai_http.errors import ApiError, clipped
from asyncgen_apps.openai_http.ranges import RANGES
from asyncgen_apps.openai_http.request_schema import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationFields,
    ObjectFormat,
    SchemaFormat,
)
from asyncgen_apps.serving.time_slices import give_way

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen import Prompt, StreamParams
    from asyncgen_apps.openai_http.conversation_schema import ChatMessage


COMPLETION_TOKENS = 16
"""What the API gives ``/v1/completions`` where no length is asked for."""
MAX_STREAMS = 1024
EXTRAS = tuple(GenerationFields.model_fields)
SAME = ("seed", "stop", "temperature", "top_p", "presence_penalty", "frequency_penalty")
OTHER_NAMES = {"min_tokens": "min_new_tokens"}
_REASONING = {"reasoning_content", "reasoning", "thinking"}
_TOLD = {"content", "name", "tool_calls", "tool_call_id"} | _REASONING
"""Fields of a message that chat templates read, beside its role."""
_TOKEN_ID = re.compile("0|[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True)
class PlannedStream:
    """One stream of the engine.

    Attributes:
        prompt: Prompt to answer.
        params: How.
        first: Index of the first choice that it gives.
        samples: Number of choices.
        counts_prompt: True counts its prompt tokens; copies of a prompt count once.
    """

    prompt: Prompt
    params: StreamParams
    first: int
    samples: int
    counts_prompt: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """Streams that answer one request, and the fields that its reply needs.

    Attributes:
        parts: The streams to run side by side.
        names: Client's names of parameters that the engine names otherwise.
        logprobs: True if the reply has log-probabilities.
        top_logprobs: Number of alternatives of each token.
        token_ids: True if the reply has token ids.
        echo: Prompts to repeat before their continuations; ``None`` repeats none.
    """

    parts: tuple[PlannedStream, ...]
    names: dict[str, str]
    logprobs: bool
    top_logprobs: int
    token_ids: bool = False
    echo: Echo | None = None

    @property
    def choices(self) -> int:
        """Number of choices in the reply."""
        return sum(part.samples for part in self.parts)

    @property
    def num_given(self) -> int:
        """Completion tokens that the client has already."""
        lists: Any = (part.params.get("generated_ids") or () for part in self.parts)
        return sum(len(ids) for each in lists for ids in each)


def plan(
    request: ChatCompletionRequest | CompletionRequest,
    *,
    text_tokens: int | None = COMPLETION_TOKENS,
) -> Plan:
    """Work out what to run.

    Args:
        request: Checked body; the engine may still refuse its values.
        text_tokens: Tokens that continue a text where no length is asked for; ``None`` leaves that
            to the model.

    Returns:
        The plan.

    Raises:
        ApiError: Two fields contradict each other, or a value is out of the API's range.
    """
    params, names = _shared(request, text_tokens)
    if isinstance(request, ChatCompletionRequest):
        prompts: list[Prompt] = [conversation(request.messages)]
        names["prompt"] = "messages"
        logprobs, top = _chat_logprobs(request)
        _format(request, params, names)
    else:
        prompts = _prompts(request)
        names["prompt"] = "prompt"
        logprobs, top = _text_logprobs(request)
    if logprobs:
        params["logprobs"], params["top_logprobs"] = True, top
    echo = None
    if isinstance(request, CompletionRequest) and request.echo:
        echo = _echo(request, prompts, params, names)
    given = params.pop("generated_ids", None)
    parts = _parts(prompts, params, request.n or 1)
    if given:
        parts = _going_on(parts, given, len(prompts), request.n or 1)
    return Plan(tuple(parts), names, logprobs, top, bool(request.return_token_ids), echo)


def _echo(
    request: CompletionRequest, prompts: list[Prompt], params: dict[str, Any], names: dict[str, str]
) -> Echo:
    """Return the echo of the prompts, and ask the engine for their log-probabilities."""
    if params.get("generated_ids"):
        message = "`echo` tells the prompt, which `generated_ids` are behind already: leave one out"
        raise ApiError(400, message, param="echo")
    goes_on = params.get("max_new_tokens") != 0
    if request.logprobs is not None or not goes_on:
        params["prompt_logprobs"] = request.logprobs or 0
        names["prompt_logprobs"] = "echo"
    skips = request.skip_special_tokens is not False
    return Echo(prompts, request.n or 1, skips_special=skips, goes_on=goes_on)


def _parts(prompts: list[Prompt], params: dict[str, Any], n: int) -> list[PlannedStream]:
    """Plan one stream a prompt; without sampling one a choice, all alike."""
    if len(prompts) * n > MAX_STREAMS:
        message = f"`n` is {n}: {len(prompts)} prompts give more than {MAX_STREAMS} choices"
        raise ApiError(400, message, param="n")
    drawn = params.get("do_sample") is not False and params.get("temperature") != 0
    greedy = not drawn and (params.get("num_beams") or 1) == 1
    copies, samples = (n, 1) if greedy else (1, n)
    own = {**params, "n": samples} if samples > 1 else params
    return [
        PlannedStream(prompt, cast("StreamParams", own), n * number + copy, samples, copy == 0)
        for number, prompt in enumerate(prompts)
        for copy in range(copies)
    ]


def _going_on(
    parts: list[PlannedStream], given: list[Any], prompts: int, choices: int
) -> list[PlannedStream]:
    """Give each stream the tokens of its choices."""
    lists = given if isinstance(given[0], list) else [given]
    if prompts > 1:
        message = f"`generated_ids` are those of one prompt, and there are {prompts}"
        raise ApiError(400, message, param="generated_ids")
    if len(lists) != choices:
        message = f"`generated_ids` has {len(lists)} lists: one for each choice, {choices}"
        raise ApiError(400, message, param="generated_ids")
    return [
        replace(
            part,
            params=cast(
                "StreamParams",
                {**part.params, "generated_ids": lists[part.first : part.first + part.samples]},
            ),
        )
        for part in parts
    ]


def _shared(
    request: ChatCompletionRequest | CompletionRequest, text_tokens: int | None
) -> tuple[dict[str, Any], dict]:
    """Parameters that both routes have, and what the client called them."""
    given = request.model_fields_set
    extras = {name: getattr(request, name) for name in EXTRAS if name in given}
    extras = {name: plain_field(value) for name, value in extras.items() if value is not None}
    params = {name: value for name, value in extras.items() if name not in OTHER_NAMES}
    names: dict[str, str] = {}
    for name, ours in OTHER_NAMES.items():
        if name in extras:
            _join(params, names, ours, name, extras[name])
    for name in SAME:
        value = getattr(request, name)
        if value is not None:
            params[name] = value
    if "stop_strings" in params and request.stop is None:
        names["stop_strings"] = "stop_strings"  # as this client has called it
    if params.pop("ignore_eos", False):
        _join(params, names, "eos_token_id", "ignore_eos", [])
    if "sequence_bias" in params:
        params["sequence_bias"] = [[list(ids), bias] for ids, bias in params["sequence_bias"]]
    if request.logit_bias:
        _join(params, names, "sequence_bias", "logit_bias", _bias(request.logit_bias))
    _length(request, params, names, text_tokens)
    return params, names


def plain_field(value: Any) -> Any:
    """Return the value of a field without classes of the schema, as the library takes it."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_none=True)
    if isinstance(value, list) and value and isinstance(value[0], BaseModel):
        return [each.model_dump(exclude_none=True) for each in value]
    return value


def _join(
    params: dict[str, Any], names: dict[str, str], ours: str, theirs: str, value: object
) -> None:
    """Set a parameter that has two names, unless it was given under both."""
    if ours in params and params[ours] != value:
        raise ApiError(400, f"`{theirs}` and `{names.get(ours, ours)}`: give one", param=theirs)
    params[ours] = value
    names[ours] = theirs


def _length(
    request: ChatCompletionRequest | CompletionRequest,
    params: dict[str, Any],
    names: dict[str, str],
    text_tokens: int | None,
) -> None:
    """Return the API's names of ``max_new_tokens``."""
    for name in ("max_tokens", "max_completion_tokens"):
        value = getattr(request, name, None)
        if value is not None:
            _join(params, names, "max_new_tokens", name, value)
    is_text = isinstance(request, CompletionRequest)
    if is_text and "max_new_tokens" not in params and "max_length" not in params:
        if text_tokens is not None:
            params["max_new_tokens"] = text_tokens
        names["max_new_tokens"] = "max_tokens"


def _bias(given: dict[str, float]) -> dict[tuple[int], float]:
    """``{"42": -100}`` as the table that the library takes.

    As many lists would be looked through for garbage again and again, with every stream waiting.
    """
    found: dict[tuple[int], float] = {}
    for token, bias in given.items():
        give_way()
        if not _TOKEN_ID.fullmatch(token):
            message = f"`logit_bias` has {clipped(token)!r}: not a token id"
            raise ApiError(400, message, param="logit_bias")
        if allowed := RANGES["logit_bias"](bias):
            message = f"`logit_bias` is {bias} for token {token}: {allowed}"
            raise ApiError(400, message, param="logit_bias")
        found[(int(token),)] = float(bias)
    return found


def conversation(given: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as chat templates know them; the API's developer speaks for the system."""
    messages = []
    for message in given:
        give_way()
        role = "system" if message.role == "developer" else message.role
        turn = message.model_dump(include=_TOLD, exclude_none=True)
        for call in turn.get("tool_calls", ()):
            call.pop("index", None)
        messages.append({**turn, "role": role, "content": turn.get("content")})
    return messages


def _format(request: ChatCompletionRequest, params: dict[str, Any], names: dict[str, str]) -> None:
    """Return the API's name of ``json_object`` and ``json_schema``."""
    asked = request.response_format
    if isinstance(asked, ObjectFormat):
        _join(params, names, "json_object", "response_format", True)
    elif isinstance(asked, SchemaFormat):
        _join(params, names, "json_schema", "response_format", asked.json_schema.schema_)


def _prompts(request: CompletionRequest) -> list[Prompt]:
    """Return the prompts one by one, none of them empty."""
    return one_by_one("prompt", request.prompt)


def one_by_one(field: str, given: Any) -> list[Prompt]:
    """Return the prompts of a field that takes one or several; none is empty.

    Args:
        field: Its name.
        given: A text, token ids, or a list of either.

    Raises:
        ApiError: Names the one that is empty.
    """
    several = isinstance(given, list) and not isinstance(given[0], int)
    prompts = cast("list[Prompt]", given if several else [given])
    for number, prompt in enumerate(prompts):
        if not prompt:
            name = f"{field}[{number}]" if several else field
            raise ApiError(400, f"`{name}` is empty: give at least one token", param=name)
    return prompts


def _chat_logprobs(request: ChatCompletionRequest) -> tuple[bool, int]:
    top = request.top_logprobs
    if top is not None and not request.logprobs:
        raise ApiError(400, "`top_logprobs` needs `logprobs: true`", param="top_logprobs")
    return bool(request.logprobs), _in_range("top_logprobs", top or 0)


def _text_logprobs(request: CompletionRequest) -> tuple[bool, int]:
    if request.logprobs is None:
        return False, 0
    return True, _in_range("logprobs", request.logprobs)


def _in_range(name: str, value: int) -> int:
    if allowed := RANGES[name](value):
        raise ApiError(400, f"`{name}` is {value}: {allowed}", param=name)
    return value
