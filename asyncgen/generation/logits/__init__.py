"""Logits processors: what changes the scores of the next token before one is picked."""

from __future__ import annotations

from asyncgen.generation.fields import check_supported
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
from asyncgen.generation.logits.diversity import HammingDiversityLogitsProcessor
from asyncgen.generation.logits.filters import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from asyncgen.generation.logits.lengths import (
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
)
from asyncgen.generation.logits.ngrams import NGramIndex, NoRepeatNGramLogitsProcessor
from asyncgen.generation.logits.penalties import RepetitionPenaltyLogitsProcessor
from asyncgen.generation.logits.prefix import PrefixConstrainedLogitsProcessor
from asyncgen.generation.logits.surprise import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    TopHLogitsWarper,
    TypicalLogitsWarper,
)

__all__ = [
    "EpsilonLogitsWarper",
    "EtaLogitsWarper",
    "ExponentialDecayLengthPenalty",
    "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor",
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
    "build_logits_processors",
    "check_supported",
]
