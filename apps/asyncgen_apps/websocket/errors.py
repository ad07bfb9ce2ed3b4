"""Translate exceptions into the error messages of the protocol.

Knows exceptions and messages; not how they are sent.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asyncgen import (
    ChatTemplateError,
    ContextLengthError,
    EngineClosedError,
    EngineDiedError,
    InvalidRequestError,
    InvalidScoresError,
    OverloadedError,
)

if TYPE_CHECKING:
    from asyncgen_apps.websocket.messages import ErrorCode


PARAMETERS = {
    "EncoderNoRepeatNGramLogitsProcessor": "encoder_no_repeat_ngram_size",
    "EncoderRepetitionPenaltyLogitsProcessor": "encoder_repetition_penalty",
    "ExponentialDecayLengthPenalty": "exponential_decay_length_penalty",
    "HammingDiversityLogitsProcessor": "diversity_penalty",
    "NoBadWordsLogitsProcessor": "bad_words_ids",
    "NoRepeatNGramLogitsProcessor": "no_repeat_ngram_size",
    "RepetitionPenaltyLogitsProcessor": "repetition_penalty",
    "SequenceBiasLogitsProcessor": "sequence_bias",
    "SuppressTokensAtBeginLogitsProcessor": "begin_suppress_tokens",
    "SuppressTokensLogitsProcessor": "suppress_tokens",
    "TemperatureLogitsWarper": "temperature",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "guidance_scale",
}
"""Parameter that creates each logits processor."""

_log = logging.getLogger("asyncgen.websocket")

RESTART_SECONDS = 5.0
"""Time after which a client should retry if the engine died or the server shuts down."""

RENAMED = {"num_return_sequences": "n", "stop_strings": "stop"}
"""Parameters that the engine reports by another name than the client used."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An error of a request or of the connection, before it becomes a message.

    Attributes:
        code: Error code, for programs.
        message: Text, for people.
        retry_after: Seconds after which another attempt may succeed.
        param: Parameter that caused it.
        id: Request id in the message that was refused, if it has one.
    """

    code: ErrorCode
    message: str
    retry_after: float | None = None
    param: str | None = None
    id: str | None = None

    def message_for(self, request_id: str | None = None) -> dict[str, Any]:
        """Return the ``error`` message for a request; without an id, for the connection."""
        error: dict[str, Any] = {"type": "error", "code": self.code, "message": self.message}
        if request_id is not None:
            error["id"] = request_id
        if self.retry_after is not None:
            error["retry_after"] = self.retry_after
        if self.param is not None:
            error["param"] = self.param
        return error


BAD_TOKEN = Fault("unauthorized", "this token is not valid")
DUPLICATE = Fault("duplicate_id", "a request of this id has not ended")
DRAINING = Fault(
    "draining", "the server is about to leave; try another, or later", retry_after=RESTART_SECONDS
)


def from_exception(error: Exception, given: frozenset[str] = frozenset()) -> Fault:
    """Translate an exception of the engine; an unexpected one is ``internal`` and logged.

    Args:
        error: Exception that a request raised.
        given: Names of the parameters that the client sent.
    """
    match error:
        case InvalidRequestError():
            name = error.parameter
            if name not in given and RENAMED.get(name) in given:
                name = RENAMED[name]
            message = str(error).replace(f"`{error.parameter}`", f"`{name}`")
            long = isinstance(error, ContextLengthError)
            return Fault("context_length" if long else "invalid_request", message, param=name)
        case ChatTemplateError():
            return Fault("invalid_request", str(error), param="messages")
        case InvalidScoresError() if error.processor is not None:
            return Fault("invalid_request", str(error), param=parameter_of(error))
        case OverloadedError():
            return Fault("overloaded", str(error), retry_after=error.retry_after)
        case EngineDiedError() | EngineClosedError():
            return Fault("engine_dead", str(error), retry_after=RESTART_SECONDS)
    _log.error("a request failed", exc_info=error)
    return Fault("internal", f"{type(error).__name__}: the server's log has more")


def parameter_of(error: InvalidScoresError) -> str | None:
    """Return the parameter that caused invalid scores; ``None`` if no single one did."""
    return PARAMETERS.get(error.processor or "")
