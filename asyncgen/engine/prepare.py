"""From a prompt and keyword parameters to a request: what can be refused is refused here.

Runs on a worker thread, because tokenizing a long prompt takes a while. It computes nothing with
the model; the tensors that processors are built of are small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from asyncgen.engine.names import is_messages
from asyncgen.engine.params import RequestParams, resolve_params
from asyncgen.engine.request import Request, Sink, clock
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits import LogitsProcessorList, build_logits_processors
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
    params = resolve_params(
        given,
        model.generation_config,
        prompt_length=1 if has_encoder else len(prompt_ids),
        context_length=getattr(model.config, "max_position_embeddings", None),
    )
    if hasattr(model, "core"):
        strategy_for(params.mode)
    return Request(
        prompt_ids=prompt_ids,
        params=params,
        processors=_processors(params, prompt_ids, has_encoder, model.device),
        ends=_ends(model, tokenizer, params, cancel),
        cancel=cancel,
        sink=sink,
        continues_text=not (is_messages(prompt) or has_encoder),
        accepted_at=accepted_at,
        decoder_ids=_decoder_ids(params) if has_encoder else None,
    )


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
            prefix_allowed_tokens_fn=params.prefix_allowed_tokens_fn,
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
