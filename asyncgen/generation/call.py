"""One call of ``model.generate``: arguments in, a plan out, the plan drained.

Keeps the reference's rules for arguments: which default wins, how lengths are counted, what a
missing attention mask means, and which keyword is an error.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.beam_checks import check_beams
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.feed import Feed
from asyncgen.generation.fields import check_supported
from asyncgen.generation.logits import build_logits_processors
from asyncgen.generation.prepare import eos_ids, make_plan, rows_of_prompt
from asyncgen.generation.prompts import check_past, read_prompt
from asyncgen.generation.results import Kept, Result, assemble, make_record
from asyncgen.generation.stopping import StoppingCriteriaList, build_stopping_criteria
from asyncgen.generation.strategies import Outcome, Plan, Strategy, strategy_for
from asyncgen.generation.strategies.ends import Ends
from asyncgen.generation.strategies.sampling import multinomial_draw

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from asyncgen.generation.logits import LogitsProcessorList
    from streamers import BaseStreamer

__all__ = ["Call", "prepare_call", "run_call"]

_log = logging.getLogger("asyncgen.generation")
_MODEL_KWARGS = frozenset({"attention_mask", "input_ids", "past_key_values", "tokenizer"})
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
    prefix_allowed_tokens_fn: Callable[[int, Tensor], list[int]] | None = None,
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
        prefix_allowed_tokens_fn: The caller's function of that name.

    Raises:
        ValueError: As the reference does for invalid arguments.
        InvalidRequestError: A documented feature that does not exist yet.
    """
    for name, value in unsupported.items():
        if value is not None:
            raise InvalidRequestError(name, value, "not supported yet")
    config, model_kwargs = _resolve_config(model, generation_config, kwargs)
    strategy = strategy_for(config.get_generation_mode())
    prompt = read_prompt(model, inputs, model_kwargs, config)
    input_ids, mask, encoder = prompt.input_ids, prompt.attention_mask, prompt.encoder
    past = check_past(model_kwargs.get("past_key_values"), prompt, config)
    _resolve_pad(config)
    _resolve_length(config, input_ids.shape[1], model.config)
    samples = rows_of_prompt(config)
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
    plan = make_plan(
        model,
        input_ids,
        config=config,
        processors=build_logits_processors(
            config,
            prompt_length=input_ids.shape[1],
            eos_token_ids=torch.tensor(eos, device=model.device) if eos else None,
            device=model.device,
            user_processors=logits_processor,
            padding=_padding(mask, config),
            encoder_input_ids=input_ids if encoder is None else encoder.input_ids,
            prefix_allowed_tokens_fn=prefix_allowed_tokens_fn,
        ),
        ends=Ends(criteria),
        draw=multinomial_draw,
        attention_mask=mask,
        cache=past,
        prefill_chunk=config.prefill_chunk_size,
        encoder=encoder,
        record=make_record(config, model_kwargs.get("encoder_outputs")),
    )
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
    feed = None
    if streamer is not None:
        copies = (config.num_return_sequences or 1) // rows_of_prompt(config)
        prompts = plan.input_ids.repeat_interleave(copies, dim=0)
        feed = Feed(streamer, prompts, plan.pad_token_id)
    steps, kept = call.strategy(plan), Kept(config, plan.record)
    while True:
        try:
            step = next(steps)
        except StopIteration as end:
            outcome: Outcome = end.value
            break
        kept.add(step)
        if feed is not None:
            feed.step(step)
    if feed is not None:
        feed.end()
    return assemble(plan, outcome, kept)


def _resolve_config(
    model: Any, generation_config: GenerationConfig | None, kwargs: dict[str, Any]
) -> tuple[GenerationConfig, dict[str, Any]]:
    """Keywords over the given config over the model's over the documented defaults."""
    own = model.generation_config
    config = copy.deepcopy(own if generation_config is None else generation_config)
    rest = config.update(**kwargs)
    config.update(defaults_only=True, **own.to_dict())
    defaults = GenerationConfig._get_default_generation_params()
    del defaults["max_length"]  # counts new tokens only; see _resolve_length
    config.update(defaults_only=True, **defaults)
    config.validate(user_set_attributes=kwargs.keys())
    check_supported(config)
    check_beams(config)
    known = _MODEL_KWARGS | (_ENCODER_KWARGS if model.config.is_encoder_decoder else frozenset())
    unknown = sorted(rest.keys() - known - _IGNORED_KWARGS)
    if unknown:
        raise ValueError(
            f"the following `model_kwargs` are not used by the model: {unknown} (a typo in the "
            "generate arguments shows up here as well)"
        )
    return config, rest


def _padding(mask: Tensor | None, config: GenerationConfig) -> Tensor | None:
    """Left padding of each row that processors see at once: all beams, or those of a group."""
    if mask is None:
        return None
    beams = (config.num_beams or 1) // (config.num_beam_groups or 1)
    return (mask == 0).sum(dim=1).repeat_interleave(beams)


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
