"""The shapes of requests: what is taken, and what is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, ValidationError

from asyncgen import STREAM_PARAMETERS
from asyncgen.generation.config.parameters import PARAMETERS
from asyncgen_apps.openai_http.bodies import checked
from asyncgen_apps.openai_http.errors import ApiError, from_validation
from asyncgen_apps.openai_http.fields import MAX_IDS, MAX_SEQUENCES, MAX_WORDS
from asyncgen_apps.openai_http.request_schema import (
    MAX_CHOICES,
    NEUTRAL,
    ChatCompletionRequest,
    CompletionRequest,
    GenerationFields,
)
from asyncgen_apps.openai_http.routes import BODY_OF
from asyncgen_apps.openai_http.schema_notes import FIRST
from asyncgen_apps.serving.template_limits import too_large
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator

CHAT: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}


def first_error(fields: dict[str, Any]) -> Any:
    with pytest.raises(ValidationError) as refused:
        ChatCompletionRequest.model_validate({**CHAT, **fields})
    return refused.value.errors()[0]


@for_each("name", NEUTRAL)
def test_a_field_of_the_api_is_refused_unless_it_asks_for_nothing(name: str) -> None:
    for value in NEUTRAL[name]:
        ChatCompletionRequest.model_validate({**CHAT, name: value})
    error = first_error({name: {"some": "thing"}})
    assert error["type"] == "extra_forbidden"
    assert error["loc"] == (name,)


def test_one_is_not_true() -> None:
    assert first_error({"best_of": True})["loc"] == ("best_of",)
    assert first_error({"store": 0})["loc"] == ("store",)


def test_extras_are_parameters_of_a_stream() -> None:
    aliases = {"min_tokens", "ignore_eos"}
    remote = {each.name for each in PARAMETERS if not (each.elsewhere or each.is_local)}
    assert set(GenerationFields.model_fields) - aliases <= remote
    alike = {"num_return_sequences", "prompt_logprobs"}  # the API has n, and echo with logprobs
    assert remote - alike <= set(ChatCompletionRequest.model_fields), "as over a WebSocket"
    dangerous = {"custom_generate", "recipe", "trust_remote_code", "assistant_model"}
    assert not dangerous & set(ChatCompletionRequest.model_fields)


@for_each("value", ["1", True, float("nan"), float("inf"), [1], {}])
def test_numbers_are_numbers(value: object) -> None:
    assert first_error({"temperature": value})["loc"][0] == "temperature"


def test_half_characters_are_refused() -> None:
    assert first_error({"stop": "a\ud800"})["loc"][0] == "stop"


def test_parts_of_a_message_are_texts() -> None:
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    error = first_error({"messages": [{"role": "user", "content": image}]})
    assert error["loc"][:3] == ("messages", 0, "content")


def test_variables_of_a_chat_template_are_few_and_short() -> None:
    good = {"enable_thinking": False, "effort": "low", "deep": {"a": [1, 2.5, None]}}
    taken: tuple[Any, ...] = (good, {}, None, {"a": "x" * 4000})
    for field in taken:
        asked = ChatCompletionRequest.model_validate({**CHAT, "chat_template_kwargs": field})
        assert asked.chat_template_kwargs == field
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    many = {str(number): 0 for number in range(33)}
    for field in ([], "a", {"a": "x" * 4096}, many, {"a": deep}, {"a": 10**5000}, {"a": "\ud800"}):
        assert first_error({"chat_template_kwargs": field})["loc"][0] == "chat_template_kwargs"


@pytest.mark.parametrize("prompt", ["a", [1, 2], ["a", "b"], [[1], [2, 3]]])
def test_forms_of_a_prompt(prompt: object) -> None:
    assert CompletionRequest.model_validate({"model": "m", "prompt": prompt}).prompt == prompt


@for_each("prompt", [None, [], [1, "a"], {}, 3])
def test_no_prompt(prompt: object) -> None:
    with pytest.raises(ValidationError):
        CompletionRequest.model_validate({"model": "m", "prompt": prompt})


def test_too_many_variables_end_the_check() -> None:
    told = too_large({"a": ["x" * 4096, object()]})  # type: ignore[list-item]
    assert told is not None and "at most 4096 characters" in told


MILLION = 1_000_000
MANY: dict[str, dict[str, Any]] = {
    "no ids": {"suppress_tokens": ["a"] * MILLION},
    "no sequences": {"bad_words_ids": [1] * MILLION},
    "no words": {"force_words_ids": [1] * MILLION},
    "no forms": {"force_words_ids": [[None] * MILLION]},
    "no biases": {"sequence_bias": [1] * MILLION},
    "no texts": {"stop": [1] * MILLION},
    "no messages": {"messages": [1] * MILLION},
    "no parts": {"messages": [{"role": "user", "content": [1] * MILLION}]},
    "no numbers": {"logit_bias": {str(number): "x" for number in range(MILLION // 10)}},
    "no settings": {
        "watermarking_config": {str(number): [None] for number in range(MILLION // 10)}
    },
    "no fields": {f"x{number}": 1 for number in range(MILLION // 10)},
    "no fields of a message": {
        "messages": [
            {"role": "user", "content": "a", **{str(one): 1 for one in range(MILLION // 10)}}
        ]
    },
}


@for_each("fields", MANY.values())
def test_a_million_mistakes_are_reported_as_few_errors(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        ChatCompletionRequest.model_validate({**CHAT, **fields})
    assert refused.value.error_count() < 10
    assert refused.value.errors()[0]["loc"][0] == next(iter(fields))


@for_each(
    ("name", "value"),
    [
        ("suppress_tokens", [1] * (MAX_IDS + 1)),
        ("eos_token_id", [1] * (MAX_IDS + 1)),
        ("bad_words_ids", [[1]] * (MAX_SEQUENCES + 1)),
        ("sequence_bias", [[[1], 1.0]] * (MAX_SEQUENCES + 1)),
        ("force_words_ids", [[1]] * (MAX_WORDS + 1)),
        ("force_words_ids", [[[1]] * (MAX_WORDS + 1)]),
        ("num_beams", MAX_CHOICES + 1),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_lists_that_hold_everybody_up_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        ChatCompletionRequest.model_validate({**CHAT, name: value})
    told = from_validation(refused.value.errors())
    assert (told.param or "").startswith(name)
    assert "at most" in told.message or "less than or equal" in told.message
    less = value - 1 if isinstance(value, int) else value[:-1] or [value[0][:-1]]
    ChatCompletionRequest.model_validate({**CHAT, name: less})


BODY_MODELS = [*dict.fromkeys(BODY_OF.values())]


def schemas(model: type[BaseModel]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object in the schema of a body, by the name of its class."""
    schema = model.model_json_schema()
    yield model.__name__, schema
    yield from schema.get("$defs", {}).items()


@for_each("model", BODY_MODELS)
def test_every_field_has_a_description_and_an_example(model: type[BaseModel]) -> None:
    for owner, schema in schemas(model):
        for name, field in schema.get("properties", {}).items():
            assert field.get("description", "").endswith((".", "`")), (owner, name)
            assert len(field.get("examples", ())) == 1, (owner, name)


@for_each("model", [ChatCompletionRequest, CompletionRequest])
def test_examples_fit_and_common_fields_come_first(model: type[BaseModel]) -> None:
    fields = model.model_json_schema()["properties"]
    first = [name for name in FIRST if name in fields]
    assert list(fields)[: len(first)] == first and first[0] == "model"
    needed = {name: fields[name]["examples"][0] for name in model.model_json_schema()["required"]}
    for name, field in fields.items():
        model.model_validate({**needed, name: field["examples"][0]})


@for_each("model", [ChatCompletionRequest, CompletionRequest])
def test_ranges_are_those_of_the_library(model: type[BaseModel]) -> None:
    words = {"minimum": "low", "exclusiveMinimum": "low", "maximum": "high"}
    words["exclusiveMaximum"] = "high"
    told = 0
    for name, field in model.model_json_schema()["properties"].items():
        kinds = field.get("anyOf", [field])
        found = {key: one[key] for one in kinds for key in words if key in one}
        row = STREAM_PARAMETERS.get(name)
        if row is not None and row.range is not None and name not in ("n", "num_beams"):
            if name not in ("logprobs", "top_logprobs"):
                limits = {value for value in (row.range.low, row.range.high) if value is not None}
                assert set(found.values()) == limits, name
                assert ("exclusiveMinimum" in found) == (row.range.above and bool(limits)), name
        told += bool(found)
    assert told > 30


def refusal(fields: dict[str, Any], kind: type[BaseModel] = ChatCompletionRequest) -> ApiError:
    with pytest.raises(ApiError) as refused:
        checked(kind, {**CHAT, **fields} if kind is ChatCompletionRequest else fields)
    return refused.value


@for_each(
    ("fields", "said"),
    [
        ({"top_p": "x"}, '`top_p` is "x": must be a number from 0 to 1'),
        ({"top_k": 1.5}, "`top_k` is 1.5: must be a whole number of at least 0; 0 is off"),
        ({"n": 0}, "`n` is 0: must be a whole number from 1 to 128"),
        ({"n": 129}, "`n` is 129: must be a whole number from 1 to 128"),
        ({"max_tokens": [1]}, "`max_tokens`: must be a whole number of at least 1"),
        ({"min_p": float("nan")}, "`min_p` is NaN: must be a number from 0 to 1"),
        ({"temperature": True}, "`temperature` is true: must be a number of at least 0"),
        ({"num_beams": 129}, "`num_beams` is 129: must be a whole number from 1 to 128"),
    ],
)
def test_a_number_is_refused_in_the_words_of_the_library(fields: Any, said: str) -> None:
    assert refusal(fields).message.startswith(said)
    assert refusal(fields).param in fields


@for_each(
    ("fields", "param", "meant"),
    [
        ({"temprature": 1}, "temprature", "temperature"),
        ({"max_token": 1}, "max_token", "max_tokens"),
        ({"messages": [{"role": "user", "contents": "a"}]}, "messages[0].contents", "content"),
        (
            {"stream_options": {"include_usag": True}},
            "stream_options.include_usag",
            "include_usage",
        ),
        ({"qqqqqq": "a"}, "qqqqqq", ""),
        ({"prediction": {"type": "content"}}, "prediction", ""),
        ({"zzz" * 10_000: 1}, "zzz", ""),
    ],
)
def test_an_unknown_field_gets_the_name_that_was_meant(fields: Any, param: str, meant: str) -> None:
    error = refusal(fields)
    assert (error.param or "").startswith(param) and error.code == "unsupported_parameter"
    end = f"; did you mean `{meant}`?" if meant else "is not supported by this server"
    assert error.message.endswith(end) and len(error.message) < 300


def test_a_name_is_suggested_from_its_own_body_alone() -> None:
    found = refusal({"promt": "a"}, CompletionRequest)
    assert found.message.endswith("did you mean `prompt`?")


def test_no_field_is_dropped_beside_one_with_an_alias() -> None:
    named = {"schema": {}, "name": "a", "other": 1}
    shape = {"type": "json_schema", "json_schema": named}
    assert (refusal({"response_format": shape}).param or "").endswith("json_schema.other")


def test_a_whole_number_stays_whole() -> None:
    """An error that names it tells what was sent."""
    for value in (7, 7.5):
        body = ChatCompletionRequest.model_validate({**CHAT, "typical_p": value})
        assert repr(body.typical_p) == repr(value)
