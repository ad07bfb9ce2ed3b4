"""From a prompt and keyword parameters to a request: what can be refused is refused here.

Here alone is decided which requests share the batch, and which take turns beside it. All of it
runs on a worker thread, because tokenizing a long prompt takes a while. It computes nothing with
the model; the tensors that processors are built of are small.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from asyncgen.engine.requests.context_overflow import fit_prompt
from asyncgen.engine.requests.conversation import OF_MESSAGES, refuse_without_messages, render
from asyncgen.engine.requests.custom_method import check_method, load_method
from asyncgen.engine.requests.guidance import guidance_for
from asyncgen.engine.requests.healing import heal_prompt
from asyncgen.engine.requests.params import RequestParams, resolve_params, shorten_to_memory
from asyncgen.engine.requests.request import Request, Sink, clock
from asyncgen.engine.requests.resume import check_continues, take_up
from asyncgen.engine.requests.samplers import check_samplers, given_scores, sampler_arguments
from asyncgen.engine.requests.structured_output import structured_output
from asyncgen.engine.sampling.prompt_logprobs import PromptLogprobs
from asyncgen.errors import ContextLengthError, InvalidRequestError
from asyncgen.generation.config.checks import check_token_ids, check_values
from asyncgen.generation.config.modes import GenerationMode
from asyncgen.generation.config.samplers import ALIAS_NAMES, join_aliases, names_as_given
from asyncgen.generation.generate.defaults import check_direction, check_model_config
from asyncgen.generation.generate.prompts import decoder_start
from asyncgen.generation.generate.written_model import device_of
from asyncgen.generation.logits.build import build_logits_processors, eos_ids
from asyncgen.generation.logits.reasoning import ReasoningBudget
from asyncgen.generation.stopping.criteria import build_stopping_criteria
from asyncgen.generation.stopping.stop_checks import StopChecks
from asyncgen.generation.stopping.structured_output import GrammarCriteria
from asyncgen.generation.strategies import TAIL_ONLY
from asyncgen.generation.strategies.drafters.drafting import Assistance
from asyncgen.generation.strategies.mode_checks import StrategyInputs, check_mode
from asyncgen.runtime.exact_values import plain
from asyncgen.text.hidden_stops import make_stops
from asyncgen.text.token_bounds import least_tokens
from asyncgen.text.tokenizer import Tokenizer
from asyncgen.types import is_messages, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from asyncgen.engine.requests.admission import Seat
    from asyncgen.engine.requests.conversation import Rendered
    from asyncgen.engine.requests.served_model import ServedModel
    from asyncgen.generation.logits.base import LogitsProcessorList
    from asyncgen.generation.stopping.cancel import CancelCriteria
    from asyncgen.structured.grammar import Grammar
    from asyncgen.types import Message, Prompt


_BATCHED = frozenset({GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE})
"""One token a row and step, from the model's own logits."""

_SHORT = 16
"""Characters a position of the context."""


def why_alone(served: ServedModel, params: RequestParams) -> str | None:
    """Tell why a request cannot share the steps of others.

    Args:
        served: The engine's model.
        params: Of the request, resolved.

    Returns:
        A reason in words; ``None`` where the batch serves it.
    """
    config = params.config
    if not served.is_packed:
        return "the model is not a decoder that takes rows of all lengths at once"
    if params.method is not None:
        return "the decoding method is the user's"
    if params.mode not in _BATCHED:
        return "the strategy takes more than a token a step"
    if config.token_healing:
        return "the prompt's last token is chosen anew"
    if config.guidance_scale not in (None, 1):
        return "guidance runs the model a second time"
    if config.cache_implementation is not None or config.cache_config or config.use_cache is False:
        return "a kind of cache was asked for"
    # The angles of `dynamic` rope, beyond its original length, are those of the longest row.
    limit, end = served.model.core.packed_length, config.max_length
    if limit is not None and (end is None or end > limit):
        return "the rotary angles change with the length"
    # Code that may remember its rows gets all samples at once, in one order.
    watermark, allowed = config.watermarking_config, params.prefix_allowed_tokens_fn
    remembers = params.processors or params.criteria or watermark or allowed
    if params.num_samples > 1 and remembers:
        return "the user's processors or criteria see all samples at once"
    return None


def num_rows(params: RequestParams) -> int:
    """Count the rows of keys and values that a request keeps when it runs alone."""
    config = params.config
    rows = max(params.num_samples, config.num_beams or 1)  # samples are the best of the beams
    if params.mode is GenerationMode.CONTRASTIVE_SEARCH:
        rows *= max(config.top_k or 1, 1)
    return rows if config.guidance_scale in (None, 1) else rows * 2


def prepare_request(
    served: ServedModel,
    prompt: Prompt,
    given: Mapping[str, Any],
    *,
    cancel: CancelCriteria,
    sink: Sink,
    place: Seat | None = None,
) -> Request:
    """Tokenize and check everything.

    Args:
        served: The engine's model.
        prompt: Text, messages or token ids, form already checked.
        given: Keyword parameters, names already checked.
        cancel: The flag of the stream.
        sink: Where events will go.
        place: Its place in the engine's queue.

    Returns:
        A request that is ready to be posted.

    Raises:
        InvalidRequestError: A parameter, a combination or a prompt that cannot be served.
        ContextLengthError: The prompt and the tokens asked for exceed the context.
        ChatTemplateError: The chat template refuses the messages, or there is none.
    """
    accepted_at = clock()
    model, tokenizer = served.model, served.tokenizer
    if served.is_bidirectional:
        check_direction(model)
    given = {name: value for name, value in given.items() if value is not None}
    if ALIAS_NAMES & given.keys():
        with names_as_given(given):
            given = join_aliases(given)
            return prepare_request(served, prompt, given, cancel=cancel, sink=sink, place=place)
    truncated = 0
    if "context_overflow" in given:
        prompt_ids, rendered, truncated = fit_prompt(served, prompt, given, read_prompt)
    else:
        prompt_ids, rendered = read_prompt(served, prompt, given)
    params = _params(served, given, prompt_ids)
    _check(served, params, given)
    healing, shown = None, ""
    if params.config.token_healing:
        healing, shown = heal_prompt(served, prompt, prompt_ids)
        (prompt_ids,) = healing.rows
        params = _params(served, given, prompt_ids)  # lengths count from the prompt's new end
    alone = why_alone(served, params)
    scores = _prompt_logprobs(served, params, prompt_ids, alone)
    num_pages = _fit_memory(served, params, prompt_ids, alone)
    grammar, starts = None, 1 if served.has_encoder else len(prompt_ids)
    if rendered is not None or params.output_format is not None:
        params, grammar = structured_output(served, params, rendered, given)
    processors = _processors(served, params, prompt_ids, grammar)
    if rendered is not None and given.get("max_reasoning_tokens") is not None:
        processors.append(_reasoning_budget(served, rendered, given, len(prompt_ids)))
    criteria = build_stopping_criteria(
        params.config,
        tokenizer=tokenizer,
        max_position_embeddings=served.context_length,
        user_criteria=params.criteria,
    )
    criteria.append(cancel)
    if grammar is not None and alone is not None:  # in the batch a sample asks its own matcher
        criteria.append(GrammarCriteria(grammar, starts))
    follows = None
    if params.generated_ids and "mirostat" in params.samplers:
        follows = given_scores(served, params, prompt_ids, processors, alone)
    method = None
    if params.method is not None:
        method = load_method(model, params, processors, criteria, cancel)
    stops = None
    if params.stop:
        stops = make_stops(params.stop, tokenizer, hides=params.skip_special_tokens)
    stands_alone = rendered is not None or served.has_encoder
    request = Request(
        prompt_ids=prompt_ids,
        params=params,
        processors=processors,
        stop_checks=StopChecks(criteria, passed=params.criteria),
        cancel=cancel,
        sink=sink,
        continues_text=not (stands_alone or grammar and _is_cut(tokenizer, prompt_ids)),
        healing=healing,
        shown=shown,
        accepted_at=accepted_at,
        decoder_ids=_decoder_ids(params, served.vocab_size) if served.has_encoder else None,
        method=method,
        alone=alone,
        num_pages=num_pages,
        stops=stops,
        place=place,
        fingerprint=served.fingerprint,
        reading=None if rendered is None else rendered.reading,
        grammar=grammar,
        scores=scores,
        follows=follows,
        truncated_tokens=truncated,
    )
    return replace(request, given=take_up(request, tokenizer)) if params.generated_ids else request


def _check(served: ServedModel, params: RequestParams, given: Mapping[str, Any]) -> None:
    """Refuse parameters that this model cannot serve, alone or together."""
    config = params.config
    check_token_ids(config, given.keys(), served.vocab_size)
    for token_id in given.get("stop_token_ids", ()):
        if token_id >= served.vocab_size:
            allowed = f"token ids are from 0 to {served.vocab_size - 1}"
            raise InvalidRequestError("stop_token_ids", token_id, allowed)
    length, context = config.max_cache_len, served.context_length
    if length is not None and context is not None and length > context:
        # A static cache is allocated whole.
        allowed = f"at most the model's context, {context}"
        raise InvalidRequestError("max_cache_len", length, allowed)
    if params.generated_ids:
        check_continues(served.model, params)
    if params.samplers:
        check_samplers(served, params)
    if params.method is not None:
        check_method(served.model, params)
    elif served.is_ours:
        if why_alone(served, params) is not None:  # what shares the batch can do no wrong
            check_mode(params.mode, _situation(served, params))
    elif params.assistant_model is not None:
        name = type(params.assistant_model).__name__
        raise InvalidRequestError("assistant_model", name, "needs a model of this library")


def _is_cut(tokenizer: Tokenizer | None, prompt_ids: list[int]) -> bool:
    """Tell whether a prompt ends inside of a character, which the answer completes."""
    return tokenizer is not None and tokenizer.decode(prompt_ids[-4:]).endswith("\ufffd")


def _fit_memory(
    served: ServedModel, params: RequestParams, prompt_ids: list[int], alone: str | None
) -> int:
    """Bring the end of a request within the memory; return the blocks that it reserves if alone."""
    room, end, has_encoder = served.room, params.config.max_length, served.has_encoder
    if room is None:
        return 0
    assert end is not None
    if alone is None:
        longest = room.longest_text(max(end, len(prompt_ids)))
        if longest < end:
            shorten_to_memory(params, len(prompt_ids), longest)
        return 0
    rows = num_rows(params)
    # An encoder's output is kept for each row as keys and values, as long as what it read.
    encoded = len(prompt_ids) if has_encoder else 0
    longest = room.positions(rows) - encoded
    if longest < end:
        shorten_to_memory(params, 1 if has_encoder else len(prompt_ids), longest)
    assert params.config.max_length is not None
    return rows * room.pages(params.config.max_length + encoded)


def _situation(served: ServedModel, params: RequestParams) -> StrategyInputs:
    """Describe the call to the strategy; a draft model is checked once it is loaded."""
    helper, other = params.assistant_model, params.assistant_tokenizer
    assistance = None
    if not any(isinstance(each, str | os.PathLike) for each in (helper, other)):
        assistance = Assistance(helper, None if other is None else served.tokenizer, other)
    return StrategyInputs(served.model, params.config, params.num_samples, assistance=assistance)


def _params(served: ServedModel, given: Mapping[str, Any], prompt_ids: list[int]) -> RequestParams:
    """Check the parameters for a prompt."""
    model = served.model
    if given.get("generation_config") is None and getattr(model.config, "changes", None):
        check_model_config(model.config)
    return resolve_params(
        given,
        model.generation_config,
        prompt_length=1 if served.has_encoder else len(prompt_ids),
        context_length=served.context_length,
    )


def read_prompt(
    served: ServedModel, prompt: Prompt, given: Mapping[str, Any], *, times: int = 1
) -> tuple[list[int], Rendered | None]:
    """Ids of a prompt in any of its three forms.

    Args:
        served: The engine's model.
        prompt: Text, messages or token ids, form already checked.
        given: Parameters of the request; those of `OF_MESSAGES` count, and are checked here.
        times: How often the prompt may fill the context.

    Returns:
        The ids, and what messages came to; ``None`` for another form.

    Raises:
        InvalidRequestError: An id that is none, a text that cannot be tokenized, a part of a
            content that is no text, or variables that cannot be set.
        ContextLengthError: A text that cannot fit, whatever its tokens are.
        ChatTemplateError: The chat template refuses the messages, or there is none.
    """
    model, tokenizer = served.model, served.tokenizer
    context = None if served.context_length is None else times * served.context_length
    told = {name: given[name] for name in OF_MESSAGES if given.get(name) is not None}
    has_messages = not isinstance(prompt, str) and is_messages(prompt)
    if told:
        check_values(told)
        if not has_messages:
            refuse_without_messages(told)
    if not (isinstance(prompt, str) or has_messages):
        ids, size = plain(list(cast("Sequence[int]", prompt))), model.config.vocab_size
        for token_id in ids:
            if not 0 <= token_id < size:
                raise InvalidRequestError("prompt", token_id, f"token ids are from 0 to {size - 1}")
        return ids, None
    if tokenizer is None:
        raise InvalidRequestError("prompt", prompt, "a list of token ids, without a tokenizer")
    if not isinstance(prompt, str):
        rendered = _rendered(served, tokenizer, prompt, given, context)
        encode = partial(tokenizer.encode_ids, rendered.text, add_special_tokens=False)
        if rendered.prompt is not None:
            encode = partial(tokenizer.encode_chat, rendered.prompt)
        return _encoded(served, rendered.text, prompt, encode), rendered
    _check_fits(context, tokenizer, prompt)
    ids = _encoded(served, prompt, prompt, partial(tokenizer.encode_ids, prompt))
    if not ids:
        raise InvalidRequestError("prompt", prompt, "a text of at least one token")
    return ids, None


def _rendered(
    served: ServedModel,
    tokenizer: Tokenizer,
    prompt: Prompt,
    given: Mapping[str, Any],
    context: int | None,
) -> Rendered:
    """Render messages, unless the context cannot hold what comes of them."""
    _check_count(context, prompt)
    given = {name: value for name, value in given.items() if value is not None}
    rendered = render(tokenizer, cast("Sequence[Message]", prompt), given, served.formats)
    _check_fits(context, tokenizer, rendered.text)
    return rendered


def render_prompt(served: ServedModel, prompt: Prompt, given: Mapping[str, Any]) -> str:
    """Render messages as one text, whose tokens are those of the messages.

    Args:
        served: The engine's model.
        prompt: Form already checked.
        given: As for `read_prompt`.

    Raises:
        InvalidRequestError: Something else than messages, or messages whose control tokens stay
            text, as one text would not tell those from the template's own; otherwise as
            `read_prompt`.
        ContextLengthError: A text that cannot fit, whatever its tokens are.
        ChatTemplateError: The chat template refuses the messages, or there is none.
    """
    tokenizer = served.tokenizer
    if isinstance(prompt, str) or not is_messages(prompt) or tokenizer is None:
        allowed = "a list of messages" if tokenizer else "no text, without a tokenizer"
        raise InvalidRequestError("prompt", prompt, allowed)
    check_values({name: given[name] for name in OF_MESSAGES if given.get(name) is not None})
    rendered = _rendered(served, tokenizer, prompt, given, served.context_length)
    if rendered.prompt is not None:
        apart = _encoded(
            served, rendered.text, prompt, partial(tokenizer.encode_chat, rendered.prompt)
        )
        if apart != tokenizer.encode_ids(rendered.text, add_special_tokens=False):
            allowed = (
                "they hold a control token as text, which one text cannot tell from the chat"
                " template's own; send the messages themselves"
            )
            raise InvalidRequestError("prompt", size_of(prompt), allowed)
    return rendered.text


def _reasoning_budget(
    served: ServedModel, rendered: Rendered, given: Mapping[str, Any], prompt_length: int
) -> ReasoningBudget:
    """Make the processor that ends the reasoning of a request in time."""
    reasoning, tokenizer = served.formats.reasoning, served.tokenizer
    assert reasoning is not None and tokenizer is not None
    ending = tokenizer.encode_ids(reasoning.ending, add_special_tokens=False)
    _check_tokenized(served, "max_reasoning_tokens", given["max_reasoning_tokens"], ending)
    return ReasoningBudget(
        given["max_reasoning_tokens"],
        prompt_length=prompt_length,
        begin=reasoning.begin.strip(),
        end=reasoning.end.strip(),
        ending=ending,
        is_open=rendered.in_reasoning,
        decode=tokenizer.decode,
    )


def _check_count(context: int | None, messages: Prompt) -> None:
    """Refuse more messages than the context has tokens, before a template goes through them."""
    if context is not None and len(messages) > context:
        allowed = f"each takes at least a token, and the context holds {context}; send fewer"
        raise ContextLengthError("prompt", size_of(messages), allowed)


_SPARSE, _MOST_SPARSE = 64, 2**16
"""Characters for each token of the context, and further ones, that are tokenized where a token may
stand for any number of them."""


def _check_fits(context: int | None, tokenizer: Tokenizer, text: str) -> None:
    """Refuse a text that is too long however it is cut, before it is tokenized."""
    # A checkpoint's longest token is longer than this: shorter texts are not worth a look.
    if context is None or len(text) <= _SHORT * context or not isinstance(tokenizer, Tokenizer):
        return
    least = least_tokens(tokenizer.backend_tokenizer, text)
    most = _SPARSE * context + _MOST_SPARSE
    if not least and len(text) > most:
        allowed = (
            f"it has {len(text)} characters, and its tokenizer tells no longest token; at most "
            f"{most} are tokenized for a context of {context}; shorten it"
        )
        raise ContextLengthError("prompt", size_of(text), allowed)
    if least > context:
        allowed = f"it has at least {least} tokens, and the context holds {context}; shorten it"
        raise ContextLengthError("prompt", size_of(text), allowed)


def _encoded(
    served: ServedModel, text: str, prompt: Prompt, encode: Callable[[], list[int]]
) -> list[int]:
    """Ids of a text; what is wrong with it is wrong with the prompt that it is of."""
    try:
        ids = encode()
    except InvalidRequestError as error:
        if error.parameter != "text":
            raise
        value = prompt if error.value is text else error.value
        raise InvalidRequestError("prompt", value, error.allowed) from error
    _check_tokenized(served, "prompt", prompt, ids)
    return ids


def _check_tokenized(
    served: ServedModel, parameter: str, value: object, ids: Sequence[int]
) -> None:
    """Refuse a text with a token that the model has no row for: its tokenizer is a larger one."""
    highest, size = max(ids, default=0), served.vocab_size
    if size and highest >= size:
        allowed = (
            f"its tokenizer makes the token id {highest} of it, and the model's ids are from 0 to "
            f"{size - 1}; use the model's own tokenizer, or `model.resize_token_embeddings`"
        )
        raise InvalidRequestError(parameter, value, allowed)


def _decoder_ids(params: RequestParams, vocab_size: int) -> list[int]:
    """Return the first ids of the decoder of a model with an encoder."""
    try:
        return decoder_start(params.config, 1, vocab_size=vocab_size)[0].tolist()
    except InvalidRequestError:
        raise
    except ValueError as error:
        value = params.config.decoder_start_token_id
        raise InvalidRequestError("decoder_start_token_id", value, str(error)) from error


def _processors(
    served: ServedModel, params: RequestParams, prompt_ids: list[int], grammar: Grammar | None
) -> LogitsProcessorList:
    """Build the processors of the configuration, and append the user's."""
    # Only strategies of our own promise that rows change at their end alone.
    has_strategy = served.is_ours and params.method is None
    device = served.device
    device = device_of(served.model) if device is None else device
    eos = eos_ids(params.config)
    is_guided = params.config.guidance_scale is not None
    try:
        return build_logits_processors(
            params.config,
            prompt_length=1 if served.has_encoder else len(prompt_ids),
            eos_token_ids=torch.tensor(eos, dtype=torch.int64, device=device) if eos else None,
            device=device,
            vocab_size=served.vocab_size,
            user_processors=params.processors,
            encoder_input_ids=torch.tensor([prompt_ids], dtype=torch.int64, device=device),
            guidance=guidance_for(served, params) if is_guided else None,
            tail_only=has_strategy and params.mode in TAIL_ONLY,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            prefix_allowed_tokens_fn=params.prefix_allowed_tokens_fn,
            grammar=grammar,
            arguments=sampler_arguments(served, params) if params.samplers else {},
        )
    except InvalidRequestError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidRequestError("generation parameters", params.mode.value, str(error)) from error


def _prompt_logprobs(
    served: ServedModel, params: RequestParams, prompt_ids: list[int], alone: str | None
) -> PromptLogprobs | None:
    """Make the receiver of the log-probabilities of the prompt, where they are asked for."""
    top = params.prompt_logprobs
    if top is None:
        return None
    if alone is not None:
        allowed = f"needs the shared batch, which cannot serve this request: {alone}"
        raise InvalidRequestError("prompt_logprobs", top, allowed)
    model = served.model
    return PromptLogprobs(
        prompt_ids,
        top,
        model.core.project,
        model.config.vocab_size,
        served.tokenizer,
        generates=params.generates,
    )
