"""Exceptions in the protocol's words."""

from __future__ import annotations

import logging

import pytest

import asyncgen
from asyncgen import (
    ChatTemplateError,
    ContextLengthError,
    EngineClosedError,
    EngineDiedError,
    InvalidRequestError,
    InvalidScoresError,
    OverloadedError,
    StreamParams,
)
from asyncgen_apps.websocket.errors import PARAMETERS, Fault, from_exception, parameter_of
from asyncgen_apps.websocket.frames import encode
from asyncgen_apps.websocket.messages import SERVER_MESSAGE
from tests.cases import for_each


@for_each(
    ("error", "code", "param"),
    [
        (InvalidRequestError("top_k", -1, "from 0"), "invalid_request", "top_k"),
        (ContextLengthError("prompt", 9, "up to 8"), "context_length", "prompt"),
        (ChatTemplateError("no roles"), "invalid_request", "messages"),
        (InvalidScoresError("TopK", "nothing is left"), "invalid_request", None),
        (InvalidScoresError("TemperatureLogitsWarper", "NaN"), "invalid_request", "temperature"),
        (InvalidScoresError(None, "NaN"), "internal", None),
        (OverloadedError("full", 2.5), "overloaded", None),
        (EngineDiedError("dead"), "engine_dead", None),
        (EngineClosedError("closed"), "engine_dead", None),
        (KeyError("secret prompt"), "internal", None),
    ],
)
def test_each_error(error: Exception, code: str, param: str | None) -> None:
    fault = from_exception(error)
    assert (fault.code, fault.param) == (code, param)
    assert (fault.retry_after is not None) == (code in ("overloaded", "engine_dead"))
    assert "secret" not in fault.message
    SERVER_MESSAGE.validate_json(encode(fault.message_for("a")))


def test_names_are_those_of_the_client() -> None:
    error = InvalidRequestError("num_return_sequences", 0, "at least 1")
    assert from_exception(error, frozenset({"n"})) == Fault(
        "invalid_request", "`n` is 0: at least 1", param="n"
    )
    assert from_exception(error, frozenset({"num_return_sequences"})).param != "n"


def test_unexpected_errors_are_logged_with_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "asyncgen.websocket"):
        from_exception(ZeroDivisionError("oh"))
    assert caplog.records[0].exc_info is not None


@for_each("name", PARAMETERS)
def test_a_processor_has_a_parameter(name: str) -> None:
    assert getattr(asyncgen, name).__name__ == name
    assert PARAMETERS[name] in StreamParams.__annotations__
    assert parameter_of(InvalidScoresError(name, "no token is left")) == PARAMETERS[name]


@pytest.mark.parametrize("name", [None, "Mine"])
def test_invalid_scores_error_names_no_parameter(name: str | None) -> None:
    assert parameter_of(InvalidScoresError(name, "no token is left")) is None
