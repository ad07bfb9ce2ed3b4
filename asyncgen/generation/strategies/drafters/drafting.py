"""From a configuration to the drafter of assisted generation, and what cannot be combined with it.

Three ways to draft, and if several are asked for the first wins, as in the reference: the model's
own first layers, a look-up in the prompt, an assistant model.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from asyncgen.cache.caches import Cache, DynamicCache
from asyncgen.cache.encoder_decoder import EncoderDecoderCache
from asyncgen.cache.quantized.quantized_cache import QuantizedCache
from asyncgen.errors import InvalidRequestError, InWords
from asyncgen.generation.config.generation_config import GenerationConfig, own_copy
from asyncgen.generation.config.parameters import DEFAULTS, DRAFTING, STATIC_CACHES
from asyncgen.generation.generate.plan_parts import make_processors
from asyncgen.generation.logits.base import LogitsProcessorList, Stage, processor_classes
from asyncgen.generation.logits.build import eos_ids
from asyncgen.generation.strategies.drafters.assistant import (
    AssistantDrafter,
    AssistantForward,
    EarlyExit,
)
from asyncgen.generation.strategies.drafters.drafter import ConfidenceThreshold, DraftSchedule
from asyncgen.generation.strategies.drafters.lookup import LookupDrafter
from asyncgen.generation.strategies.drafters.universal import (
    SharedTokens,
    TokenTranslator,
    UniversalDrafter,
)
from asyncgen.runtime.user_code import run_user_code

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.generation.generate.plan_parts import GenerativeModel
    from asyncgen.generation.strategies.drafters.universal import TextTokenizer
    from asyncgen.generation.strategies.step import Drafter, Plan


@dataclass(frozen=True, slots=True)
class Assistance:
    """Assistant model and tokenizers, beside the configuration.

    Attributes:
        model: The draft model, if there is one.
        tokenizer: The deciding model's tokenizer, for a draft model with another one.
        assistant_tokenizer: The draft model's tokenizer, if it is another one.
    """

    model: GenerativeModel | None = None
    tokenizer: TextTokenizer | None = None
    assistant_tokenizer: TextTokenizer | None = None


def check_assistance(
    model: GenerativeModel,
    config: GenerationConfig,
    assistance: Assistance,
    *,
    rows: int,
    cache: Cache | None = None,
) -> None:
    """Refuse what assisted generation cannot do.

    Args:
        model: The deciding model.
        config: Complete configuration.
        assistance: Who helps.
        rows: Rows of the batch.
        cache: The cache to continue, if there is one.

    Raises:
        InvalidRequestError: Names the parameter.
    """
    returned = config.num_return_sequences or 1
    if returned > 1:
        raise InvalidRequestError(
            "num_return_sequences", returned, "must be 1 for assisted generation"
        )
    if rows > 1:
        raise InvalidRequestError(
            "input_ids",
            InWords(f"a batch of {rows}"),
            "assisted generation takes one row at a time",
        )
    if config.use_cache is False:
        raise InvalidRequestError("use_cache", False, "assisted generation needs the cache")
    name = config.cache_implementation
    if name in (*STATIC_CACHES, "quantized") or not _can_crop(cache):
        raise InvalidRequestError(
            "cache_implementation" if cache is None else "past_key_values",
            name if cache is None else type(cache).__name__,
            "assisted generation takes cached positions back, and those before must be what they "
            "were, so the cache must be dynamic",
        )
    if config.assistant_early_exit is not None:
        _check_depth(config.assistant_early_exit, model.core.config.num_hidden_layers)
    elif config.prompt_lookup_num_tokens is None:
        _check_model(model, assistance)


def make_drafter(
    model: GenerativeModel, plan: Plan, assistance: Assistance, *, remember: bool
) -> Drafter:
    """Make what drafts for a plan.

    Args:
        model: The deciding model.
        plan: What will be decoded; checked by :func:`check_assistance`.
        assistance: Who helps.
        remember: Whether what was learnt is written to the draft model's ``generation_config``,
            where the next call finds it.

    Raises:
        InvalidRequestError: A value that is not allowed.
    """
    config = plan.config
    if config.assistant_early_exit is not None:
        exits = EarlyExit(replace(plan, record=None), config.assistant_early_exit)
        processors = _draft_processors(model, plan, config)
        return _assistant_drafter(plan, model, exits, processors, eos_ids(config), remember=False)
    if config.prompt_lookup_num_tokens is not None:
        size = config.max_matching_ngram_size
        return LookupDrafter(
            config.prompt_lookup_num_tokens, 2 if size is None else size, eos_ids(config)
        )
    assert assistance.model is not None
    forward = AssistantForward(_draft_plan(plan, assistance.model))
    if not _has_other_vocabulary(model, assistance):
        processors = _draft_processors(model, plan, config)
        ends = eos_ids(config)
        return _assistant_drafter(
            plan, assistance.model, forward, processors, ends, remember=remember
        )
    return _universal_drafter(model, plan, assistance, remember=remember)


def _assistant_drafter(
    plan: Plan,
    assistant: GenerativeModel,
    forward: EarlyExit | AssistantForward,
    processors: LogitsProcessorList,
    ends: list[int],
    *,
    remember: bool,
) -> AssistantDrafter:
    own = assistant.generation_config
    plain = _plain_config(assistant)
    settings = {name: _setting(name, plan.config, plain) for name in DRAFTING}
    schedule = DraftSchedule(
        settings["num_assistant_tokens"], settings["num_assistant_tokens_schedule"]
    )
    return AssistantDrafter(
        forward,
        schedule,
        ConfidenceThreshold(settings["assistant_confidence_threshold"]),
        processors=processors,
        draw=plan.draw if plan.config.do_sample else None,
        eos_token_ids=ends,
        prefill_chunk=plan.prefill_chunk,
        position_limit=assistant.core.config.position_limit,
        memory=own if remember else None,
    )


def _universal_drafter(
    model: GenerativeModel, plan: Plan, assistance: Assistance, *, remember: bool
) -> Drafter:
    """A draft model with another tokenizer."""
    config, assistant = plan.config, assistance.model
    target, other = assistance.tokenizer, assistance.assistant_tokenizer
    assert assistant is not None and target is not None and other is not None
    targets, own_ends = eos_ids(config), eos_ids(_plain_config(assistant))
    ends: Mapping[int, int] = dict.fromkeys(own_ends, targets[0]) if targets else {}
    # Ids mean nothing to the other vocabulary; temperature and the like mean the same.
    names = [kind.definition.parameter for kind in processor_classes(Stage.WARPER)]
    fields = {name: getattr(config, name) for name in names if hasattr(config, name)}
    sampling = type(config)(do_sample=config.do_sample, **fields)
    processors = _draft_processors(model, plan, sampling)
    shared = None
    if config.do_sample:
        shared = SharedTokens(
            target,
            other,
            target_size=model.core.config.vocab_size,
            assistant_size=assistant.core.config.vocab_size,
            ends=ends,
            device=plan.input_ids.device,
        )
        processors = LogitsProcessorList([shared, *processors])
    forward = AssistantForward(_draft_plan(plan, assistant, padded=False))
    drafter = _assistant_drafter(plan, assistant, forward, processors, own_ends, remember=remember)
    names = ["target_lookbehind", "assistant_lookbehind"]
    translator = TokenTranslator(target, other, **{name: _setting(name, config) for name in names})
    return UniversalDrafter(drafter, translator, shared=shared, ends=ends)


def _draft_plan(plan: Plan, assistant: GenerativeModel, *, padded: bool = True) -> Plan:
    """The same rows for the draft model, with a cache and an encoder pass of its own."""
    encoder = None
    cache: Cache = DynamicCache()
    if plan.encoder is not None:
        encoder = replace(plan.encoder, encoded=None)
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    mask = plan.attention_mask if padded and plan.offset >= 0 else None
    return replace(
        plan,
        core=assistant.core,
        cache=cache,
        encoder=encoder,
        # It reads the ids alone, and guesses from them as well as it can.
        attention_mask=None if mask is None else mask[:, plan.offset :],
        record=None,
        inputs=None,
        call=None,
    )


def _draft_processors(
    model: GenerativeModel, plan: Plan, config: GenerationConfig
) -> LogitsProcessorList:
    """The configuration's processors once more, for the draft alone.

    Without those that users wrote, which may count their calls, and those that need a model.
    """
    config = copy.deepcopy(config)
    config.guidance_scale = config.watermarking_config = None
    return make_processors(model, config, prompt_length=plan.input_ids.shape[1], tail_only=True)


def _plain_config(model: GenerativeModel) -> GenerationConfig:
    """Return a model's configuration; of a class of a user a copy, whose reading runs no code."""
    config = model.generation_config
    return config if type(config) is GenerationConfig else run_user_code(own_copy, config)


def _setting(name: str, *sources: GenerationConfig) -> Any:
    """A value of the first source that has one, else the documented default."""
    for source in sources:
        value = getattr(source, name, None)
        if value is not None:
            return value
    return DEFAULTS[name]


def _can_crop(cache: Cache | None) -> bool:
    """Return whether positions can be dropped without a change to those before them."""
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    if isinstance(cache, QuantizedCache):
        return False
    is_plain = cache is None or isinstance(cache, DynamicCache)
    return is_plain or (type(cache) is Cache and cache.is_croppable)


def _check_depth(depth: object, layers: int) -> None:
    if isinstance(depth, bool) or not isinstance(depth, int) or not 1 <= depth <= layers:
        raise InvalidRequestError(
            "assistant_early_exit", depth, f"must be a number of layers from 1 to {layers}"
        )


def _check_model(model: GenerativeModel, assistance: Assistance) -> None:
    """Refuse a draft model that cannot draft for this one."""
    assistant = assistance.model
    name = type(assistant).__name__
    if assistant is None or not hasattr(assistant, "core"):
        raise InvalidRequestError("assistant_model", name, "a model of this library")
    if assistant.device != model.device:
        raise InvalidRequestError(
            "assistant_model",
            InWords(f"on {assistant.device}"),
            f"must be where the model is, on {model.device}; move it with `to`",
        )
    same = assistant.core.config.vocab_size == model.core.config.vocab_size
    given = assistance.tokenizer is not None and assistance.assistant_tokenizer is not None
    if not same and not given:
        raise InvalidRequestError(
            "assistant_model",
            InWords(f"a vocabulary of {assistant.core.config.vocab_size}"),
            f"the model has one of {model.core.config.vocab_size}, so the tokenizers differ; "
            "pass `tokenizer` and `assistant_tokenizer`",
        )
    if assistant.config.is_encoder_decoder != model.config.is_encoder_decoder or (
        model.config.is_encoder_decoder and _has_other_vocabulary(model, assistance)
    ):
        raise InvalidRequestError(
            "assistant_model",
            name,
            "of an encoder-decoder model must be one as well, with the same tokenizer, and of any "
            "other model none",
        )
    if assistance.assistant_tokenizer is not None and not _has_other_vocabulary(model, assistance):
        raise InvalidRequestError(
            "assistant_tokenizer",
            type(assistance.assistant_tokenizer).__name__,
            "not required where model and assistant have the same tokenizer; leave it out",
        )


def _has_other_vocabulary(model: GenerativeModel, assistance: Assistance) -> bool:
    """Return whether the draft model has another vocabulary."""
    target, other = assistance.tokenizer, assistance.assistant_tokenizer
    if other is None or target is None:
        return False
    assistant = cast("GenerativeModel", assistance.model)
    if assistant.core.config.vocab_size != model.core.config.vocab_size:
        return True
    return dict(target.get_vocab()) != dict(other.get_vocab())
