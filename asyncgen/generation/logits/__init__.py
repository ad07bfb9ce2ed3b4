"""Logits processors: what changes the scores of the next token before one is picked.

Those of a configuration run in this order: `guidance_scale`, `sequence_bias`, `diversity_penalty`,
`encoder_repetition_penalty`, `repetition_penalty`, `no_repeat_ngram_size`,
`encoder_no_repeat_ngram_size`, `bad_words_ids`, `min_length`, `min_new_tokens`,
`prefix_allowed_tokens_fn`, `forced_bos_token_id`, `forced_eos_token_id`, `remove_invalid_values`,
`exponential_decay_length_penalty`, `suppress_tokens`, `begin_suppress_tokens`, `presence_penalty`,
`frequency_penalty`; then what the user passes as objects; then, where tokens are drawn,
`temperature`, `top_h`, `top_k`, `top_p`, `min_p`, `typical_p`, `epsilon_cutoff`, `eta_cutoff`; and
at last `watermarking_config`, `renormalize_logits`.
"""

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
from asyncgen.generation.logits.base import (
    Definition,
    Guidance,
    LogitsProcessor,
    LogitsProcessorList,
    Stage,
)
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
    "Definition",
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
    "Stage",
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
