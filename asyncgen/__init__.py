"""One library that turns a local language model into an async stream of text.

    async with asyncgen.AsyncLLM("demo") as llm:
        async for text in llm.stream("Once upon a time"):
            print(text, end="", flush=True)

What most programs need comes first in the tables below; the rest are the documented names of
text generation, for code that was written for them. Every name is imported when it is first used,
so that ``import asyncgen`` alone costs nothing and loads no torch. Names outside ``__all__`` are
not public.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncgen.auto import AutoModelForCausalLM as AutoModelForCausalLM
    from asyncgen.auto import AutoModelForSeq2SeqLM as AutoModelForSeq2SeqLM
    from asyncgen.auto import AutoTokenizer as AutoTokenizer
    from asyncgen.batch_encoding import BatchEncoding as BatchEncoding
    from asyncgen.cache import Cache as Cache
    from asyncgen.cache import CacheConfig as CacheConfig
    from asyncgen.cache import DynamicCache as DynamicCache
    from asyncgen.cache import EncoderDecoderCache as EncoderDecoderCache
    from asyncgen.cache import HQQQuantizedCache as HQQQuantizedCache
    from asyncgen.cache import HybridCache as HybridCache
    from asyncgen.cache import MambaCache as MambaCache
    from asyncgen.cache import OffloadedCache as OffloadedCache
    from asyncgen.cache import OffloadedStaticCache as OffloadedStaticCache
    from asyncgen.cache import QuantizedCache as QuantizedCache
    from asyncgen.cache import QuantizedCacheConfig as QuantizedCacheConfig
    from asyncgen.cache import QuantoQuantizedCache as QuantoQuantizedCache
    from asyncgen.cache import SinkCache as SinkCache
    from asyncgen.cache import SlidingWindowCache as SlidingWindowCache
    from asyncgen.cache import StaticCache as StaticCache
    from asyncgen.engine.metrics import HistogramSnapshot as HistogramSnapshot
    from asyncgen.engine.metrics import MetricsSnapshot as MetricsSnapshot
    from asyncgen.engine.requests.stream_params import StreamParams as StreamParams
    from asyncgen.engine.scheduling.scheduler import Scheduler as Scheduler
    from asyncgen.engine.scheduling.schedulers import FIFOScheduler as FIFOScheduler
    from asyncgen.engine.scheduling.schedulers import PrefillFirstScheduler as PrefillFirstScheduler
    from asyncgen.engine.scheduling.state import GenerationOutput as GenerationOutput
    from asyncgen.engine.scheduling.state import RequestState as RequestState
    from asyncgen.engine.scheduling.state import RequestStatus as RequestStatus
    from asyncgen.engine.sync.manager import ContinuousBatchingManager as ContinuousBatchingManager
    from asyncgen.engine.sync.mixin import ContinuousMixin as ContinuousMixin
    from asyncgen.errors import AsyncgenError as AsyncgenError
    from asyncgen.errors import ChatTemplateError as ChatTemplateError
    from asyncgen.errors import ContextLengthError as ContextLengthError
    from asyncgen.errors import EngineClosedError as EngineClosedError
    from asyncgen.errors import EngineDiedError as EngineDiedError
    from asyncgen.errors import InvalidRequestError as InvalidRequestError
    from asyncgen.errors import InvalidScoresError as InvalidScoresError
    from asyncgen.errors import MissingRequirementsError as MissingRequirementsError
    from asyncgen.errors import ModelLoadError as ModelLoadError
    from asyncgen.errors import OverloadedError as OverloadedError
    from asyncgen.errors import UnsupportedModelError as UnsupportedModelError
    from asyncgen.generation.config import CompileConfig as CompileConfig
    from asyncgen.generation.config import GenerationConfig as GenerationConfig
    from asyncgen.generation.config.modes import GenerationMode as GenerationMode
    from asyncgen.generation.generate.mixin import GenerationMixin as GenerationMixin
    from asyncgen.generation.logits import (
        AlternatingCodebooksLogitsProcessor as AlternatingCodebooksLogitsProcessor,
    )
    from asyncgen.generation.logits import (
        ClassifierFreeGuidanceLogitsProcessor as ClassifierFreeGuidanceLogitsProcessor,
    )
    from asyncgen.generation.logits import (
        EncoderNoRepeatNGramLogitsProcessor as EncoderNoRepeatNGramLogitsProcessor,
    )
    from asyncgen.generation.logits import (
        EncoderRepetitionPenaltyLogitsProcessor as EncoderRepetitionPenaltyLogitsProcessor,
    )
    from asyncgen.generation.logits import EpsilonLogitsWarper as EpsilonLogitsWarper
    from asyncgen.generation.logits import EtaLogitsWarper as EtaLogitsWarper
    from asyncgen.generation.logits import (
        ExponentialDecayLengthPenalty as ExponentialDecayLengthPenalty,
    )
    from asyncgen.generation.logits import (
        ForcedBOSTokenLogitsProcessor as ForcedBOSTokenLogitsProcessor,
    )
    from asyncgen.generation.logits import (
        ForcedEOSTokenLogitsProcessor as ForcedEOSTokenLogitsProcessor,
    )
    from asyncgen.generation.logits import (
        FrequencyPenaltyLogitsProcessor as FrequencyPenaltyLogitsProcessor,
    )
    from asyncgen.generation.logits import (
        HammingDiversityLogitsProcessor as HammingDiversityLogitsProcessor,
    )
    from asyncgen.generation.logits import (
        InfNanRemoveLogitsProcessor as InfNanRemoveLogitsProcessor,
    )
    from asyncgen.generation.logits import LogitNormalization as LogitNormalization
    from asyncgen.generation.logits import LogitsProcessor as LogitsProcessor
    from asyncgen.generation.logits import LogitsProcessorList as LogitsProcessorList
    from asyncgen.generation.logits import MinLengthLogitsProcessor as MinLengthLogitsProcessor
    from asyncgen.generation.logits import (
        MinNewTokensLengthLogitsProcessor as MinNewTokensLengthLogitsProcessor,
    )
    from asyncgen.generation.logits import MinPLogitsWarper as MinPLogitsWarper
    from asyncgen.generation.logits import NoBadWordsLogitsProcessor as NoBadWordsLogitsProcessor
    from asyncgen.generation.logits import (
        NoRepeatNGramLogitsProcessor as NoRepeatNGramLogitsProcessor,
    )
    from asyncgen.generation.logits import (
        PrefixConstrainedLogitsProcessor as PrefixConstrainedLogitsProcessor,
    )
    from asyncgen.generation.logits import (
        PresencePenaltyLogitsProcessor as PresencePenaltyLogitsProcessor,
    )
    from asyncgen.generation.logits import (
        RepetitionPenaltyLogitsProcessor as RepetitionPenaltyLogitsProcessor,
    )
    from asyncgen.generation.logits import (
        SequenceBiasLogitsProcessor as SequenceBiasLogitsProcessor,
    )
    from asyncgen.generation.logits import (
        SuppressTokensAtBeginLogitsProcessor as SuppressTokensAtBeginLogitsProcessor,
    )
    from asyncgen.generation.logits import (
        SuppressTokensLogitsProcessor as SuppressTokensLogitsProcessor,
    )
    from asyncgen.generation.logits import TemperatureLogitsWarper as TemperatureLogitsWarper
    from asyncgen.generation.logits import TopHLogitsWarper as TopHLogitsWarper
    from asyncgen.generation.logits import TopKLogitsWarper as TopKLogitsWarper
    from asyncgen.generation.logits import TopPLogitsWarper as TopPLogitsWarper
    from asyncgen.generation.logits import TypicalLogitsWarper as TypicalLogitsWarper
    from asyncgen.generation.logits import (
        UnbatchedClassifierFreeGuidanceLogitsProcessor as UnbatchedClassifierFreeGuidanceLogitsProcessor,  # noqa: E501
    )
    from asyncgen.generation.logits import (
        WhisperTimeStampLogitsProcessor as WhisperTimeStampLogitsProcessor,
    )
    from asyncgen.generation.outputs import BaseModelOutput as BaseModelOutput
    from asyncgen.generation.outputs import (
        CausalLMOutputWithPast as CausalLMOutputWithPast,
    )
    from asyncgen.generation.outputs import (
        GenerateBeamDecoderOnlyOutput as GenerateBeamDecoderOnlyOutput,
    )
    from asyncgen.generation.outputs import (
        GenerateBeamEncoderDecoderOutput as GenerateBeamEncoderDecoderOutput,
    )
    from asyncgen.generation.outputs import (
        GenerateDecoderOnlyOutput as GenerateDecoderOnlyOutput,
    )
    from asyncgen.generation.outputs import (
        GenerateEncoderDecoderOutput as GenerateEncoderDecoderOutput,
    )
    from asyncgen.generation.outputs import ModelOutput as ModelOutput
    from asyncgen.generation.outputs import Seq2SeqLMOutput as Seq2SeqLMOutput
    from asyncgen.generation.stopping.criteria import CancelCriteria as CancelCriteria
    from asyncgen.generation.stopping.criteria import EosTokenCriteria as EosTokenCriteria
    from asyncgen.generation.stopping.criteria import MaxLengthCriteria as MaxLengthCriteria
    from asyncgen.generation.stopping.criteria import MaxTimeCriteria as MaxTimeCriteria
    from asyncgen.generation.stopping.criteria import StoppingCriteria as StoppingCriteria
    from asyncgen.generation.stopping.criteria import StoppingCriteriaList as StoppingCriteriaList
    from asyncgen.generation.stopping.criteria import StopStringCriteria as StopStringCriteria
    from asyncgen.generation.strategies.beam_scorers import BeamHypotheses as BeamHypotheses
    from asyncgen.generation.strategies.beam_scorers import BeamScorer as BeamScorer
    from asyncgen.generation.strategies.beam_scorers import BeamSearchScorer as BeamSearchScorer
    from asyncgen.generation.strategies.beam_scorers import (
        ConstrainedBeamSearchScorer as ConstrainedBeamSearchScorer,
    )
    from asyncgen.generation.strategies.constraints import Constraint as Constraint
    from asyncgen.generation.strategies.constraints import (
        ConstraintListState as ConstraintListState,
    )
    from asyncgen.generation.strategies.constraints import (
        DisjunctiveConstraint as DisjunctiveConstraint,
    )
    from asyncgen.generation.strategies.constraints import PhrasalConstraint as PhrasalConstraint
    from asyncgen.generation.watermarking import BaseWatermarkingConfig as BaseWatermarkingConfig
    from asyncgen.generation.watermarking import BayesianDetectorConfig as BayesianDetectorConfig
    from asyncgen.generation.watermarking import BayesianDetectorModel as BayesianDetectorModel
    from asyncgen.generation.watermarking import (
        BayesianWatermarkDetectorModelOutput as BayesianWatermarkDetectorModelOutput,
    )
    from asyncgen.generation.watermarking import (
        SynthIDTextWatermarkDetector as SynthIDTextWatermarkDetector,
    )
    from asyncgen.generation.watermarking import (
        SynthIDTextWatermarkingConfig as SynthIDTextWatermarkingConfig,
    )
    from asyncgen.generation.watermarking import (
        SynthIDTextWatermarkLogitsProcessor as SynthIDTextWatermarkLogitsProcessor,
    )
    from asyncgen.generation.watermarking import WatermarkDetector as WatermarkDetector
    from asyncgen.generation.watermarking import WatermarkDetectorOutput as WatermarkDetectorOutput
    from asyncgen.generation.watermarking import WatermarkingConfig as WatermarkingConfig
    from asyncgen.generation.watermarking import (
        WatermarkLogitsProcessor as WatermarkLogitsProcessor,
    )
    from asyncgen.llm import AsyncLLM as AsyncLLM
    from asyncgen.llm import TextStream as TextStream
    from asyncgen.models.config import ModelConfig as ModelConfig
    from asyncgen.native import cpu_kernels as cpu_kernels
    from asyncgen.pretrained import PreTrainedModel as PreTrainedModel
    from asyncgen.pretrained import load_model as load_model
    from asyncgen.pretrained import load_tokenizer as load_tokenizer
    from asyncgen.pretrained import set_seed as set_seed
    from asyncgen.tokenizer import Tokenizer as Tokenizer
    from asyncgen.types import Completion as Completion
    from asyncgen.types import FinishReason as FinishReason
    from asyncgen.types import Message as Message
    from asyncgen.types import Prompt as Prompt
    from asyncgen.types import Sample as Sample
    from asyncgen.types import Timing as Timing
    from asyncgen.types import TokenEvent as TokenEvent
    from asyncgen.types import TokenLogprob as TokenLogprob
    from asyncgen.types import TopLogprob as TopLogprob
    from asyncgen.types import Usage as Usage
    from streamers import AsyncTextIteratorStreamer as AsyncTextIteratorStreamer
    from streamers import BaseStreamer as BaseStreamer
    from streamers import TextIteratorStreamer as TextIteratorStreamer
    from streamers import TextStreamer as TextStreamer

    __version__: str

_FRONT = {
    "asyncgen.auto": (
        "AutoModelForCausalLM",
        "AutoModelForSeq2SeqLM",
        "AutoTokenizer",
    ),
    "asyncgen.errors": (
        "AsyncgenError",
        "ChatTemplateError",
        "ContextLengthError",
        "EngineClosedError",
        "EngineDiedError",
        "InvalidRequestError",
        "MissingRequirementsError",
        "ModelLoadError",
        "OverloadedError",
        "UnsupportedModelError",
    ),
    "asyncgen.generation.config": ("GenerationConfig",),
    "asyncgen.llm": (
        "AsyncLLM",
        "TextStream",
    ),
    "asyncgen.pretrained": (
        "load_model",
        "load_tokenizer",
        "set_seed",
    ),
    "asyncgen.types": (
        "Completion",
        "TokenEvent",
    ),
    "streamers": (
        "AsyncTextIteratorStreamer",
        "TextIteratorStreamer",
        "TextStreamer",
    ),
}

_REST = {
    "asyncgen.batch_encoding": ("BatchEncoding",),
    "asyncgen.cache": (
        "Cache",
        "CacheConfig",
        "DynamicCache",
        "EncoderDecoderCache",
        "HQQQuantizedCache",
        "HybridCache",
        "MambaCache",
        "OffloadedCache",
        "OffloadedStaticCache",
        "QuantizedCache",
        "QuantizedCacheConfig",
        "QuantoQuantizedCache",
        "SinkCache",
        "SlidingWindowCache",
        "StaticCache",
    ),
    "asyncgen.engine.sync.manager": ("ContinuousBatchingManager",),
    "asyncgen.engine.sync.mixin": ("ContinuousMixin",),
    "asyncgen.engine.metrics": ("HistogramSnapshot", "MetricsSnapshot"),
    "asyncgen.engine.scheduling.scheduler": ("Scheduler",),
    "asyncgen.engine.scheduling.schedulers": ("FIFOScheduler", "PrefillFirstScheduler"),
    "asyncgen.engine.scheduling.state": ("GenerationOutput", "RequestState", "RequestStatus"),
    "asyncgen.engine.requests.stream_params": ("StreamParams",),
    "asyncgen.errors": ("InvalidScoresError",),
    "asyncgen.generation.strategies.beam_scorers": (
        "BeamHypotheses",
        "BeamScorer",
        "BeamSearchScorer",
        "ConstrainedBeamSearchScorer",
    ),
    "asyncgen.generation.config": ("CompileConfig",),
    "asyncgen.generation.strategies.constraints": (
        "Constraint",
        "ConstraintListState",
        "DisjunctiveConstraint",
        "PhrasalConstraint",
    ),
    "asyncgen.generation.logits": (
        "AlternatingCodebooksLogitsProcessor",
        "ClassifierFreeGuidanceLogitsProcessor",
        "EncoderNoRepeatNGramLogitsProcessor",
        "EncoderRepetitionPenaltyLogitsProcessor",
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "ExponentialDecayLengthPenalty",
        "ForcedBOSTokenLogitsProcessor",
        "ForcedEOSTokenLogitsProcessor",
        "FrequencyPenaltyLogitsProcessor",
        "HammingDiversityLogitsProcessor",
        "InfNanRemoveLogitsProcessor",
        "LogitNormalization",
        "LogitsProcessor",
        "LogitsProcessorList",
        "MinLengthLogitsProcessor",
        "MinNewTokensLengthLogitsProcessor",
        "MinPLogitsWarper",
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
    ),
    "asyncgen.generation.generate.mixin": ("GenerationMixin",),
    "asyncgen.generation.config.modes": ("GenerationMode",),
    "asyncgen.generation.outputs": (
        "BaseModelOutput",
        "CausalLMOutputWithPast",
        "GenerateBeamDecoderOnlyOutput",
        "GenerateBeamEncoderDecoderOutput",
        "GenerateDecoderOnlyOutput",
        "GenerateEncoderDecoderOutput",
        "ModelOutput",
        "Seq2SeqLMOutput",
    ),
    "asyncgen.generation.stopping.criteria": (
        "CancelCriteria",
        "EosTokenCriteria",
        "MaxLengthCriteria",
        "MaxTimeCriteria",
        "StopStringCriteria",
        "StoppingCriteria",
        "StoppingCriteriaList",
    ),
    "asyncgen.generation.watermarking": (
        "BaseWatermarkingConfig",
        "BayesianDetectorConfig",
        "BayesianDetectorModel",
        "BayesianWatermarkDetectorModelOutput",
        "SynthIDTextWatermarkDetector",
        "SynthIDTextWatermarkLogitsProcessor",
        "SynthIDTextWatermarkingConfig",
        "WatermarkDetector",
        "WatermarkDetectorOutput",
        "WatermarkLogitsProcessor",
        "WatermarkingConfig",
    ),
    "asyncgen.models.config": ("ModelConfig",),
    "asyncgen.native": ("cpu_kernels",),
    "asyncgen.pretrained": ("PreTrainedModel",),
    "asyncgen.tokenizer": ("Tokenizer",),
    "asyncgen.types": (
        "FinishReason",
        "Message",
        "Prompt",
        "Sample",
        "Timing",
        "TokenLogprob",
        "TopLogprob",
        "Usage",
    ),
    "streamers": ("BaseStreamer",),
}

_MODULES = {
    name: module for table in (_REST, _FRONT) for module, names in table.items() for name in names
}
"""Where each public name comes from."""

__all__ = [
    "AlternatingCodebooksLogitsProcessor",
    "AsyncLLM",
    "AsyncTextIteratorStreamer",
    "AsyncgenError",
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoTokenizer",
    "BaseModelOutput",
    "BaseStreamer",
    "BaseWatermarkingConfig",
    "BatchEncoding",
    "BayesianDetectorConfig",
    "BayesianDetectorModel",
    "BayesianWatermarkDetectorModelOutput",
    "BeamHypotheses",
    "BeamScorer",
    "BeamSearchScorer",
    "Cache",
    "CacheConfig",
    "CancelCriteria",
    "CausalLMOutputWithPast",
    "ChatTemplateError",
    "ClassifierFreeGuidanceLogitsProcessor",
    "CompileConfig",
    "Completion",
    "ConstrainedBeamSearchScorer",
    "Constraint",
    "ConstraintListState",
    "ContextLengthError",
    "ContinuousBatchingManager",
    "ContinuousMixin",
    "DisjunctiveConstraint",
    "DynamicCache",
    "EncoderDecoderCache",
    "EncoderNoRepeatNGramLogitsProcessor",
    "EncoderRepetitionPenaltyLogitsProcessor",
    "EngineClosedError",
    "EngineDiedError",
    "EosTokenCriteria",
    "EpsilonLogitsWarper",
    "EtaLogitsWarper",
    "ExponentialDecayLengthPenalty",
    "FIFOScheduler",
    "FinishReason",
    "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor",
    "FrequencyPenaltyLogitsProcessor",
    "GenerateBeamDecoderOnlyOutput",
    "GenerateBeamEncoderDecoderOutput",
    "GenerateDecoderOnlyOutput",
    "GenerateEncoderDecoderOutput",
    "GenerationConfig",
    "GenerationMixin",
    "GenerationMode",
    "GenerationOutput",
    "HQQQuantizedCache",
    "HammingDiversityLogitsProcessor",
    "HistogramSnapshot",
    "HybridCache",
    "InfNanRemoveLogitsProcessor",
    "InvalidRequestError",
    "InvalidScoresError",
    "LogitNormalization",
    "LogitsProcessor",
    "LogitsProcessorList",
    "MambaCache",
    "MaxLengthCriteria",
    "MaxTimeCriteria",
    "Message",
    "MetricsSnapshot",
    "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
    "MinPLogitsWarper",
    "MissingRequirementsError",
    "ModelConfig",
    "ModelLoadError",
    "ModelOutput",
    "NoBadWordsLogitsProcessor",
    "NoRepeatNGramLogitsProcessor",
    "OffloadedCache",
    "OffloadedStaticCache",
    "OverloadedError",
    "PhrasalConstraint",
    "PreTrainedModel",
    "PrefillFirstScheduler",
    "PrefixConstrainedLogitsProcessor",
    "PresencePenaltyLogitsProcessor",
    "Prompt",
    "QuantizedCache",
    "QuantizedCacheConfig",
    "QuantoQuantizedCache",
    "RepetitionPenaltyLogitsProcessor",
    "RequestState",
    "RequestStatus",
    "Sample",
    "Scheduler",
    "Seq2SeqLMOutput",
    "SequenceBiasLogitsProcessor",
    "SinkCache",
    "SlidingWindowCache",
    "StaticCache",
    "StopStringCriteria",
    "StoppingCriteria",
    "StoppingCriteriaList",
    "StreamParams",
    "SuppressTokensAtBeginLogitsProcessor",
    "SuppressTokensLogitsProcessor",
    "SynthIDTextWatermarkDetector",
    "SynthIDTextWatermarkLogitsProcessor",
    "SynthIDTextWatermarkingConfig",
    "TemperatureLogitsWarper",
    "TextIteratorStreamer",
    "TextStream",
    "TextStreamer",
    "Timing",
    "TokenEvent",
    "TokenLogprob",
    "Tokenizer",
    "TopHLogitsWarper",
    "TopKLogitsWarper",
    "TopLogprob",
    "TopPLogitsWarper",
    "TypicalLogitsWarper",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "UnsupportedModelError",
    "Usage",
    "WatermarkDetector",
    "WatermarkDetectorOutput",
    "WatermarkLogitsProcessor",
    "WatermarkingConfig",
    "WhisperTimeStampLogitsProcessor",
    "__version__",
    "cpu_kernels",
    "load_model",
    "load_tokenizer",
    "set_seed",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for."""
    if name == "__version__":
        # The distribution's metadata takes longer to read than everything else here.
        from importlib.metadata import PackageNotFoundError, version

        try:
            value: object = version("asyncgen")
        except PackageNotFoundError as error:
            raise AttributeError(
                "asyncgen has no version because it is not installed; run `pip install -e .`"
            ) from error
    elif name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name]), name)
    else:
        raise AttributeError(f"module 'asyncgen' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Name what can be asked for."""
    return sorted({*globals(), *__all__})
