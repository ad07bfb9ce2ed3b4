"""Which parameter to name where a logits processor left no token to pick.

Clients over a network know parameters, not classes. Knows names alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncgen import InvalidScoresError

__all__ = ["PARAMETERS", "parameter_of"]

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


def parameter_of(error: InvalidScoresError) -> str | None:
    """Name the parameter that is to blame; ``None`` where no single one is."""
    return PARAMETERS.get(error.processor or "")
