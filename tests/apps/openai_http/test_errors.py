"""Every exception has its status, its shape, and the client's name of the field."""

from __future__ import annotations

from asyncgen import (
    ChatTemplateError,
    ContextLengthError,
    EngineClosedError,
    EngineDiedError,
    InvalidRequestError,
    InvalidScoresError,
    OverloadedError,
)
from asyncgen_apps.openai_http.errors import ApiError, from_exception, from_validation
from tests.cases import for_each


@for_each(
    ("error", "status", "param"),
    [
        (ApiError(418, "x"), 418, None),
        (InvalidRequestError("top_p", 2, "at most 1"), 400, "top_p"),
        (InvalidRequestError("num_return_sequences", 2, "1"), 400, "n"),
        (ContextLengthError("max_new_tokens", 9, "less"), 400, "max_tokens"),
        (ChatTemplateError("no"), 422, "messages"),
        (OverloadedError("full", 2.5), 429, None),
        (EngineDiedError("dead"), 503, None),
        (EngineClosedError("closed"), 503, None),
        (InvalidScoresError("Bans", "nothing left"), 400, None),
        (InvalidScoresError("TemperatureLogitsWarper", "NaN"), 400, "temperature"),
        (InvalidScoresError(None, "NaN"), 500, None),
        (RuntimeError("secret"), 500, None),
    ],
)
def test_status_and_field(error: Exception, status: int, param: str | None) -> None:
    found = from_exception(error, {"max_new_tokens": "max_tokens"})
    assert (found.status, found.param) == (status, param)
    assert set(found.body()["error"]) == {"message", "type", "param", "code"}  # type: ignore[call-overload]


def test_the_message_has_the_name_that_the_client_used() -> None:
    found = from_exception(InvalidRequestError("sequence_bias", 1, "x"), {"sequence_bias": "bias"})
    assert found.message.startswith("`bias` is 1")


def test_text_of_internal_errors_is_not_revealed() -> None:
    assert "secret" not in from_exception(RuntimeError("secret")).message


def test_headers() -> None:
    assert from_exception(OverloadedError("full", 2.5)).headers() == {"retry-after": "3"}
    assert from_exception(OverloadedError("full", 0.0)).headers() == {"retry-after": "1"}
    assert ApiError(401, "x").headers() == {"www-authenticate": "Bearer"}
    assert ApiError(400, "x").headers() == {}


def test_an_unknown_field_goes_first() -> None:
    errors = [
        {"type": "missing", "loc": ("body", "model"), "msg": "Field required"},
        {"type": "extra_forbidden", "loc": ("body", "tools"), "msg": "no"},
    ]
    assert from_validation(errors).param == "tools"
    missing = from_validation(errors[:1])
    assert (missing.param, missing.code) == ("model", "missing_required_parameter")


def test_a_field_is_spelled_as_in_the_body() -> None:
    location = ("body", "messages", 2, "content", "str")
    found = from_validation([{"type": "x", "loc": location, "msg": "Input is wrong"}])
    assert found.message == "`messages[2].content.str`: input is wrong"
    typed = ("body", "stop", "list[str]", 0)
    assert from_validation([{"type": "x", "loc": typed, "msg": "m"}]).param == "stop"
    assert from_validation([{"type": "json_invalid", "loc": ("body", 3)}]).code == "invalid_json"


@for_each("key", ["max-tokens", "max tokens", "2", "list[str]", "\u0301"])
def test_an_unknown_field_is_named_however_it_is_spelled(key: str) -> None:
    for parents, named in (((), key), (("messages", 2), f"messages[2].{key}")):
        location = ("body", *parents, key)
        found = from_validation([{"type": "extra_forbidden", "loc": location, "msg": "no"}])
        assert found.param == named
        assert f"`{named}`" in found.message


def test_non_object_body_error_names_the_content_type() -> None:
    errors = [{"type": "model_attributes_type", "loc": ("body",), "msg": "Input should be x"}]
    assert "application/json" in from_validation(errors).message
    assert from_validation(errors).param is None
