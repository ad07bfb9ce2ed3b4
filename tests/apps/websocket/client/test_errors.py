from __future__ import annotations

import ssl

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.frames import Close
from websockets.http11 import Response

from asyncgen import (
    AsyncgenError,
    ContextLengthError,
    EngineClosedError,
    EngineDiedError,
    InvalidRequestError,
    OverloadedError,
)
from asyncgen_apps.websocket.client.errors import (
    ConnectionLostError,
    RemoteError,
    UnauthorizedError,
    error_from_server,
    failure_from,
)
from tests.cases import for_each


@for_each(
    ("code", "kind"),
    [
        ("invalid_request", InvalidRequestError),
        ("context_length", ContextLengthError),
        ("overloaded", OverloadedError),
        ("too_many_requests", OverloadedError),
        ("engine_dead", EngineDiedError),
        ("draining", EngineClosedError),
        ("resume_unknown", ConnectionLostError),
        ("resume_gone", ConnectionLostError),
        ("resume_moved", ConnectionLostError),
        ("unauthorized", UnauthorizedError),
        ("bad_origin", UnauthorizedError),
        ("internal", RemoteError),
    ],
)
def test_every_code_is_an_exception(code: str, kind: type[AsyncgenError]) -> None:
    error = error_from_server(code, "what the server said")
    assert type(error) is kind
    assert "what the server said" in str(error)


def test_a_refused_parameter_is_the_error_that_it_was() -> None:
    was = InvalidRequestError("top_p", 7.5, "a number above 0, up to 1")
    error = error_from_server(
        "invalid_request", str(was), parameter="top_p", sent={"top_p": 7.5, "seed": 1}
    )
    assert isinstance(error, InvalidRequestError)
    assert str(error) == str(was)
    assert (error.parameter, error.value, error.allowed) == ("top_p", 7.5, was.allowed)


def test_a_refusal_in_other_words_is_kept_word_for_word() -> None:
    error = error_from_server("context_length", "the prompt is too long")
    assert isinstance(error, ContextLengthError)
    assert str(error) == "the prompt is too long"
    assert error.parameter == "prompt"


def test_retry_after_comes_along() -> None:
    told = error_from_server("overloaded", "full", retry_after=2.5)
    silent = error_from_server("overloaded", "full")
    assert isinstance(told, OverloadedError) and told.retry_after == 2.5
    assert isinstance(silent, OverloadedError) and silent.retry_after > 0


@for_each(
    ("status", "kind", "fatal"),
    [
        (401, UnauthorizedError, True),
        (403, UnauthorizedError, True),
        (404, ConnectionLostError, True),
        (429, OverloadedError, False),
        (500, ConnectionLostError, False),
        (503, OverloadedError, False),
    ],
)
def test_a_refusal_in_http(status: int, kind: type[AsyncgenError], fatal: bool) -> None:
    response = Response(status, "No", Headers({"Retry-After": "7"}), b"")
    failure = failure_from(InvalidStatus(response))
    assert type(failure.error) is kind
    assert failure.fatal is fatal
    assert failure.retry_after == (7.0 if kind is OverloadedError else 0.0)


def test_a_refusal_by_close_code() -> None:
    refused = failure_from(ConnectionClosedError(Close(1008, "bad token"), None))
    assert isinstance(refused.error, UnauthorizedError) and refused.fatal
    assert "bad token" in str(refused.error)
    full = failure_from(ConnectionClosedError(Close(1013, ""), None))
    assert isinstance(full.error, OverloadedError) and full.retry_after > 0
    leaving = failure_from(ConnectionClosedError(Close(1001, ""), None))
    assert isinstance(leaving.error, ConnectionLostError) and not leaving.fatal


def test_error_reported_before_close_is_the_failure() -> None:
    reported = OverloadedError("63 connections", 4.0)
    failure = failure_from(ConnectionClosedError(Close(1013, ""), None), reported)
    assert failure.error is reported
    assert failure.retry_after == 4.0


def test_an_untrusted_certificate_is_not_tried_again() -> None:
    broken = RuntimeError("broken")
    broken.__cause__ = ssl.SSLCertVerificationError("self-signed")
    assert failure_from(broken).fatal
    assert not failure_from(ConnectionRefusedError("nobody there")).fatal
