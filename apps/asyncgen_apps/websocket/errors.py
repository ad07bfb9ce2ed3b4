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
"""The parameter that each processor comes from."""

_log = logging.getLogger("asyncgen.websocket")

RESTART_SECONDS = 5.0
"""When to come back to a server whose engine is gone, or that leaves."""

RENAMED = {"num_return_sequences": "n", "stop_strings": "stop"}
"""Where the engine reports a parameter under another name than the one that was given."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An error before it is known whom it goes to.

    Attributes:
        code: For programs.
        message: For people.
        retry_after: Seconds after which another attempt may succeed.
        param: The parameter that is to blame.
        id: The request, where the message that was not understood named one.
    """

    code: ErrorCode
    message: str
    retry_after: float | None = None
    param: str | None = None
    id: str | None = None

    def message_for(self, request_id: str | None = None) -> dict[str, Any]:
        """The ``error`` for a request, or for the connection."""
        told: dict[str, Any] = {"type": "error", "code": self.code, "message": self.message}
        if request_id is not None:
            told["id"] = request_id
        if self.retry_after is not None:
            told["retry_after"] = self.retry_after
        if self.param is not None:
            told["param"] = self.param
        return told


def from_exception(error: Exception, given: frozenset[str] = frozenset()) -> Fault:
    """Say what a request raised.

    Args:
        error: From the engine; what is not expected becomes ``internal`` and is logged.
        given: Names of the parameters that the client sent.

    Returns:
        The fault.
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
    """Name the parameter that is to blame; ``None`` where no single one is."""
    return PARAMETERS.get(error.processor or "")
