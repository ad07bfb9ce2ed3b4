"""Define the exceptions of the client, and translate errors of the server and the connection.

    AsyncgenError
    ├── ConnectionLostError (also ConnectionError)    the server cannot be reached
    │   └── UnauthorizedError                         the server refuses the token or the origin
    └── RemoteError                                   the server failed, with its code

All other errors of a server become the exceptions that ``AsyncLLM`` raises for them.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from websockets.exceptions import ConnectionClosed, InvalidStatus

from asyncgen import (
    AsyncgenError,
    ContextLengthError,
    EngineClosedError,
    EngineDiedError,
    InvalidRequestError,
    OverloadedError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ConnectionLostError",
    "Failure",
    "RemoteError",
    "UnauthorizedError",
    "error_from_server",
    "failure_from",
]

RETRY_SECONDS = 1.0
"""Value of ``retry_after`` if a server is full and gives no time."""

_COMPOSED = re.compile(r"`(?P<name>[^`]+)` is (?P<value>.*?): (?P<allowed>.*)", re.DOTALL)


class ConnectionLostError(AsyncgenError, ConnectionError):
    """The server cannot be reached, or was lost and did not come back in time.

    A stream that raises it has given all the received text, and repeated none.
    """


class UnauthorizedError(ConnectionLostError):
    """The server refuses the connection for good: the token or the origin is not accepted."""


class RemoteError(AsyncgenError):
    """The server failed to serve a request.

    Attributes:
        code: The protocol's name of the error, such as ``"internal"``.
    """

    def __init__(self, code: str, message: str) -> None:
        """Build the error.

        Args:
            code: The protocol's name of the error.
            message: Text from the server.
        """
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Failure:
    """Reason for the end of a connection, or for a failed attempt.

    Attributes:
        error: Exception for the streams if reconnecting fails.
        fatal: True if a new attempt would fail in the same way.
        retry_after: Seconds to wait before the next attempt, from the server.
    """

    error: AsyncgenError
    fatal: bool = False
    retry_after: float = 0.0


def error_from_server(
    code: str,
    message: str,
    *,
    retry_after: float | None = None,
    parameter: str | None = None,
    sent: Mapping[str, object] | None = None,
) -> AsyncgenError:
    """Return the exception for an ``error`` message of the protocol.

    Args:
        code: The error code.
        message: Text of the error, also that of the exception.
        retry_after: Seconds to wait, if the server gives them.
        parameter: Parameter that caused it, if the server names one.
        sent: Parameters of the request, to show the refused value.

    Returns:
        The exception that ``AsyncLLM`` raises for it, or a `RemoteError`.
    """
    match code:
        case "invalid_request":
            return _invalid(InvalidRequestError, message, parameter, sent or {})
        case "context_length":
            return _invalid(ContextLengthError, message, parameter, sent or {})
        case "overloaded" | "too_many_requests":
            return OverloadedError(message, RETRY_SECONDS if retry_after is None else retry_after)
        case "engine_dead":
            return EngineDiedError(message)
        case "draining":
            return EngineClosedError(message)
        case "resume_unknown" | "resume_gone" | "resume_ahead" | "resume_attached" | "resume_moved":
            return ConnectionLostError(
                f"the connection was lost, and with it the answer: {message}"
            )
        case "unauthorized" | "not_authenticated" | "bad_origin":
            return UnauthorizedError(message)
    return RemoteError(code, message)


def _invalid(
    kind: type[InvalidRequestError],
    message: str,
    parameter: str | None,
    sent: Mapping[str, object],
) -> InvalidRequestError:
    """Rebuild an :class:`InvalidRequestError` from its message."""
    composed = _COMPOSED.fullmatch(message)
    name = parameter or (composed["name"] if composed else "prompt")
    shown = composed["value"] if composed else None
    error = kind(name, sent.get(name, shown), composed["allowed"] if composed else message)
    error.args = (message,)  # the text of the server, unchanged
    return error


def failure_from(cause: BaseException, reported: AsyncgenError | None = None) -> Failure:
    """Translate the exception of a broken or refused connection.

    Args:
        cause: Exception of the network or the WebSocket library.
        reported: Last ``error`` of the server that belonged to no request.

    Returns:
        The failure, with ``cause`` chained to its error.
    """
    failure = _failure(cause, reported)
    if failure.error is not reported:
        failure.error.__cause__ = cause
    return failure


def _failure(cause: BaseException, reported: AsyncgenError | None) -> Failure:
    if isinstance(cause, InvalidStatus):
        return _refused(cause)
    code = cause.rcvd.code if isinstance(cause, ConnectionClosed) and cause.rcvd else None
    if isinstance(reported, UnauthorizedError):
        return Failure(reported, fatal=True)
    if code == 1008:
        why = cause.rcvd.reason if isinstance(cause, ConnectionClosed) and cause.rcvd else ""
        return Failure(UnauthorizedError(f"the server refuses this client: {why or code}"), True)
    if isinstance(reported, OverloadedError):
        return Failure(reported, retry_after=reported.retry_after)
    if code == 1013:
        full = OverloadedError("the server takes no more connections", RETRY_SECONDS)
        return Failure(full, retry_after=RETRY_SECONDS)
    if reported is not None:
        return Failure(reported)
    if any(isinstance(link, ssl.SSLCertVerificationError) for link in _chain(cause)):
        return Failure(
            ConnectionLostError(f"the server's certificate is not trusted: {cause}"), True
        )
    text = str(cause) or type(cause).__name__
    return Failure(ConnectionLostError(f"no connection to the server: {text}"))


def _refused(cause: InvalidStatus) -> Failure:
    """Translate an HTTP response in place of a WebSocket."""
    status = cause.response.status_code
    if status in (401, 403):
        return Failure(UnauthorizedError(f"the server refuses this client: HTTP {status}"), True)
    if status in (429, 503):
        text = cause.response.headers.get("Retry-After", "")
        seconds = float(text) if text.isascii() and text.isdecimal() else RETRY_SECONDS
        error = OverloadedError(f"the server takes no more connections: HTTP {status}", seconds)
        return Failure(error, retry_after=seconds)
    text = f"the server answers HTTP {status} where a WebSocket was asked for"
    return Failure(ConnectionLostError(text), fatal=400 <= status < 500 and status != 408)


def _chain(error: BaseException | None) -> list[BaseException]:
    """Return an exception and those that caused it."""
    links: list[BaseException] = []
    while error is not None and error not in links:
        links.append(error)
        error = error.__cause__ or error.__context__
    return links
