"""One call of ``model.generate``: arguments in, a plan out, the plan drained."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.errors import InvalidRequestError, InWords
from asyncgen.generation.config.modes import GenerationMode
from asyncgen.generation.custom_methods import extra_parameters
from asyncgen.generation.generate.collect import Result, StepOutputs, assemble, make_record
from asyncgen.generation.generate.custom import CustomMethod, custom_strategy, helper_arguments
from asyncgen.generation.generate.defaults import (
    check_direction,
    check_pad,
    resolve_config,
    resolve_length,
    resolve_pad,
    resolve_use_cache,
    take_length,
)
from asyncgen.generation.generate.inputs import read_past
from asyncgen.generation.generate.overridden_model import hook_parameters, is_overridden, model_call
from asyncgen.generation.generate.plan_parts import (
    check_cache,
    make_guidance,
    make_plan,
    make_processors,
)
from asyncgen.generation.generate.prompt_rows import PromptRows, make_prompt_rows
from asyncgen.generation.generate.prompts import DecoderPrompt, read_prompt
from asyncgen.generation.generate.streamer_feed import StreamerFeed
from asyncgen.generation.generate.written_model import WrittenModel, as_written
from asyncgen.generation.logits.checked_processors import raise_named
from asyncgen.generation.stopping.criteria import build_stopping_criteria
from asyncgen.generation.stopping.stop_checks import StopChecks
from asyncgen.generation.strategies import TAIL_ONLY, strategy_for
from asyncgen.generation.strategies.drafters.drafting import Assistance, make_drafter
from asyncgen.generation.strategies.mode_checks import StrategyInputs, check_mode
from asyncgen.generation.strategies.token_by_token import multinomial_draw
from asyncgen.generation.strategies.token_healing import decode_healed
from asyncgen.runtime.streamer_check import check_streamer
from asyncgen.runtime.transfer import given_tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from asyncgen.generation.config import GenerationConfig
    from asyncgen.generation.generate.plan_parts import GenerativeModel
    from asyncgen.generation.logits.base import Guidance, LogitsProcessorList
    from asyncgen.generation.stopping.criteria import StoppingCriteriaList
    from asyncgen.generation.stopping.stop_checks import Told
    from asyncgen.generation.strategies.step import Outcome, Plan, Strategy
    from streamers import BaseStreamer


_log = logging.getLogger("asyncgen.generation")


@dataclass(frozen=True, slots=True)
class GenerateArguments:
    """Arguments of one call of ``generate``.

    Attributes:
        inputs: Prompt ids ``[B, S]`` or ``None``.
        generation_config: Base configuration or ``None``.
        kwargs: All other keywords.
        logits_processor: The caller's processors.
        stopping_criteria: The caller's criteria.
        streamer: Its ``cancelled`` flag, if it has one, ends the call.
        prefix_allowed_tokens_fn: The caller's function of that name.
        negative_prompt_ids: Prompts of the unguided branch, ``[B, S]``.
        negative_prompt_attention_mask: ``[B, S]``, zero at padding.
        assistant_model: Drafts for assisted generation.
        custom: A decoding method that the caller wrote, in place of a strategy.
    """

    inputs: Tensor | None = None
    generation_config: GenerationConfig | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    logits_processor: LogitsProcessorList | None = None
    stopping_criteria: StoppingCriteriaList | None = None
    streamer: BaseStreamer | None = None
    prefix_allowed_tokens_fn: Callable[[int, Tensor], list[int]] | None = None
    negative_prompt_ids: Tensor | None = None
    negative_prompt_attention_mask: Tensor | None = None
    assistant_model: GenerativeModel | None = None
    custom: Callable[..., Any] | None = None


@dataclass(slots=True)
class PreparedCall:
    """A call that is ready to run.

    Attributes:
        plan: What to decode.
        strategy: Decodes it.
    """

    plan: Plan
    strategy: Strategy


def prepare_call(model: Any, given: GenerateArguments) -> PreparedCall:
    """Check and lay out a call; nothing is computed yet.

    Args:
        model: Has ``core``, ``config``, ``generation_config``, ``device`` and ``dtype``.
        given: What it was called with.

    Raises:
        ValueError: As the reference does for invalid arguments.
        InvalidRequestError: A documented feature that does not exist yet.
    """
    if given.streamer is not None:
        check_streamer(given.streamer)
    is_called = given.custom is None and is_overridden(model)
    own_names = hook_parameters(model) if is_called else frozenset[str]()
    if given.custom is not None:
        own_names = extra_parameters(given.custom)
    check_direction(model)
    config, rest = resolve_config(model, given.generation_config, given.kwargs, own_names)
    if given.custom is None and not isinstance(model, WrittenModel):
        _check_autocast(model)
    if isinstance(model, WrittenModel):
        model.check(config, rest)
        if not model.takes_cache:  # every step reads all ids
            config.use_cache = False
    mode = config.get_generation_mode(given.assistant_model)
    if given.kwargs.get("use_cache", getattr(given.generation_config, "use_cache", None)) is None:
        resolve_use_cache(model.config, config, mode, rest.get("past_key_values"))
    past = read_past(rest.get("past_key_values"), config)
    cached = 0 if past is None else past.text_length
    prompt = read_prompt(model, given.inputs, rest, config, cached)
    assistance = Assistance(
        given.assistant_model, rest.get("tokenizer"), rest.get("assistant_tokenizer")
    )
    extras: dict[str, Any] = {}
    if given.custom is None:
        check_mode(mode, StrategyInputs(model, config, len(prompt.input_ids), past, assistance))
    else:
        check_cache(model, config)
        extras = helper_arguments(given.custom, given.assistant_model)
        extras |= {name: rest[name] for name in own_names & rest.keys()}
    resolve_pad(config)
    check_pad(config, len(prompt.input_ids), model.config.vocab_size)
    rows = make_prompt_rows(model, prompt, config, rest, has_method=given.custom is not None)
    embeddings = None if prompt.inputs is None else prompt.inputs.embeddings
    embedded = None if embeddings is None else embeddings.shape[1]
    own_criteria = take_length(config, given.stopping_criteria)
    resolve_length(config, rows.input_ids.shape[1], model.config, embedded)
    criteria = build_stopping_criteria(
        config,
        tokenizer=rest.get("tokenizer"),
        max_position_embeddings=getattr(model.config, "max_position_embeddings", None),
        user_criteria=own_criteria,
    )
    cancelled = getattr(given.streamer, "cancelled", None)
    if cancelled is not None:
        criteria.append(cancelled)
    processors = _processors(model, config, given, prompt, rows)
    plan = make_plan(
        model,
        rows.input_ids,
        config=config,
        processors=processors,
        stop_checks=StopChecks(criteria, passed=given.stopping_criteria, told=_scores_told(config)),
        draw=multinomial_draw,
        attention_mask=rows.attention_mask,
        cache=past,
        prefill_chunk=config.prefill_chunk_size,
        encoder=prompt.encoder,
        inputs=rows.inputs,
        beams=rows.beams,
        record=make_record(config, rest.get("encoder_outputs")),
    )
    if is_called:
        plan.call = model_call(model, config, mode, rest, len(prompt.input_ids))
    if given.custom is not None:
        emit = None if given.streamer is None else StreamerFeed(given.streamer).step
        method = CustomMethod(
            given.custom, as_written(model), processors, criteria, extras=extras, emit=emit
        )
        strategy = custom_strategy(method)
    else:
        strategy = strategy_for(mode)
        if mode is GenerationMode.ASSISTED_GENERATION:
            plan.drafter = make_drafter(model, plan, assistance, remember=True)
    if rows.bias is not None:
        strategy = partial(decode_healed, strategy=strategy, bias=rows.bias)
    return PreparedCall(plan, strategy)


def _check_autocast(model: Any) -> None:
    """Check that torch computes products in the model's dtype, as its layers expect.

    Raises:
        InvalidRequestError: `torch.autocast` is on, with another dtype.
    """
    kind = model.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return
    dtype = torch.get_autocast_dtype(kind)
    if dtype != model.dtype:
        allowed = (
            f"`generate` of a model in {model.dtype} runs outside of it; load the model with"
            f" dtype={dtype}, or leave the block with `torch.autocast({kind!r}, enabled=False)`"
        )
        raise InvalidRequestError("torch.autocast", dtype, allowed)


def _scores_told(config: GenerationConfig) -> Told:
    """Return what criteria are told of scores: as documented, all of them where they are asked
    for."""
    return "all" if config.output_scores and config.return_dict_in_generate else None


def _processors(
    model: Any,
    config: GenerationConfig,
    given: GenerateArguments,
    prompt: DecoderPrompt,
    rows: PromptRows,
) -> LogitsProcessorList:
    """Built-in and user processors."""
    encoder, mode = prompt.encoder, config.get_generation_mode(given.assistant_model)
    is_embedded = prompt.inputs is not None and prompt.inputs.embeddings is not None
    read: Tensor | None = None if is_embedded else prompt.input_ids
    if is_embedded and not rows.input_ids.shape[1]:
        _warn_of_prompt(config)
    return make_processors(
        model,
        config,
        prompt_length=rows.input_ids.shape[1],
        user_processors=given.logits_processor,
        padding=rows.padding,
        prefix_allowed_tokens_fn=given.prefix_allowed_tokens_fn,
        encoder_input_ids=read if encoder is None else encoder.input_ids,
        guidance=_guidance(model, config, given, rows),
        tail_only=given.custom is None and mode in TAIL_ONLY,
    )


def _warn_of_prompt(config: GenerationConfig) -> None:
    """Say what sees new tokens only, where a prompt of embeddings came without ids."""
    for name, nothing in (("repetition_penalty", 1.0), ("no_repeat_ngram_size", 0)):
        if getattr(config, name) not in (None, nothing):
            _log.warning(
                "`%s` sees new tokens only, since `inputs_embeds` came without `input_ids`", name
            )


def _guidance(
    model: Any, config: GenerationConfig, given: GenerateArguments, rows: PromptRows
) -> Guidance | None:
    """Make the model calls of classifier-free guidance, a row for each sample or beam."""
    if given.negative_prompt_ids is not None and config.guidance_scale in (None, 1):
        _log.warning("`negative_prompt_ids` has no effect without `guidance_scale`")
    if not rows.input_ids.shape[1] and given.negative_prompt_ids is None:
        allowed = "needs `negative_prompt_ids`, since a prompt of embeddings has no last token"
        if config.guidance_scale not in (None, 1):
            raise InvalidRequestError("guidance_scale", config.guidance_scale, allowed)
    prompts = len(rows.input_ids) // rows.samples
    copies = rows.samples * rows.together
    ids, mask = (
        _repeated(name, getattr(given, name), prompts, copies)
        for name in ("negative_prompt_ids", "negative_prompt_attention_mask")
    )
    return make_guidance(model, ids, mask)


def _repeated(name: str, value: Tensor | None, prompts: int, copies: int) -> Tensor | None:
    """A row for each that is decoded, from one for each of these, for each prompt, or for all."""
    if value is None:
        return None
    table = given_tensor(value)
    if table.dim() != 2 or len(table) in (1, prompts * copies):
        return table
    if len(table) != prompts:
        allowed = f"needs one row, one a prompt ({prompts}), or one a sample ({prompts * copies})"
        raise InvalidRequestError(name, InWords(f"{len(table)} rows"), allowed)
    return table.repeat_interleave(copies, dim=0)


def run_call(call: PreparedCall, streamer: BaseStreamer | None) -> Result:
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


def _drain(call: PreparedCall, streamer: BaseStreamer | None) -> Result:
    plan, config = call.plan, call.plan.config
    feed = None
    if streamer is not None:
        feed = StreamerFeed(streamer, copies=plan.copies, pad_token_id=plan.pad_token_id)
        if not config.token_healing:
            feed.begin(plan.input_ids)
    steps, kept = call.strategy(plan), StepOutputs(config, plan.record)
    while True:
        try:
            step = next(steps)
        except StopIteration as end:
            outcome: Outcome = end.value
            break
        except FloatingPointError as error:
            raise_named(plan.processors, error)
        kept.add(step)
        if feed is not None:
            feed.step(step)
    if feed is not None:
        feed.end()
    return assemble(plan, outcome, kept)
