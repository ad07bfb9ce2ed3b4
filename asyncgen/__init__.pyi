"""The public names of asyncgen, each written once; see ``__init__.py``, which reads this file.

A name is imported when it is first used, so that ``import asyncgen`` alone loads nothing.
"""

# What most programs need.
from asyncgen.reference.auto import (
    AutoConfig as AutoConfig,
    AutoModelForCausalLM as AutoModelForCausalLM,
    AutoModelForSeq2SeqLM as AutoModelForSeq2SeqLM,
    AutoTokenizer as AutoTokenizer,
)
from asyncgen.errors import (
    AsyncgenError as AsyncgenError,
    ChatTemplateError as ChatTemplateError,
    ContextLengthError as ContextLengthError,
    EngineClosedError as EngineClosedError,
    EngineDiedError as EngineDiedError,
    EngineReentryError as EngineReentryError,
    InvalidRequestError as InvalidRequestError,
    MissingRequirementsError as MissingRequirementsError,
    ModelLoadError as ModelLoadError,
    OverloadedError as OverloadedError,
    UnsupportedModelError as UnsupportedModelError,
)
from asyncgen.generation.config import (
    STREAM_PARAMETERS as STREAM_PARAMETERS,
    CompileConfig as CompileConfig,
    GenerationConfig as GenerationConfig,
)
from asyncgen.llm.llm import (
    LLM as LLM,
    AsyncLLM as AsyncLLM,
    SyncTextStream as SyncTextStream,
    TextStream as TextStream,
)
from asyncgen.reference.load_model import (
    load_model as load_model,
    load_tokenizer as load_tokenizer,
    set_seed as set_seed,
)
from asyncgen.types import (
    Completion as Completion,
    Embedding as Embedding,
    TokenEvent as TokenEvent,
)
from streamers import (
    AsyncTextIteratorStreamer as AsyncTextIteratorStreamer,
    TextIteratorStreamer as TextIteratorStreamer,
    TextStreamer as TextStreamer,
)

__all__: list[str]
__version__: str

# The documented names of text generation, for code that was written for them.
from asyncgen.text.batch_encoding import BatchEncoding as BatchEncoding
from asyncgen.cache.layer_base import CacheLayerMixin as CacheLayerMixin
from asyncgen.cache.layers import (
    DynamicLayer as DynamicLayer,
    StaticLayer as StaticLayer,
)
from asyncgen.cache.sliding_layers import (
    DynamicSlidingWindowLayer as DynamicSlidingWindowLayer,
    StaticSlidingWindowLayer as StaticSlidingWindowLayer,
)
from asyncgen.cache.quantized.fp8_layer import Fp8QuantizedLayer as Fp8QuantizedLayer
from asyncgen.cache.quantized.quantized_layer import (
    HQQQuantizedLayer as HQQQuantizedLayer,
    QuantizedLayer as QuantizedLayer,
    QuantoQuantizedLayer as QuantoQuantizedLayer,
)
from asyncgen.cache.caches import (
    Cache as Cache,
    DynamicCache as DynamicCache,
)
from asyncgen.cache.quantized.quantized_cache import (
    HQQQuantizedCache as HQQQuantizedCache,
    QuantizedCache as QuantizedCache,
    QuantoQuantizedCache as QuantoQuantizedCache,
)
from asyncgen.cache.quantized.settings import (
    CacheConfig as CacheConfig,
    QuantizedCacheConfig as QuantizedCacheConfig,
)
from asyncgen.reference.quantize_checkpoint import quantize_checkpoint as quantize_checkpoint
from asyncgen.checkpoints.packed.bits_and_bytes import BitsAndBytesConfig as BitsAndBytesConfig
from asyncgen.cache.encoder_decoder import EncoderDecoderCache as EncoderDecoderCache
from asyncgen.cache.sliding import (
    HybridCache as HybridCache,
    SlidingWindowCache as SlidingWindowCache,
)
from asyncgen.cache.mamba import MambaCache as MambaCache
from asyncgen.cache.offloaded import (
    OffloadedCache as OffloadedCache,
    OffloadedStaticCache as OffloadedStaticCache,
)
from asyncgen.cache.sink import SinkCache as SinkCache
from asyncgen.cache.static import StaticCache as StaticCache
from asyncgen.llm.embedding import EmbedParams as EmbedParams
from asyncgen.engine.metrics import (
    HistogramSnapshot as HistogramSnapshot,
    MetricsSnapshot as MetricsSnapshot,
)
from asyncgen.engine.requests.stream_params import (
    PromptParams as PromptParams,
    StreamParams as StreamParams,
)
from asyncgen.engine.scheduling.scheduler import (
    Scheduler as Scheduler,
    FIFOScheduler as FIFOScheduler,
    PrefillFirstScheduler as PrefillFirstScheduler,
)
from asyncgen.engine.scheduling.state import (
    GenerationOutput as GenerationOutput,
    RequestState as RequestState,
    RequestStatus as RequestStatus,
)
from asyncgen.reference.continuous_batching.batching_config import (
    ContinuousBatchingConfig as ContinuousBatchingConfig,
    WorkloadHints as WorkloadHints,
)
from asyncgen.reference.continuous_batching.manager import (
    ContinuousBatchingManager as ContinuousBatchingManager,
)
from asyncgen.reference.continuous_batching.mixin import ContinuousMixin as ContinuousMixin
from asyncgen.errors import (
    CacheFullError as CacheFullError,
    DefaultLengthWarning as DefaultLengthWarning,
    InvalidScoresError as InvalidScoresError,
    UnsupportedFrameworkError as UnsupportedFrameworkError,
)
from asyncgen.reference.family_classes import PreTrainedTokenizerFast as PreTrainedTokenizerFast
from asyncgen.checkpoints.hub import check_source as check_source
from asyncgen.checkpoints.push_to_hub import PushToHubMixin as PushToHubMixin
from asyncgen.generation.config.modes import GenerationMode as GenerationMode
from asyncgen.generation.generate.mixin import GenerationMixin as GenerationMixin
from asyncgen.generation.logits.bans import (
    InfNanRemoveLogitsProcessor as InfNanRemoveLogitsProcessor,
    LogitNormalization as LogitNormalization,
    NoBadWordsLogitsProcessor as NoBadWordsLogitsProcessor,
    SequenceBiasLogitsProcessor as SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor as SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor as SuppressTokensLogitsProcessor,
)
from asyncgen.generation.logits.base import (
    LogitsProcessor as LogitsProcessor,
    LogitsProcessorList as LogitsProcessorList,
)
from asyncgen.generation.logits.diversity import (
    HammingDiversityLogitsProcessor as HammingDiversityLogitsProcessor,
)
from asyncgen.generation.logits.filters import (
    MinPLogitsWarper as MinPLogitsWarper,
    TemperatureLogitsWarper as TemperatureLogitsWarper,
    TopKLogitsWarper as TopKLogitsWarper,
    TopPLogitsWarper as TopPLogitsWarper,
)
from asyncgen.generation.logits.guidance import (
    ClassifierFreeGuidanceLogitsProcessor as ClassifierFreeGuidanceLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor as UnbatchedClassifierFreeGuidanceLogitsProcessor,  # noqa: E501
)
from asyncgen.generation.logits.grammar_mask import (
    GrammarLogitsProcessor as GrammarLogitsProcessor,
)
from asyncgen.generation.logits.lengths import (
    ExponentialDecayLengthPenalty as ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor as ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor as ForcedEOSTokenLogitsProcessor,
    MinLengthLogitsProcessor as MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor as MinNewTokensLengthLogitsProcessor,
)
from asyncgen.generation.logits.ngrams import (
    EncoderNoRepeatNGramLogitsProcessor as EncoderNoRepeatNGramLogitsProcessor,
    NoRepeatNGramLogitsProcessor as NoRepeatNGramLogitsProcessor,
)
from asyncgen.generation.logits.penalties import (
    EncoderRepetitionPenaltyLogitsProcessor as EncoderRepetitionPenaltyLogitsProcessor,
    FrequencyPenaltyLogitsProcessor as FrequencyPenaltyLogitsProcessor,
    PresencePenaltyLogitsProcessor as PresencePenaltyLogitsProcessor,
    RepetitionPenaltyLogitsProcessor as RepetitionPenaltyLogitsProcessor,
)
from asyncgen.generation.logits.prefix import (
    PrefixConstrainedLogitsProcessor as PrefixConstrainedLogitsProcessor,
)
from asyncgen.generation.logits.speech import (
    AlternatingCodebooksLogitsProcessor as AlternatingCodebooksLogitsProcessor,
    WhisperTimeStampLogitsProcessor as WhisperTimeStampLogitsProcessor,
)
from asyncgen.generation.logits.entropy_filters import (
    EpsilonLogitsWarper as EpsilonLogitsWarper,
    EtaLogitsWarper as EtaLogitsWarper,
    TopHLogitsWarper as TopHLogitsWarper,
    TypicalLogitsWarper as TypicalLogitsWarper,
)
from asyncgen.generation.outputs import (
    BaseModelOutput as BaseModelOutput,
    CausalLMOutputWithPast as CausalLMOutputWithPast,
    GenerateBeamDecoderOnlyOutput as GenerateBeamDecoderOnlyOutput,
    GenerateBeamEncoderDecoderOutput as GenerateBeamEncoderDecoderOutput,
    GenerateDecoderOnlyOutput as GenerateDecoderOnlyOutput,
    GenerateEncoderDecoderOutput as GenerateEncoderDecoderOutput,
    ModelOutput as ModelOutput,
    Seq2SeqLMOutput as Seq2SeqLMOutput,
)
from asyncgen.generation.stopping.cancel import CancelCriteria as CancelCriteria
from asyncgen.generation.strategies.drafters.candidates import (
    AssistedCandidateGenerator as AssistedCandidateGenerator,
    CandidateGenerator as CandidateGenerator,
    EarlyExitCandidateGenerator as EarlyExitCandidateGenerator,
    PromptLookupCandidateGenerator as PromptLookupCandidateGenerator,
)
from asyncgen.generation.stopping.criteria import (
    ConfidenceCriteria as ConfidenceCriteria,
    EosTokenCriteria as EosTokenCriteria,
    MaxLengthCriteria as MaxLengthCriteria,
    MaxTimeCriteria as MaxTimeCriteria,
    StoppingCriteria as StoppingCriteria,
    StoppingCriteriaList as StoppingCriteriaList,
    StopStringCriteria as StopStringCriteria,
)
from asyncgen.generation.strategies.beam_scorers.base import (
    BeamHypotheses as BeamHypotheses,
    BeamScorer as BeamScorer,
)
from asyncgen.generation.strategies.beam_scorers.search import BeamSearchScorer as BeamSearchScorer
from asyncgen.generation.strategies.beam_scorers.constrained import (
    ConstrainedBeamSearchScorer as ConstrainedBeamSearchScorer,
)
from asyncgen.generation.strategies.constraints import (
    Constraint as Constraint,
    ConstraintListState as ConstraintListState,
    DisjunctiveConstraint as DisjunctiveConstraint,
    PhrasalConstraint as PhrasalConstraint,
)
from asyncgen.generation.watermarking.bayes import (
    BayesianDetectorConfig as BayesianDetectorConfig,
    BayesianDetectorModel as BayesianDetectorModel,
    BayesianWatermarkDetectorModelOutput as BayesianWatermarkDetectorModelOutput,
)
from asyncgen.generation.watermarking.config import BaseWatermarkingConfig as BaseWatermarkingConfig
from asyncgen.generation.watermarking.detector import (
    SynthIDTextWatermarkDetector as SynthIDTextWatermarkDetector,
    WatermarkDetector as WatermarkDetector,
    WatermarkDetectorOutput as WatermarkDetectorOutput,
)
from asyncgen.generation.watermarking.greenlist import (
    WatermarkLogitsProcessor as WatermarkLogitsProcessor,
    WatermarkingConfig as WatermarkingConfig,
)
from asyncgen.generation.watermarking.synthid import (
    SynthIDTextWatermarkLogitsProcessor as SynthIDTextWatermarkLogitsProcessor,
    SynthIDTextWatermarkingConfig as SynthIDTextWatermarkingConfig,
)
from asyncgen.families.config import (
    ModelConfig as ModelConfig,
    PretrainedConfig as PretrainedConfig,
    PreTrainedConfig as PreTrainedConfig,
)
from asyncgen.native import cpu_kernels as cpu_kernels
from asyncgen.reference.pipelines import (
    TextGenerationPipeline as TextGenerationPipeline,
    pipeline as pipeline,
)
from asyncgen.reference.load_model import PreTrainedModel as PreTrainedModel
from asyncgen.reference.seq2seq_model import Seq2SeqModel as Seq2SeqModel
from asyncgen.structured.answer_reader import AnswerReader as AnswerReader
from asyncgen.text.tokenizer import Tokenizer as Tokenizer
from asyncgen.types import (
    FinishReason as FinishReason,
    Message as Message,
    Prompt as Prompt,
    Sample as Sample,
    Timing as Timing,
    TokenLogprob as TokenLogprob,
    ToolCall as ToolCall,
    ToolCallDelta as ToolCallDelta,
    TopLogprob as TopLogprob,
    Usage as Usage,
)
from streamers import BaseStreamer as BaseStreamer

# Modules in which code for the reference looks for names.
from asyncgen import generation as generation
from asyncgen.reference.paths import (
    cache_utils as cache_utils,
    configuration_utils as configuration_utils,
    modeling_outputs as modeling_outputs,
    modeling_utils as modeling_utils,
    utils as utils,
)

# What people know each family by; the families declare these names (`asyncgen.families.arch`).
class AfmoeForCausalLM(PreTrainedModel): ...
class ApertusForCausalLM(PreTrainedModel): ...
class ArceeForCausalLM(PreTrainedModel): ...
class AriaTextForCausalLM(PreTrainedModel): ...
class BambaForCausalLM(PreTrainedModel): ...
class BioGptForCausalLM(PreTrainedModel): ...
class BitNetForCausalLM(PreTrainedModel): ...
class BloomForCausalLM(PreTrainedModel): ...
class CodeGenForCausalLM(PreTrainedModel): ...
class Cohere2ForCausalLM(PreTrainedModel): ...
class Cohere2MoeForCausalLM(PreTrainedModel): ...
class CohereForCausalLM(PreTrainedModel): ...
class CwmForCausalLM(PreTrainedModel): ...
class DeepseekV2ForCausalLM(PreTrainedModel): ...
class DeepseekV3ForCausalLM(PreTrainedModel): ...
class DbrxForCausalLM(PreTrainedModel): ...
class DiffLlamaForCausalLM(PreTrainedModel): ...
class Dots1ForCausalLM(PreTrainedModel): ...
class Ernie4_5ForCausalLM(PreTrainedModel): ...
class Ernie4_5_MoeForCausalLM(PreTrainedModel): ...
class Exaone4ForCausalLM(PreTrainedModel): ...
class ExaoneMoeForCausalLM(PreTrainedModel): ...
class FalconForCausalLM(PreTrainedModel): ...
class FalconH1ForCausalLM(PreTrainedModel): ...
class FalconMambaForCausalLM(PreTrainedModel): ...
class FlexOlmoForCausalLM(PreTrainedModel): ...
class FlintForCausalLM(PreTrainedModel): ...
class GPT2LMHeadModel(PreTrainedModel): ...
class GPTBigCodeForCausalLM(PreTrainedModel): ...
class GPTJForCausalLM(PreTrainedModel): ...
class GPTNeoForCausalLM(PreTrainedModel): ...
class GPTNeoXForCausalLM(PreTrainedModel): ...
class Gemma2ForCausalLM(PreTrainedModel): ...
class Gemma3ForCausalLM(PreTrainedModel): ...
class Gemma3nForCausalLM(PreTrainedModel): ...
class Gemma4ForCausalLM(PreTrainedModel): ...
class Gemma4UnifiedForCausalLM(PreTrainedModel): ...
class GemmaForCausalLM(PreTrainedModel): ...
class Glm4ForCausalLM(PreTrainedModel): ...
class Glm4MoeForCausalLM(PreTrainedModel): ...
class Glm4MoeLiteForCausalLM(PreTrainedModel): ...
class GlmForCausalLM(PreTrainedModel): ...
class GptOssForCausalLM(PreTrainedModel): ...
class GraniteForCausalLM(PreTrainedModel): ...
class GraniteMoeForCausalLM(PreTrainedModel): ...
class GraniteMoeHybridForCausalLM(PreTrainedModel): ...
class GraniteMoeSWAForCausalLM(PreTrainedModel): ...
class GraniteMoeSharedForCausalLM(PreTrainedModel): ...
class GraniteSWAForCausalLM(PreTrainedModel): ...
class HYV3ForCausalLM(PreTrainedModel): ...
class HeliumForCausalLM(PreTrainedModel): ...
class HunYuanDenseV1ForCausalLM(PreTrainedModel): ...
class HunYuanMoEV1ForCausalLM(PreTrainedModel): ...
class HyperCLOVAXForCausalLM(PreTrainedModel): ...
class IQuestCoderForCausalLM(PreTrainedModel): ...
class InternLM3ForCausalLM(PreTrainedModel): ...
class Jais2ForCausalLM(PreTrainedModel): ...
class JambaForCausalLM(PreTrainedModel): ...
class KimiLinearForCausalLM(PreTrainedModel): ...
class Kolibri1ForCausalLM(PreTrainedModel): ...
class Lfm2ForCausalLM(PreTrainedModel): ...
class Lfm2MoeForCausalLM(PreTrainedModel): ...
class Lfm3ForCausalLM(PreTrainedModel): ...
class Llama4ForCausalLM(PreTrainedModel): ...
class LlamaForCausalLM(PreTrainedModel): ...
class Mamba2ForCausalLM(PreTrainedModel): ...
class MambaForCausalLM(PreTrainedModel): ...
class MellumForCausalLM(PreTrainedModel): ...
class MiMoV2FlashForCausalLM(PreTrainedModel): ...
class MiniMaxForCausalLM(PreTrainedModel): ...
class MiniMaxM2ForCausalLM(PreTrainedModel): ...
class Ministral3ForCausalLM(PreTrainedModel): ...
class Mistral4ForCausalLM(PreTrainedModel): ...
class MiniCPM3ForCausalLM(PreTrainedModel): ...
class MinistralForCausalLM(PreTrainedModel): ...
class MistralForCausalLM(PreTrainedModel): ...
class MixtralForCausalLM(PreTrainedModel): ...
class MptForCausalLM(PreTrainedModel): ...
class NanoChatForCausalLM(PreTrainedModel): ...
class NemotronForCausalLM(PreTrainedModel): ...
class NemotronHForCausalLM(PreTrainedModel): ...
class OPTForCausalLM(PreTrainedModel): ...
class Olmo2ForCausalLM(PreTrainedModel): ...
class Olmo3ForCausalLM(PreTrainedModel): ...
class OlmoForCausalLM(PreTrainedModel): ...
class OlmoHybridForCausalLM(PreTrainedModel): ...
class OlmoeForCausalLM(PreTrainedModel): ...
class PersimmonForCausalLM(PreTrainedModel): ...
class Phi3ForCausalLM(PreTrainedModel): ...
class PhiForCausalLM(PreTrainedModel): ...
class PhimoeForCausalLM(PreTrainedModel): ...
class Qwen2ForCausalLM(PreTrainedModel): ...
class Qwen2MoeForCausalLM(PreTrainedModel): ...
class Qwen3ForCausalLM(PreTrainedModel): ...
class Qwen3MoeForCausalLM(PreTrainedModel): ...
class Qwen3NextForCausalLM(PreTrainedModel): ...
class Qwen3_5ForCausalLM(PreTrainedModel): ...
class Qwen3_5MoeForCausalLM(PreTrainedModel): ...
class RecurrentGemmaForCausalLM(PreTrainedModel): ...
class SeedOssForCausalLM(PreTrainedModel): ...
class SmolLM3ForCausalLM(PreTrainedModel): ...
class SolarOpenForCausalLM(PreTrainedModel): ...
class StableLmForCausalLM(PreTrainedModel): ...
class Starcoder2ForCausalLM(PreTrainedModel): ...
class T5ForConditionalGeneration(Seq2SeqModel): ...
class MT5ForConditionalGeneration(Seq2SeqModel): ...
class VaultGemmaForCausalLM(PreTrainedModel): ...
class XGLMForCausalLM(PreTrainedModel): ...
class YoutuForCausalLM(PreTrainedModel): ...
class Zamba2ForCausalLM(PreTrainedModel): ...
class CohereTokenizer(PreTrainedTokenizerFast): ...
class CohereTokenizerFast(PreTrainedTokenizerFast): ...
class GPT2Tokenizer(PreTrainedTokenizerFast): ...
class GPT2TokenizerFast(PreTrainedTokenizerFast): ...
class GPTNeoXTokenizer(PreTrainedTokenizerFast): ...
class GPTNeoXTokenizerFast(PreTrainedTokenizerFast): ...
class GemmaTokenizer(PreTrainedTokenizerFast): ...
class GemmaTokenizerFast(PreTrainedTokenizerFast): ...
class LlamaTokenizer(PreTrainedTokenizerFast): ...
class LlamaTokenizerFast(PreTrainedTokenizerFast): ...
class Qwen2Tokenizer(PreTrainedTokenizerFast): ...
class Qwen2TokenizerFast(PreTrainedTokenizerFast): ...
class T5Tokenizer(PreTrainedTokenizerFast): ...
class T5TokenizerFast(PreTrainedTokenizerFast): ...

def _import(name: str, package: str = ...) -> object: ...
def _modules(package: str = ...) -> dict[str, str]: ...
