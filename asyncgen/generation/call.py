"""One call of ``model.generate``: arguments in, a plan out, the plan drained.

Keeps the reference's rules for arguments: which default wins, how lengths are counted, what a
missing attention mask means, and which keyword is an error.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.custom import CustomMethod, custom_strategy
from asyncgen.generation.drafting import Assistance, make_drafter
from asyncgen.generation.fields import DRAFTING, check_supported
from asyncgen.generation.healing import Healing, plan_healing
from asyncgen.generation.logits import Guidance, build_logits_processors, raise_named
from asyncgen.generation.mode_checks import Situation, check_mode
from asyncgen.generation.modes import GenerationMode
from asyncgen.generation.prepare import eos_ids, make_plan
from asyncgen.generation.prompts import DecoderPrompt, check_past, read_prompt
from asyncgen.generation.results import Kept, Result, assemble, make_record
from asyncgen.generation.signatures import own_parameters
from asyncgen.generation.stopping import StoppingCriteriaList, build_stopping_criteria
from asyncgen.generation.strategies import (
    TOKEN_BY_TOKEN,
    Outcome,
    Plan,
    Step,
    Strategy,
    strategy_for,
)
from asyncgen.generation.strategies.ends import Ends
from asyncgen.generation.strategies.healed import healed
from asyncgen.generation.strategies.sampling import multinomial_draw

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from asyncgen.generation.logits import LogitsProcessorList
    from asyncgen.generation.prepare import GenerativeModel
    from streamers import BaseStreamer

__all__ = ["Call", "prepare_call", "run_call"]

_log = logging.getLogger("asyncgen.generation")
_MODEL_KWARGS = frozenset(
    {"assistant_tokenizer", "attention_mask", "input_ids", "past_key_values", "tokenizer"}
)
_ENCODER_KWARGS = frozenset({"encoder_outputs", "decoder_input_ids", "decoder_attention_mask"})
_IGNORED_KWARGS = frozenset({"token_type_ids"})


@dataclass(slots=True)
class Call:
    """A call that is ready to run.

    Attributes:
        plan: What to decode.
        strategy: How.
        config: The complete configuration.
    """

    plan: Plan
    strategy: Strategy
    config: GenerationConfig


def prepare_call(
    model: Any,
    inputs: Tensor | None,
    generation_config: GenerationConfig | None,
    kwargs: dict[str, Any],
    *,
    logits_processor: LogitsProcessorList | None,
    stopping_criteria: StoppingCriteriaList | None,
    streamer: BaseStreamer | None,
    unsupported: Mapping[str, object],
    custom: Callable[..., Any] | None = None,
    negative_prompt_ids: Tensor | None = None,
    negative_prompt_attention_mask: Tensor | None = None,
    assistant_model: GenerativeModel | None = None,
) -> Call:
    """Check and lay out a call; nothing is computed yet.

    Args:
        model: Has ``core``, ``config``, ``generation_config``, ``device`` and ``dtype``.
        inputs: Prompt ids ``[B, S]`` or ``None``.
        generation_config: Base configuration or ``None``.
        kwargs: The caller's keywords.
        logits_processor: The caller's processors.
        stopping_criteria: The caller's criteria.
        streamer: Its ``cancelled`` flag, if it has one, ends the call.
        unsupported: Arguments whose feature does not exist yet, by name.
        custom: A decoding method that the caller wrote, in place of a strategy.
        negative_prompt_ids: Prompts of the unguided branch, ``[B, S]``.
        negative_prompt_attention_mask: ``[B, S]``, zero at padding.
        assistant_model: Drafts for assisted generation.

    Raises:
        ValueError: As the reference does for invalid arguments.
        InvalidRequestError: A documented feature that does not exist yet.
    """
    for name, value in unsupported.items():
        if value is not None:
            raise InvalidRequestError(name, value, "not supported yet")
    own_names = frozenset[str]() if custom is None else own_parameters(custom)
    config, model_kwargs = _resolve_config(model, generation_config, kwargs, own_names)
    mode = config.get_generation_mode(assistant_model)
    strategy = strategy_for(mode) if custom is None else None
    prompt = read_prompt(model, inputs, model_kwargs, config)
    assistance = Assistance(
        assistant_model, model_kwargs.get("tokenizer"), model_kwargs.get("assistant_tokenizer")
    )
    input_ids, mask, encoder = prompt.input_ids, prompt.attention_mask, prompt.encoder
    past = check_past(model_kwargs.get("past_key_values"), prompt, config)
    check_mode(mode, Situation(model, config, len(input_ids), past, assistance))
    _resolve_pad(config)
    if config.token_healing:
        if strategy is None:
            raise InvalidRequestError("token_healing", True, "not together with `custom_generate`")
        healing, input_ids, mask = _heal(model, model_kwargs, prompt, config)
        bias = healing.bias.repeat_interleave(config.num_return_sequences or 1, dim=0)
        strategy = partial(healed, strategy=strategy, bias=bias)
    _resolve_length(config, input_ids.shape[1], model.config)
    samples = config.num_return_sequences or 1
    if custom is not None:
        samples = max(samples, config.num_beams or 1)
    input_ids = input_ids.repeat_interleave(samples, dim=0)
    mask = None if mask is None else mask.repeat_interleave(samples, dim=0)
    eos = eos_ids(config)
    criteria = build_stopping_criteria(
        config,
        tokenizer=model_kwargs.get("tokenizer"),
        max_position_embeddings=getattr(model.config, "max_position_embeddings", None),
        user_criteria=stopping_criteria,
    )
    if streamer is not None and hasattr(streamer, "cancelled"):
        criteria = StoppingCriteriaList([*criteria, streamer.cancelled])
    processors = build_logits_processors(
        config,
        prompt_length=input_ids.shape[1],
        eos_token_ids=torch.tensor(eos, device=model.device) if eos else None,
        device=model.device,
        user_processors=logits_processor,
        padding=None if mask is None else (mask == 0).sum(dim=1),
        encoder_input_ids=prompt.input_ids if encoder is None else encoder.input_ids,
        vocab_size=model.config.vocab_size,
        guidance=_guidance(
            model, config, negative_prompt_ids, negative_prompt_attention_mask, samples
        ),
        append_only=custom is None and strategy in TOKEN_BY_TOKEN,
    )
    if custom is not None:
        strategy = custom_strategy(
            CustomMethod(
                custom,
                model,
                processors,
                criteria,
                extras={name: model_kwargs[name] for name in own_names & model_kwargs.keys()},
                emit=None if streamer is None else partial(_stream, streamer=streamer),
            )
        )
    assert strategy is not None
    plan = make_plan(
        model,
        input_ids,
        config=config,
        processors=processors,
        ends=Ends(criteria),
        draw=multinomial_draw,
        attention_mask=mask,
        cache=past,
        prefill_chunk=config.prefill_chunk_size,
        encoder=encoder,
        record=make_record(config, model_kwargs.get("encoder_outputs")),
    )
    if mode is GenerationMode.ASSISTED_GENERATION:
        plan.drafter = make_drafter(model, plan, assistance, remember=True)
    return Call(plan, strategy, config)


def run_call(call: Call, streamer: BaseStreamer | None) -> Result:
    """Drain a call's steps, hand the tokens to the streamer, assemble the documented output.

    Raises:
        Exception: Whatever a processor, a criterion, the model or the streamer raised; the
            streamer's ``fail`` is told before, if it has one.
    """
    try:
        return _drain(call, streamer)
    except BaseException as error:
        if streamer is not None and hasattr(streamer, "fail"):
            streamer.fail(error)
        raise


def _drain(call: Call, streamer: BaseStreamer | None) -> Result:
    config, plan = call.config, call.plan
    if streamer is not None and not config.token_healing:
        streamer.put(plan.input_ids.cpu())
    steps, kept = call.strategy(plan), Kept(config, plan.record)
    while True:
        try:
            step = next(steps)
        except StopIteration as end:
            outcome: Outcome = end.value
            break
        except FloatingPointError as error:
            raise_named(plan.processors, error)
        kept.add(step)
        if streamer is not None:
            _stream(step, streamer)
    if streamer is not None:
        streamer.end()
    return assemble(plan, outcome, kept)


def _stream(step: Step, streamer: BaseStreamer) -> None:
    """Hand the ids of a step to a streamer, in the documented shapes."""
    if step.prompt is not None:
        streamer.put(step.prompt.cpu())
    elif step.tokens is not None:
        streamer.put(step.tokens.cpu())
    elif len(step.token_ids) == 1 and step.token_ids[0]:
        streamer.put(torch.tensor(step.token_ids[0]))


def _resolve_config(
    model: Any,
    generation_config: GenerationConfig | None,
    kwargs: dict[str, Any],
    own_names: frozenset[str] = frozenset(),
) -> tuple[GenerationConfig, dict[str, Any]]:
    """Keywords over the given config over the model's over the documented defaults.

    ``own_names`` are further keywords that a method of the caller's takes.
    """
    own = model.generation_config
    config = copy.deepcopy(own if generation_config is None else generation_config)
    rest = config.update(**kwargs)
    config.update(defaults_only=True, **own.to_dict())
    defaults = GenerationConfig._get_default_generation_params()
    for name in ("max_length", *DRAFTING):  # see _resolve_length, and make_drafter
        del defaults[name]
    config.update(defaults_only=True, **defaults)
    config.validate(user_set_attributes=kwargs.keys())
    check_supported(config)
    if config.prefill_chunk_size is not None and config.use_cache is False:
        allowed = "needs a cache to be read in chunks; set `use_cache=True` or unset it"
        raise InvalidRequestError("prefill_chunk_size", config.prefill_chunk_size, allowed)
    known = _MODEL_KWARGS | (_ENCODER_KWARGS if model.config.is_encoder_decoder else frozenset())
    unknown = sorted(rest.keys() - known - _IGNORED_KWARGS - own_names)
    if unknown:
        raise ValueError(
            f"the following `model_kwargs` are not used by the model: {unknown} (a typo in the "
            "generate arguments shows up here as well)"
        )
    return config, rest


def _guidance(
    model: Any,
    config: GenerationConfig,
    negative_prompt_ids: Tensor | None,
    mask: Tensor | None,
    samples: int,
) -> Guidance | None:
    """What classifier-free guidance computes with, one row a sample; not with an encoder."""
    if model.config.is_encoder_decoder:
        return None
    if negative_prompt_ids is not None and config.guidance_scale in (None, 1):
        _log.warning("`negative_prompt_ids` has no effect without `guidance_scale`")
    return Guidance(
        model,
        *(
            None if each is None else torch.as_tensor(each).repeat_interleave(samples, dim=0)
            for each in (negative_prompt_ids, mask)
        ),
    )


def _heal(
    model: Any, model_kwargs: dict[str, Any], prompt: DecoderPrompt, config: GenerationConfig
) -> tuple[Healing, Tensor, Tensor | None]:
    """What token healing chooses among, and the prompts as it wants them, padded anew."""
    if model_kwargs.get("past_key_values") is not None or prompt.encoder is not None:
        raise InvalidRequestError(
            "token_healing",
            True,
            "changes the prompt, so it cannot continue `past_key_values`, and an encoder-decoder "
            "model has none",
        )
    ids, mask = prompt.input_ids, prompt.attention_mask
    kept = torch.ones_like(ids) if mask is None else mask
    rows = [row[keep].tolist() for row, keep in zip(ids, kept.bool(), strict=True)]
    healing = plan_healing(model_kwargs.get("tokenizer"), rows, model.core.config.vocab_size)
    width = max(map(len, healing.rows))
    pad = 0 if config.pad_token_id is None else config.pad_token_id
    padded = [[pad] * (width - len(row)) + row for row in healing.rows]
    real = [[0] * (width - len(row)) + [1] * len(row) for row in healing.rows]
    found = torch.tensor(real, device=ids.device)
    return healing, ids.new_tensor(padded), None if bool(found.all()) else found


def _resolve_pad(config: GenerationConfig) -> None:
    """Ended rows need something to be filled with."""
    eos = eos_ids(config)
    if config.pad_token_id is None and eos:
        _log.warning(
            "setting `pad_token_id` to `eos_token_id` (%d) for open-end generation", eos[0]
        )
        config.pad_token_id = eos[0]


def _resolve_length(config: GenerationConfig, prompt_length: int, model_config: Any) -> None:
    """Count lengths as the reference does: those of new tokens win, 20 are the default."""
    if config.max_new_tokens is not None:
        if config.max_length is not None:
            _log.warning(
                "both `max_new_tokens` (=%d) and `max_length` (=%d) are set; `max_new_tokens` "
                "takes precedence",
                config.max_new_tokens,
                config.max_length,
            )
        config.max_length = prompt_length + config.max_new_tokens
    elif config.max_length is None:
        config.max_length = prompt_length + 20
        context = getattr(model_config, "max_position_embeddings", None)
        if context is not None and prompt_length < context:
            config.max_length = min(config.max_length, context)
    if config.min_new_tokens is not None:
        config.min_length = prompt_length + config.min_new_tokens
    if prompt_length >= config.max_length:
        raise ValueError(
            f"`max_length` is {config.max_length}, but the prompt has {prompt_length} tokens "
            "already; increase `max_length` or, better, set `max_new_tokens`"
        )
