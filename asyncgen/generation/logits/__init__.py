"""Logits processors: what changes the scores of the next token before one is picked."""

from __future__ import annotations

from asyncgen.generation.config.checks import check_supported
from asyncgen.generation.logits.bans import (
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    NoBadWordsLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
from asyncgen.generation.logits.base import LogitsProcessor, LogitsProcessorList
from asyncgen.generation.logits.build import build_logits_processors
from asyncgen.generation.logits.checked import CheckedProcessors, raise_named
from asyncgen.generation.logits.diversity import HammingDiversityLogitsProcessor
from asyncgen.generation.logits.filters import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from asyncgen.generation.logits.guidance import (
    ClassifierFreeGuidanceLogitsProcessor,
    Guidance,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from asyncgen.generation.logits.lengths import (
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
)
from asyncgen.generation.logits.ngrams import (
    EncoderNoRepeatNGramLogitsProcessor,
    NGramIndex,
    NoRepeatNGramLogitsProcessor,
)
from asyncgen.generation.logits.penalties import (
    EncoderRepetitionPenaltyLogitsProcessor,
    FrequencyPenaltyLogitsProcessor,
    PresencePenaltyLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)
from asyncgen.generation.logits.prefix import PrefixConstrainedLogitsProcessor
from asyncgen.generation.logits.speech import (
    AlternatingCodebooksLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)
from asyncgen.generation.logits.surprise import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    TopHLogitsWarper,
    TypicalLogitsWarper,
)

__all__ = [
    "AlternatingCodebooksLogitsProcessor",
    "CheckedProcessors",
    "ClassifierFreeGuidanceLogitsProcessor",
    "EncoderNoRepeatNGramLogitsProcessor",
    "EncoderRepetitionPenaltyLogitsProcessor",
    "EpsilonLogitsWarper",
    "EtaLogitsWarper",
    "ExponentialDecayLengthPenalty",
    "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor",
    "FrequencyPenaltyLogitsProcessor",
    "Guidance",
    "HammingDiversityLogitsProcessor",
    "InfNanRemoveLogitsProcessor",
    "LogitNormalization",
    "LogitsProcessor",
    "LogitsProcessorList",
    "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
    "MinPLogitsWarper",
    "NGramIndex",
    "NoBadWordsLogitsProcessor",
    "NoRepeatNGramLogitsProcessor",
    "PresencePenaltyLogitsProcessor",
    "PrefixConstrainedLogitsProcessor",
    "RepetitionPenaltyLogitsProcessor",
    "SequenceBiasLogitsProcessor",
    "SuppressTokensAtBeginLogitsProcessor",
    "SuppressTokensLogitsProcessor",
    "TemperatureLogitsWarper",
    "TopHLogitsWarper",
    "TopKLogitsWarper",
    "TopPLogitsWarper",
    "TypicalLogitsWarper",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "WhisperTimeStampLogitsProcessor",
    "build_logits_processors",
    "check_supported",
    "raise_named",
]
