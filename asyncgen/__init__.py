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
    from asyncgen.cache import DynamicCache as DynamicCache
    from asyncgen.cache import EncoderDecoderCache as EncoderDecoderCache
    from asyncgen.cache import StaticCache as StaticCache
    from asyncgen.engine.stream_params import StreamParams as StreamParams
    from asyncgen.errors import AsyncgenError as AsyncgenError
    from asyncgen.errors import ChatTemplateError as ChatTemplateError
    from asyncgen.errors import ContextLengthError as ContextLengthError
    from asyncgen.errors import EngineClosedError as EngineClosedError
    from asyncgen.errors import EngineDiedError as EngineDiedError
    from asyncgen.errors import InvalidRequestError as InvalidRequestError
    from asyncgen.errors import ModelLoadError as ModelLoadError
    from asyncgen.errors import OverloadedError as OverloadedError
    from asyncgen.errors import UnsupportedModelError as UnsupportedModelError
    from asyncgen.generation.config import CompileConfig as CompileConfig
    from asyncgen.generation.config import GenerationConfig as GenerationConfig
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
    from asyncgen.generation.logits import TopKLogitsWarper as TopKLogitsWarper
    from asyncgen.generation.logits import TopPLogitsWarper as TopPLogitsWarper
    from asyncgen.generation.logits import TypicalLogitsWarper as TypicalLogitsWarper
    from asyncgen.generation.mixin import GenerationMixin as GenerationMixin
    from asyncgen.generation.modes import GenerationMode as GenerationMode
    from asyncgen.generation.outputs import BaseModelOutput as BaseModelOutput
    from asyncgen.generation.outputs import CausalLMOutputWithPast as CausalLMOutputWithPast
    from asyncgen.generation.outputs import (
        GenerateBeamDecoderOnlyOutput as GenerateBeamDecoderOnlyOutput,
    )
    from asyncgen.generation.outputs import (
        GenerateBeamEncoderDecoderOutput as GenerateBeamEncoderDecoderOutput,
    )
    from asyncgen.generation.outputs import GenerateDecoderOnlyOutput as GenerateDecoderOnlyOutput
    from asyncgen.generation.outputs import (
        GenerateEncoderDecoderOutput as GenerateEncoderDecoderOutput,
    )
    from asyncgen.generation.outputs import ModelOutput as ModelOutput
    from asyncgen.generation.outputs import Seq2SeqLMOutput as Seq2SeqLMOutput
    from asyncgen.generation.stopping import CancelCriteria as CancelCriteria
    from asyncgen.generation.stopping import EosTokenCriteria as EosTokenCriteria
    from asyncgen.generation.stopping import MaxLengthCriteria as MaxLengthCriteria
    from asyncgen.generation.stopping import MaxTimeCriteria as MaxTimeCriteria
    from asyncgen.generation.stopping import StoppingCriteria as StoppingCriteria
    from asyncgen.generation.stopping import StoppingCriteriaList as StoppingCriteriaList
    from asyncgen.generation.stopping import StopStringCriteria as StopStringCriteria
    from asyncgen.llm import AsyncLLM as AsyncLLM
    from asyncgen.llm import TextStream as TextStream
    from asyncgen.models.config import ModelConfig as ModelConfig
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
        "DynamicCache",
        "EncoderDecoderCache",
        "StaticCache",
    ),
    "asyncgen.engine.stream_params": ("StreamParams",),
    "asyncgen.generation.config": ("CompileConfig",),
    "asyncgen.generation.logits": (
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "ExponentialDecayLengthPenalty",
        "ForcedBOSTokenLogitsProcessor",
        "ForcedEOSTokenLogitsProcessor",
        "InfNanRemoveLogitsProcessor",
        "LogitNormalization",
        "LogitsProcessor",
        "LogitsProcessorList",
        "MinLengthLogitsProcessor",
        "MinNewTokensLengthLogitsProcessor",
        "MinPLogitsWarper",
        "NoBadWordsLogitsProcessor",
        "NoRepeatNGramLogitsProcessor",
        "RepetitionPenaltyLogitsProcessor",
        "SequenceBiasLogitsProcessor",
        "SuppressTokensAtBeginLogitsProcessor",
        "SuppressTokensLogitsProcessor",
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "TypicalLogitsWarper",
    ),
    "asyncgen.generation.mixin": ("GenerationMixin",),
    "asyncgen.generation.modes": ("GenerationMode",),
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
    "asyncgen.generation.stopping": (
        "CancelCriteria",
        "EosTokenCriteria",
        "MaxLengthCriteria",
        "MaxTimeCriteria",
        "StopStringCriteria",
        "StoppingCriteria",
        "StoppingCriteriaList",
    ),
    "asyncgen.models.config": ("ModelConfig",),
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
    "AsyncLLM",
    "AsyncTextIteratorStreamer",
    "AsyncgenError",
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoTokenizer",
    "BaseModelOutput",
    "BaseStreamer",
    "BatchEncoding",
    "Cache",
    "CancelCriteria",
    "CausalLMOutputWithPast",
    "ChatTemplateError",
    "CompileConfig",
    "Completion",
    "ContextLengthError",
    "DynamicCache",
    "EncoderDecoderCache",
    "EngineClosedError",
    "EngineDiedError",
    "EosTokenCriteria",
    "EpsilonLogitsWarper",
    "EtaLogitsWarper",
    "ExponentialDecayLengthPenalty",
    "FinishReason",
    "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor",
    "GenerateBeamDecoderOnlyOutput",
    "GenerateBeamEncoderDecoderOutput",
    "GenerateDecoderOnlyOutput",
    "GenerateEncoderDecoderOutput",
    "GenerationConfig",
    "GenerationMixin",
    "GenerationMode",
    "InfNanRemoveLogitsProcessor",
    "InvalidRequestError",
    "LogitNormalization",
    "LogitsProcessor",
    "LogitsProcessorList",
    "MaxLengthCriteria",
    "MaxTimeCriteria",
    "Message",
    "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
    "MinPLogitsWarper",
    "ModelConfig",
    "ModelLoadError",
    "ModelOutput",
    "NoBadWordsLogitsProcessor",
    "NoRepeatNGramLogitsProcessor",
    "OverloadedError",
    "PreTrainedModel",
    "Prompt",
    "RepetitionPenaltyLogitsProcessor",
    "Sample",
    "Seq2SeqLMOutput",
    "SequenceBiasLogitsProcessor",
    "StaticCache",
    "StopStringCriteria",
    "StoppingCriteria",
    "StoppingCriteriaList",
    "StreamParams",
    "SuppressTokensAtBeginLogitsProcessor",
    "SuppressTokensLogitsProcessor",
    "TemperatureLogitsWarper",
    "TextIteratorStreamer",
    "TextStream",
    "TextStreamer",
    "Timing",
    "TokenEvent",
    "TokenLogprob",
    "Tokenizer",
    "TopKLogitsWarper",
    "TopLogprob",
    "TopPLogitsWarper",
    "TypicalLogitsWarper",
    "UnsupportedModelError",
    "Usage",
    "__version__",
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
