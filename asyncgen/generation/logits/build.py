"""From a configuration to the list of processors, in the documented order.

Adding a processor is one row in `PROCESSORS` or `WARPERS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.checks import check_supported
from asyncgen.generation.logits.bans import (
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    NoBadWordsLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
from asyncgen.generation.logits.checked import CheckedProcessors
from asyncgen.generation.logits.diversity import HammingDiversityLogitsProcessor
from asyncgen.generation.logits.filters import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from asyncgen.generation.logits.guidance import (
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
    NoRepeatNGramLogitsProcessor,
)
from asyncgen.generation.logits.penalties import (
    EncoderRepetitionPenaltyLogitsProcessor,
    FrequencyPenaltyLogitsProcessor,
    PresencePenaltyLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)
from asyncgen.generation.logits.prefix import PrefixConstrainedLogitsProcessor
from asyncgen.generation.logits.surprise import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    TopHLogitsWarper,
    TypicalLogitsWarper,
)
from asyncgen.generation.watermarking.config import watermark_from

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor

    from asyncgen.generation.config import GenerationConfig
    from asyncgen.generation.logits.base import LogitsProcessor
    from asyncgen.generation.logits.guidance import Guidance

__all__ = ["PROCESSORS", "WARPERS", "Row", "Setting", "build_logits_processors"]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a builder may look at beside the value of its field.

    Attributes:
        config: All fields.
        prompt_length: Length of the prompt, padding included.
        eos: Ids that end a sequence, int64 [N], or None.
        device: Where scores will be.
        keep: Tokens that every filter must leave; more than one with beams.
        padding: Left padding of each row, int64 [B]; None where nothing is padded.
        encoder_input_ids: What the encoder read, or the prompt of a model without one, int64
            [B, T]; None where there are no ids.
        vocab_size: Tokens of the model; None where it is not known.
        guidance: What classifier-free guidance computes with; None where it cannot.
        tail_only: Whether rows only ever change at their end, as they do not with beams.
        prefix_allowed_tokens_fn: The user's function of that name, or None.
    """

    config: GenerationConfig
    prompt_length: int
    eos: Tensor | None
    device: str | torch.device
    keep: int
    padding: Tensor | None = None
    encoder_input_ids: Tensor | None = None
    vocab_size: int | None = None
    guidance: Guidance | None = None
    tail_only: bool = False
    prefix_allowed_tokens_fn: Callable[[int, Tensor], list[int]] | None = None

    def value(self, name: str) -> Any:
        """Return what was given under this name, a field or an argument."""
        return getattr(self if name == "prefix_allowed_tokens_fn" else self.config, name)

    @property
    def rows_together(self) -> int:
        """Return how many rows of one prompt are processed in one call."""
        return (self.config.num_beams or 1) // (self.config.num_beam_groups or 1)

    @property
    def ends(self) -> Tensor:
        """Return the ids that end a sequence, for rows that are left out without any."""
        assert self.eos is not None
        return self.eos


@dataclass(frozen=True, slots=True)
class Row:
    """How one field becomes a processor.

    Attributes:
        field: Name of the field, or of the argument of `generate`.
        is_on: Whether a value that is not None asks for the processor.
        build: Makes it.
        needs_eos: It is left out where no token ends a sequence.
    """

    field: str
    is_on: Callable[[Any], bool]
    build: Callable[[Any, Setting], LogitsProcessor]
    needs_eos: bool = False


def _given(_: object) -> bool:
    return True


def _begin_index(setting: Setting) -> int:
    """Return the length at which the first token that is not forced is generated."""
    forced = setting.prompt_length <= 1 and setting.config.forced_bos_token_id is not None
    return setting.prompt_length + int(forced)


def _max_length(setting: Setting) -> int:
    length = setting.config.max_length
    if length is None:
        allowed = "needs `max_length` or `max_new_tokens`"
        raise InvalidRequestError(
            "forced_eos_token_id", setting.config.forced_eos_token_id, allowed
        )
    return length


def _eos_for_decay(value: Any, setting: Setting) -> Tensor:
    if setting.eos is None:
        allowed = "needs an end token; set `eos_token_id`"
        raise InvalidRequestError("exponential_decay_length_penalty", value, allowed)
    return setting.eos


def _encoder_ids(name: str, value: Any, setting: Setting) -> Tensor:
    if setting.encoder_input_ids is None:
        raise InvalidRequestError(name, value, "needs the token ids of the prompt")
    return setting.encoder_input_ids


def _guided(value: Any, setting: Setting) -> LogitsProcessor:
    guidance = setting.guidance
    if guidance is None:
        raise InvalidRequestError(
            "guidance_scale", value, "needs a decoder-only model that can be called"
        )
    return UnbatchedClassifierFreeGuidanceLogitsProcessor(
        value,
        guidance.model,
        guidance.negative_prompt_ids,
        guidance.negative_prompt_attention_mask,
        setting.config.use_cache,
    )


def _watermark(value: Any, setting: Setting) -> LogitsProcessor:
    if setting.vocab_size is None:
        raise InvalidRequestError("watermarking_config", value, "needs a model's vocabulary size")
    processor: LogitsProcessor = watermark_from(value).construct_processor(
        setting.vocab_size, setting.device
    )
    return processor


def _float(value: Any) -> Any:
    """Let a whole number pass where a float is meant, as JSON writers send them."""
    return float(value) if type(value) is int else value


PROCESSORS = (
    Row("guidance_scale", lambda value: value != 1, _guided),
    Row("sequence_bias", _given, lambda value, _: SequenceBiasLogitsProcessor(value)),
    Row(
        "diversity_penalty",
        lambda value: value > 0.0,
        lambda value, setting: HammingDiversityLogitsProcessor(
            _float(value), setting.config.num_beams or 1, setting.config.num_beam_groups or 1
        ),
    ),
    Row(
        "encoder_repetition_penalty",
        lambda value: value != 1.0,
        lambda value, setting: EncoderRepetitionPenaltyLogitsProcessor(
            _float(value), _encoder_ids("encoder_repetition_penalty", value, setting)
        ),
    ),
    Row(
        "repetition_penalty",
        lambda value: value != 1.0,
        lambda value, setting: RepetitionPenaltyLogitsProcessor(
            _float(value), setting.padding, tail_only=setting.tail_only
        ),
    ),
    Row(
        "no_repeat_ngram_size",
        lambda value: value > 0,
        lambda value, setting: NoRepeatNGramLogitsProcessor(value, tail_only=setting.tail_only),
    ),
    Row(
        "encoder_no_repeat_ngram_size",
        lambda value: value > 0,
        lambda value, setting: EncoderNoRepeatNGramLogitsProcessor(
            value, _encoder_ids("encoder_no_repeat_ngram_size", value, setting)
        ),
    ),
    Row(
        "bad_words_ids",
        _given,
        lambda value, setting: NoBadWordsLogitsProcessor(value, setting.eos),
    ),
    Row(
        "min_length",
        lambda value: value > 0,
        lambda value, setting: MinLengthLogitsProcessor(value, setting.ends, setting.device),
        needs_eos=True,
    ),
    Row(
        "min_new_tokens",
        lambda value: value > 0,
        lambda value, setting: MinNewTokensLengthLogitsProcessor(
            setting.prompt_length, value, setting.ends, setting.device
        ),
        needs_eos=True,
    ),
    Row(
        "prefix_allowed_tokens_fn",
        _given,
        lambda value, setting: PrefixConstrainedLogitsProcessor(value, setting.rows_together),
    ),
    Row("forced_bos_token_id", _given, lambda value, _: ForcedBOSTokenLogitsProcessor(value)),
    Row(
        "forced_eos_token_id",
        _given,
        lambda value, setting: ForcedEOSTokenLogitsProcessor(
            _max_length(setting), value, setting.device
        ),
    ),
    Row("remove_invalid_values", bool, lambda value, _: InfNanRemoveLogitsProcessor()),
    Row(
        "exponential_decay_length_penalty",
        _given,
        lambda value, setting: ExponentialDecayLengthPenalty(
            value, _eos_for_decay(value, setting), setting.prompt_length
        ),
    ),
    Row(
        "suppress_tokens",
        _given,
        lambda value, setting: SuppressTokensLogitsProcessor(value, setting.device),
    ),
    Row(
        "begin_suppress_tokens",
        _given,
        lambda value, setting: SuppressTokensAtBeginLogitsProcessor(
            value, _begin_index(setting), setting.device
        ),
    ),
)
"""Processors of every strategy, in order; those of the user follow them."""

WARPERS = (
    Row(
        "temperature",
        lambda value: value != 1.0,
        lambda value, _: TemperatureLogitsWarper(_float(value)),
    ),
    Row("top_h", _given, lambda value, _: TopHLogitsWarper(value)),
    Row(
        "top_k",
        lambda value: value != 0,
        lambda value, setting: TopKLogitsWarper(value, min_tokens_to_keep=setting.keep),
    ),
    Row(
        "top_p",
        lambda value: value < 1.0,
        lambda value, setting: TopPLogitsWarper(value, min_tokens_to_keep=setting.keep),
    ),
    Row(
        "min_p",
        _given,
        lambda value, setting: MinPLogitsWarper(value, min_tokens_to_keep=setting.keep),
    ),
    Row(
        "typical_p",
        lambda value: value < 1.0,
        lambda value, setting: TypicalLogitsWarper(value, min_tokens_to_keep=setting.keep),
    ),
    Row(
        "epsilon_cutoff",
        lambda value: 0.0 < value < 1.0,
        lambda value, setting: EpsilonLogitsWarper(value, min_tokens_to_keep=setting.keep),
    ),
    Row(
        "eta_cutoff",
        lambda value: 0.0 < value < 1.0,
        lambda value, setting: EtaLogitsWarper(
            value, min_tokens_to_keep=setting.keep, device=setting.device
        ),
    ),
)
"""Filters of the strategies that draw, in order, after the user's processors."""

_LAST = (
    Row("watermarking_config", _given, _watermark),
    Row("renormalize_logits", lambda value: value is True, lambda *_: LogitNormalization()),
)


def build_logits_processors(
    config: GenerationConfig,
    *,
    prompt_length: int,
    eos_token_ids: Tensor | None,
    device: str | torch.device,
    user_processors: Sequence[Callable[..., Any]] | None = None,
    padding: Tensor | None = None,
    encoder_input_ids: Tensor | None = None,
    vocab_size: int | None = None,
    guidance: Guidance | None = None,
    tail_only: bool = False,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    prefix_allowed_tokens_fn: Callable[[int, Tensor], list[int]] | None = None,
) -> CheckedProcessors:
    """Build the processors that a configuration asks for.

    Args:
        config: Complete configuration; what is None is off. ``max_length`` counts the prompt.
        prompt_length: Length of the prompt, padding included.
        eos_token_ids: Ids that end a sequence, int64 [N], or None.
        device: Where scores will be.
        user_processors: Run after the processors and before the filters of sampling.
        padding: Left padding of each row, int64 [B]; padding is no token to penalise.
        encoder_input_ids: What the encoder read, or the prompt of a model without one, [B, T].
        vocab_size: Tokens of the model, which a watermark needs.
        guidance: What classifier-free guidance computes with.
        tail_only: Whether the rows of one generation only ever change at their end. Then what
            looks at past tokens costs the same however many there are.
        presence_penalty: Subtracted from generated tokens once; 0.0 is off.
        frequency_penalty: Subtracted from generated tokens each time; 0.0 is off.
        prefix_allowed_tokens_fn: (index of the prompt, ids [T]) -> ids that may follow.

    Returns:
        The processors in the documented order.

    Raises:
        InvalidRequestError: A field is not supported yet or out of range, or the user passed a
            processor that the configuration makes as well.
    """
    check_supported(config)
    keep = _tokens_to_keep(config, eos_token_ids)
    setting = Setting(
        config,
        prompt_length,
        eos_token_ids,
        device,
        keep,
        padding,
        encoder_input_ids,
        vocab_size,
        guidance,
        tail_only,
        prefix_allowed_tokens_fn,
    )
    built = _build(PROCESSORS, setting)
    built.extend(_counted(presence_penalty, frequency_penalty, setting))
    for processor in user_processors or ():
        if type(processor) in {type(own) for own in built}:
            allowed = (
                "the configuration already makes such a processor; pass either the object or the"
                " configuration field"
            )
            raise InvalidRequestError("logits_processor", type(processor).__name__, allowed)
    built.extend(user_processors or ())
    if config.do_sample:
        built.extend(_build(WARPERS, setting))
    built.extend(_build(_LAST, setting))
    return built


def _build(rows: tuple[Row, ...], setting: Setting) -> CheckedProcessors:
    built = CheckedProcessors()
    for row in rows:
        value = setting.value(row.field)
        if value is None or (row.needs_eos and setting.eos is None):
            continue
        try:
            is_on = row.is_on(value)
        except TypeError as error:
            raise InvalidRequestError(row.field, value, "must be a number") from error
        if is_on:
            built.append(row.build(value, setting))
    return built


def _counted(presence: float, frequency: float, setting: Setting) -> list[LogitsProcessor]:
    """Penalties by count, which are no fields of the documented configuration."""
    kinds = (PresencePenaltyLogitsProcessor, presence), (FrequencyPenaltyLogitsProcessor, frequency)
    return [
        kind(penalty, setting.prompt_length, tail_only=setting.tail_only)
        for kind, penalty in kinds
        if penalty
    ]


def _tokens_to_keep(config: GenerationConfig, eos: Tensor | None) -> int:
    """Tokens that a filter must leave: with beams, one that goes on beside every end token."""
    if (config.num_beams or 1) <= 1:
        return 1
    return 2 if eos is None else len(eos) + 1
