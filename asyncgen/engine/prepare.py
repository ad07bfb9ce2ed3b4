"""From a prompt and keyword parameters to a request: what can be refused is refused here.

Runs on a worker thread, because tokenizing a long prompt takes a while. It computes nothing with
the model; the tensors that processors are built of are small.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import torch

from asyncgen.engine.names import is_messages
from asyncgen.engine.params import RequestParams, resolve_params
from asyncgen.engine.request import Request, Sink, clock
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.drafting import Assistance
from asyncgen.generation.healing import Healing, plan_healing
from asyncgen.generation.logits import LogitsProcessorList, build_logits_processors
from asyncgen.generation.mode_checks import Situation, check_mode
from asyncgen.generation.prepare import eos_ids
from asyncgen.generation.prompts import decoder_start
from asyncgen.generation.stopping import StoppingCriteriaList, build_stopping_criteria
from asyncgen.generation.strategies import strategy_for
from asyncgen.generation.strategies.ends import Ends

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from asyncgen.generation.cancel import CancelCriteria
    from asyncgen.generation.prepare import GenerativeModel
    from asyncgen.tokenizer import Tokenizer
    from asyncgen.types import Message, Prompt

__all__ = ["prepare_request"]


def prepare_request(
    model: GenerativeModel,
    tokenizer: Tokenizer,
    prompt: Prompt,
    given: Mapping[str, Any],
    *,
    cancel: CancelCriteria,
    sink: Sink,
) -> Request:
    """Tokenize and check everything.

    Args:
        model: The loaded model; one without ``core`` decodes by itself.
        tokenizer: Its tokenizer.
        prompt: Text, messages or token ids, form already checked.
        given: Keyword parameters, names already checked.
        cancel: The flag of the stream.
        sink: Where events will go.

    Returns:
        A request that is ready to be posted.

    Raises:
        InvalidRequestError: A parameter, a combination or a prompt that cannot be served.
        ContextLengthError: The prompt and the tokens asked for exceed the context.
        ChatTemplateError: The chat template refuses the messages, or there is none.
    """
    accepted_at = clock()
    prompt_ids = _token_ids(model, tokenizer, prompt)
    has_encoder = hasattr(model, "core") and model.config.is_encoder_decoder
    params = _params(model, given, 1 if has_encoder else len(prompt_ids))
    if hasattr(model, "core"):
        strategy_for(params.mode)
        check_mode(params.mode, _situation(model, tokenizer, params))
    elif params.assistant_model is not None:
        name = type(params.assistant_model).__name__
        raise InvalidRequestError("assistant_model", name, "needs a model of this library")
    healing, shown = None, ""
    if params.config.token_healing:
        healing, shown = _heal(model, tokenizer, prompt, prompt_ids)
        (prompt_ids,) = healing.rows
        params = _params(model, given, len(prompt_ids))  # lengths count from the prompt's new end
    return Request(
        prompt_ids=prompt_ids,
        params=params,
        processors=_processors(params, prompt_ids, has_encoder, model.device),
        ends=_ends(model, tokenizer, params, cancel),
        cancel=cancel,
        sink=sink,
        continues_text=not (is_messages(prompt) or has_encoder),
        healing=healing,
        shown=shown,
        accepted_at=accepted_at,
        decoder_ids=_decoder_ids(params) if has_encoder else None,
    )


def _situation(model: GenerativeModel, tokenizer: Tokenizer, params: RequestParams) -> Situation:
    """What the strategy would run on; a draft model that must be loaded is looked at later."""
    helper, other = params.assistant_model, params.assistant_tokenizer
    assistance = None
    if not any(isinstance(each, str | os.PathLike) for each in (helper, other)):
        assistance = Assistance(helper, None if other is None else tokenizer, other)
    return Situation(model, params.config, params.num_samples, assistance=assistance)


def _params(model: GenerativeModel, given: Mapping[str, Any], prompt_length: int) -> RequestParams:
    """Checked parameters for a prompt."""
    return resolve_params(
        given,
        model.generation_config,
        prompt_length=prompt_length,
        context_length=getattr(model.config, "max_position_embeddings", None),
    )


def _heal(
    model: GenerativeModel, tokenizer: Tokenizer, prompt: Prompt, prompt_ids: list[int]
) -> tuple[Healing, str]:
    """What token healing chooses among, and the text that is chosen again."""
    if not hasattr(model, "core") or model.config.is_encoder_decoder:
        raise InvalidRequestError("token_healing", True, "needs a decoder-only model of ours")
    if is_messages(prompt):
        raise InvalidRequestError(
            "token_healing", True, "heals the end of a text, and messages end with their template"
        )
    healing = plan_healing(tokenizer, [prompt_ids], model.core.config.vocab_size)
    whole, kept = tokenizer.decode(prompt_ids), tokenizer.decode(healing.rows[0][:-1])
    return healing, whole[len(kept) :] if whole.startswith(kept) else ""


def _token_ids(model: GenerativeModel, tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    """Ids of a prompt in any of its three forms."""
    if isinstance(prompt, str):
        ids = tokenizer.encode_ids(prompt)
        if not ids:
            raise InvalidRequestError("prompt", prompt, "a text of at least one token")
        return ids
    if is_messages(prompt):
        messages = cast("Sequence[Message]", prompt)
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return tokenizer.encode_ids(text, add_special_tokens=False)
    ids = list(cast("Sequence[int]", prompt))
    size = model.config.vocab_size
    for token_id in ids:
        if not 0 <= token_id < size:
            raise InvalidRequestError("prompt", token_id, f"token ids are from 0 to {size - 1}")
    return ids


def _decoder_ids(params: RequestParams) -> list[int]:
    """What the decoder of a model with an encoder begins with."""
    try:
        return decoder_start(params.config, 1)[0].tolist()
    except ValueError as error:
        value = params.config.decoder_start_token_id
        raise InvalidRequestError("decoder_start_token_id", value, str(error)) from error


def _processors(
    params: RequestParams, prompt_ids: list[int], has_encoder: bool, device: torch.device
) -> LogitsProcessorList:
    """Built-in and user processors in the documented order."""
    eos = eos_ids(params.config)
    try:
        return build_logits_processors(
            params.config,
            prompt_length=1 if has_encoder else len(prompt_ids),
            eos_token_ids=torch.tensor(eos, device=device) if eos else None,
            device=device,
            user_processors=params.processors,
            encoder_input_ids=torch.tensor([prompt_ids], device=device),
        )
    except InvalidRequestError:
        raise
    except (ValueError, TypeError) as error:
        raise InvalidRequestError("generation parameters", params.mode.value, str(error)) from error


def _ends(
    model: GenerativeModel, tokenizer: Tokenizer, params: RequestParams, cancel: CancelCriteria
) -> Ends:
    """Built-in and user criteria, and the cancel flag."""
    criteria = build_stopping_criteria(
        params.config,
        tokenizer=tokenizer,
        max_position_embeddings=getattr(model.config, "max_position_embeddings", None),
        user_criteria=params.criteria,
    )
    return Ends(StoppingCriteriaList([*criteria, cancel]))
