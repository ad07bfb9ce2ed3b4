"""Joins the keyword parameters of a stream with the model's defaults and checks the values.

Nothing is dropped, clamped or reinterpreted on the way: a value that cannot be honoured is an
error that names its parameter. A temperature of 0 is greedy decoding, which is what its limit is.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from asyncgen.engine.requests.given_tokens import given_ids, negative_prompt
from asyncgen.errors import ContextLengthError, InvalidRequestError
from asyncgen.generation.config.checks import (
    check_config,
    check_numbers,
    check_supported,
    check_values,
    join_equal_ids,
    minor_issues,
)
from asyncgen.generation.config.combinations import (
    COMBINATIONS,
    Parameters,
    check_combinations,
)
from asyncgen.generation.config.generation_config import own_copy, plain_values
from asyncgen.generation.config.modes import GenerationMode, generation_mode, uses_beams
from asyncgen.generation.config.parameters import BY_NAME, DEFAULTS, DRAFTING, FIELDS, SAMPLING
from asyncgen.generation.config.samplers import SAMPLER_NAMES, ask_samplers, fit_samplers
from asyncgen.generation.custom_methods import choose_method
from asyncgen.generation.logits.base import LogitsProcessorList
from asyncgen.generation.stopping.criteria import StoppingCriteriaList
from asyncgen.generation.strategies.constraints import check_constraints
from asyncgen.runtime.exact_values import exact
from asyncgen.structured.output_format import OUTPUT_FORMATS, read_output_format
from asyncgen.types import counted

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from asyncgen.generation.config import GenerationConfig
    from asyncgen.structured.output_format import OutputFormat


_FIELDS = frozenset(each.name for each in FIELDS)
_FILLED = {name: value for name, value in DEFAULTS.items() if name not in DRAFTING}
"""The documented defaults, but for those that a draft model's own configuration precedes."""

_AS_GIVEN = frozenset(
    "priority client cache_salt fingerprint skip_special_tokens trust_remote_code assistant_model "
    "assistant_tokenizer prefix_allowed_tokens_fn".split()
)
"""Parameters that a request takes over as they are, or leaves at the default of `RequestParams`."""

_METHODS = frozenset({"custom_generate", "recipe"})
_NEGATIVE = frozenset({"negative_prompt_ids", "negative_prompt_attention_mask"})

_SEED_BITS = 53
"""Of seeds that are drawn: numbers of so many bits go through JSON to any client and back."""

_CHOOSING = frozenset({"top_k"})
"""Contrastive search chooses among so many tokens without drawing."""

_HEAT = frozenset({"temperature"})
"""A temperature of 0 takes the most probable token."""

_KEEPING_THE_BEST = frozenset({"top_k", "top_p", "min_p", "top_n_sigma"})
"""Filters that leave the most probable token in place, whatever their value."""


@dataclass(frozen=True, slots=True)
class RequestParams:
    """Checked parameters of one request.

    Attributes:
        config: Complete generation config; ``max_length`` is the absolute end.
        mode: Decoding strategy.
        length: Name of the parameter of this request that fixed the end; ``None`` where a default
            did, which may be shortened to what there is room for.
        seed: Seed of the draws, drawn at random where none was given.
        stop: Strings that end the text before themselves.
        top_logprobs: Alternatives a token; ``None`` where no log-probabilities were asked for.
        num_samples: Rows of this request.
        priority: Higher goes first, among the requests of a client.
        client: Whom it belongs to.
        cache_salt: Prompts share what was computed only under the same one.
        skip_special_tokens: Whether special tokens are left out of the text.
        processors: Logits processors that the user wrote.
        criteria: Stopping criteria that the user wrote.
        method: A decoding method that the user wrote, or where it is to be found.
        method_arguments: What it gets of the user's.
        trust_remote_code: Whether a method may come from the hub; ``False``: nor from a folder.
        presence_penalty: Subtracted from the scores of generated tokens; 0.0 is off.
        frequency_penalty: The same, each time a token was generated; 0.0 is off.
        generated_ids: What each sample has generated before; empty where none has.
        fingerprint: Of the engine that generated them, where that is known.
        negative_prompt_ids: What guidance leads away from, int64 [1, S].
        negative_prompt_attention_mask: [1, S], zero at padding.
        assistant_model: Draft model: an object, or where to load it from.
        assistant_tokenizer: Its tokenizer, if it is not the model's: the same.
        prefix_allowed_tokens_fn: The user's function of that name, or ``None``.
        output_format: Form that the answer must have; ``None``: it is free.
        samplers: Arguments of the samplers of llama.cpp, by name; empty where none is asked for.
        prompt_logprobs: Alternatives a token of the prompt; ``None`` where its log-probabilities
            were not asked for.
        generates: Whether any token is wanted; else the text ends where the prompt does.
    """

    config: GenerationConfig
    mode: GenerationMode
    seed: int
    stop: tuple[str, ...]
    top_logprobs: int | None
    num_samples: int
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    priority: int = 0
    client: str = ""
    cache_salt: str = ""
    skip_special_tokens: bool = True
    method: str | os.PathLike[str] | Callable[..., Any] | None = None
    method_arguments: Mapping[str, Any] = field(default_factory=dict)
    trust_remote_code: bool | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    generated_ids: tuple[tuple[int, ...], ...] = ()
    fingerprint: str | None = None
    negative_prompt_ids: Tensor | None = None
    negative_prompt_attention_mask: Tensor | None = None
    assistant_model: Any = None
    assistant_tokenizer: Any = None
    length: str | None = None
    prefix_allowed_tokens_fn: Callable[[int, Tensor], list[int]] | None = None
    output_format: OutputFormat | None = None
    samplers: Mapping[str, Any] = field(default_factory=dict)
    prompt_logprobs: int | None = None
    generates: bool = True


def resolve_params(
    params: Mapping[str, Any],
    defaults: GenerationConfig,
    *,
    prompt_length: int,
    context_length: int | None,
) -> RequestParams:
    """Join the parameters of a request with the model's defaults and check the values.

    Args:
        params: As given to ``stream``, names already checked; ``None`` means not given.
        defaults: The model's own generation config; not modified.
        prompt_length: Number of prompt ids.
        context_length: Most positions the model has, ``None`` for no limit.

    Returns:
        The checked parameters.

    Raises:
        InvalidRequestError: A value or combination that is not allowed.
        ContextLengthError: The prompt and the tokens asked for exceed the context.
    """
    params = plain_values({name: each for name, each in params.items() if each is not None})
    most = params.get("max_new_tokens")
    generates = not ("prompt_logprobs" in params and type(most) is int and most == 0)
    if not generates:  # the log-probabilities of the prompt are all that is wanted
        del params["max_new_tokens"]
    check_values(params)
    config = own_copy(params.get("generation_config", defaults))
    if "generation_config" in params:
        _fill(config, defaults.to_dict(), keep_length=True)
    if params.get("temperature", config.temperature) == 0:
        params = _greedy_at_zero(params, config)
    given = {name: value for name, value in params.items() if name in _FIELDS}
    _imply_sampling(given)
    samplers = ask_samplers(params, given) if SAMPLER_NAMES & params.keys() else {}
    if "n" in params:
        _join_samples(given, params)
    try:
        for name, value in given.items():
            setattr(config, name, value)
        _fill(config, _FILLED)
        if "stop_token_ids" in params:
            _add_stop_ids(config, params["stop_token_ids"])
        mode = _check(config, given, params)
        if samplers:
            samplers = fit_samplers(samplers, params, config, mode)
    except InvalidRequestError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise _from_value_error(error, given) from error
    end_of = _end_of_text if generates else _end_of_prompt
    _set_end(config, end_of(config, given, prompt_length, context_length), prompt_length)
    stop, num_samples = params.get("stop", ()), config.num_return_sequences or 1
    negative: dict[str, Any] = {
        name: negative_prompt(params, name, config) for name in _NEGATIVE & params.keys()
    }
    return RequestParams(
        config=config,
        mode=mode,
        seed=params.get("seed", secrets.randbits(_SEED_BITS)),
        stop=(stop,) if isinstance(stop, str) else tuple(map(exact, stop)),
        top_logprobs=_top_logprobs(params),
        prompt_logprobs=params.get("prompt_logprobs"),
        generates=generates,
        num_samples=num_samples,
        processors=LogitsProcessorList(params.get("logits_processor", ())),
        criteria=StoppingCriteriaList(params.get("stopping_criteria", ())),
        method=_method(params) if _METHODS & params.keys() else None,
        method_arguments={name: params[name] for name in params.keys() - BY_NAME.keys()},
        presence_penalty=float(params.get("presence_penalty", 0.0)),
        frequency_penalty=float(params.get("frequency_penalty", 0.0)),
        generated_ids=given_ids(params, num_samples) if "generated_ids" in params else (),
        **negative,
        samplers=samplers,
        output_format=read_output_format(params) if OUTPUT_FORMATS & params.keys() else None,
        length=next((name for name in ("max_new_tokens", "max_length") if name in given), None),
        **{name: params[name] for name in _AS_GIVEN & params.keys()},
    )


def _check(
    config: GenerationConfig, given: Mapping[str, Any], params: Mapping[str, Any]
) -> GenerationMode:
    """Check what the fields come to, and tell the strategy that they ask for."""
    check_numbers(config)
    is_cold = config.temperature == 0 and not config.do_sample
    samples = config.num_return_sequences
    if is_cold and not uses_beams(config) and "num_return_sequences" in given:
        config.num_return_sequences = 1  # equal ones, which the reference refuses
    used = _CHOOSING if config.penalty_alpha else frozenset()
    used |= _HEAT if is_cold else frozenset()
    config.validate(user_set_attributes=given.keys() - _HEAT if is_cold else given.keys())
    config.num_return_sequences = samples
    for issue in minor_issues(config, given.keys()):  # an idle default is no error
        if issue.name in given and issue.name not in used:
            raise InvalidRequestError(issue.name, given[issue.name], issue.reason)
    check_config(config, given)
    check_supported(config)
    join_equal_ids(config)
    mode = generation_mode(config, params.get("assistant_model"))
    check_combinations(COMBINATIONS, Parameters(config, params, mode))
    if mode is GenerationMode.CONSTRAINED_BEAM_SEARCH:
        check_constraints(config)
    return mode


def _add_stop_ids(config: GenerationConfig, ids: Sequence[int]) -> None:
    """Let further ids end a sequence."""
    if ids:
        own = config.eos_token_id
        own = [] if own is None else [own] if isinstance(own, int) else list(own)
        config.eos_token_id = [*own, *(each for each in ids if each not in own)]


def _method(params: Mapping[str, Any]) -> str | os.PathLike[str] | Callable[..., Any] | None:
    """The custom decoding method, under either of its names."""
    given = params.get("custom_generate"), params.get("recipe")
    return None if given == (None, None) else choose_method(*given)


def _greedy_at_zero(params: dict[str, Any], config: GenerationConfig) -> dict[str, Any]:
    """Ask for the most probable token, without the filters that always keep it.

    Args:
        params: Of the request.
        config: What they are laid over. A temperature of 0 is there, if not in ``params``.

    Raises:
        InvalidRequestError: ``do_sample`` asks to draw a token, where the temperature is given.
    """
    own = None if "temperature" in params else config.do_sample
    if params.get("do_sample", own):
        allowed = "0 takes the most probable token, and `do_sample` asks to draw one; give one"
        raise InvalidRequestError("temperature", 0, allowed)
    idle = _KEEPING_THE_BEST - (_CHOOSING if params.get("penalty_alpha") else frozenset())
    kept = {name: value for name, value in params.items() if name not in idle}
    return {**kept, "do_sample": False}


def _imply_sampling(given: dict[str, Any]) -> None:
    """An explicit sampling parameter asks for sampling; asking for both ways is an error."""
    used = _CHOOSING if given.get("penalty_alpha") else frozenset()
    used |= _HEAT if given.get("temperature") == 0 else frozenset()
    sampling = sorted((SAMPLING & given.keys()) - used)
    if not sampling:
        return
    if given.get("do_sample") is False:
        name = sampling[0]
        raise InvalidRequestError(
            name, given[name], "a sampling parameter; leave it out together with `do_sample=False`"
        )
    given["do_sample"] = True


def _join_samples(given: dict[str, Any], params: Mapping[str, Any]) -> None:
    """``n`` is the short name of ``num_return_sequences``."""
    n = params.get("n")
    if n is not None and given.setdefault("num_return_sequences", n) != n:
        raise InvalidRequestError("n", n, "the same thing as `num_return_sequences`; give one")


def _end_of_text(
    config: GenerationConfig, given: Mapping[str, Any], prompt_length: int, context: int | None
) -> int:
    """Return the position at which the text ends at the latest, from the two lengths."""
    for name, other in (("min_length", "min_new_tokens"), ("max_length", "max_new_tokens")):
        if name in given and other in given:
            raise InvalidRequestError(name, given[name], f"also `{other}` is given; give one")
    if config.min_new_tokens is not None:
        config.min_length = prompt_length + config.min_new_tokens
    if "max_length" in given:
        config.max_new_tokens = None
    name, value = "max_new_tokens", config.max_new_tokens
    if value is not None:
        end = prompt_length + value
    elif config.max_length is not None:
        name, value = "max_length", config.max_length
        end = value
    else:
        end = context if context is not None else prompt_length + 2**31
    if context is not None and name not in given:
        # A default that reaches beyond the context means: to its end.
        end = min(end, context)
    if context is not None and prompt_length >= context and name not in given:
        much = prompt_length - context + 1
        allowed = f"the context holds {context} tokens, an answer included; shorten it by {much}"
        raise ContextLengthError("prompt", counted(prompt_length, "token"), allowed)
    if context is not None and (end > context or prompt_length >= context):
        raise ContextLengthError(
            name,
            value,
            f"the prompt has {prompt_length} tokens and the context holds {context}; shorten the "
            "prompt or ask for fewer tokens",
        )
    if end <= prompt_length:
        raise ContextLengthError(
            name, value, f"counts the prompt, which has {prompt_length} tokens; give more"
        )
    if "min_length" in given and (config.min_length or 0) > end:
        allowed = f"the text ends at {end} tokens, prompt included; ask for less, or allow more"
        raise InvalidRequestError("min_length", config.min_length, allowed)
    return end


def _end_of_prompt(
    config: GenerationConfig, given: Mapping[str, Any], prompt_length: int, context: int | None
) -> int:
    """Return the end of a text that ends where the prompt does, which may fill the context."""
    for name in ("max_length", "min_length", "min_new_tokens"):
        if given.get(name):
            allowed = "`max_new_tokens` is 0, so nothing follows the prompt; leave it out"
            raise InvalidRequestError(name, given[name], allowed)
    if context is not None and prompt_length > context:
        allowed = f"it has {prompt_length} tokens, and the context holds {context}; shorten it"
        raise ContextLengthError("prompt", prompt_length, allowed)
    config.min_length, config.min_new_tokens = 0, None
    return prompt_length


def shorten_to_memory(params: RequestParams, prompt_length: int, positions: int) -> None:
    """End a request that could outgrow an empty cache where the cache ends.

    Args:
        params: Of the request; its end may move if it is a default.
        prompt_length: Number of prompt ids.
        positions: Positions that the whole memory has for each row; less than its end.

    Raises:
        ContextLengthError: It asks for more, so it could never be served.
        InvalidRequestError: It asks for more new tokens at the least than there is room for.
    """
    end = params.config.max_length
    assert end is not None
    if params.length is not None or prompt_length >= positions:
        raise ContextLengthError(
            params.length or "prompt",
            end - prompt_length if params.length == "max_new_tokens" else end,
            f"the prompt has {prompt_length} tokens, and the memory for keys and values holds "
            f"{positions}; shorten the prompt, ask for fewer tokens, or give the engine a larger "
            "`kv_cache_memory`",
        )
    _set_end(params.config, positions, prompt_length)


def _set_end(config: GenerationConfig, end: int, prompt_length: int) -> None:
    """Let a text end at a position; its fewest new tokens must fit before it."""
    config.max_length, config.max_new_tokens = end, None
    least, most = config.min_new_tokens, end - prompt_length
    if least is not None and least > most:
        allowed = f"at most {counted(most, 'token')} can follow"
        raise InvalidRequestError("min_new_tokens", least, allowed)


def _fill(config: GenerationConfig, values: Mapping[str, Any], keep_length: bool = False) -> None:
    """Give fields that are still open their default; never a length of 20 tokens."""
    for name, value in values.items():
        if name in ("max_length", "max_new_tokens") and not keep_length:
            continue
        if value is not None and getattr(config, name, None) is None:
            setattr(config, name, value)


def _top_logprobs(params: Mapping[str, Any]) -> int | None:
    """Number of alternatives, or ``None`` for no log-probabilities at all."""
    top: int = params.get("top_logprobs", 0)
    if params.get("logprobs", "top_logprobs" in params):
        return top
    if top:
        raise InvalidRequestError("top_logprobs", top, "needs `logprobs=True`")
    return None


def _from_value_error(error: Exception, given: Mapping[str, Any]) -> InvalidRequestError:
    """Name the parameter that a documented error message speaks of."""
    message = str(error)
    named: Callable[[str], bool] = lambda name: f"`{name}`" in message or name in message  # noqa: E731
    name = next((name for name in given if named(name)), next(iter(given), "generation_config"))
    return InvalidRequestError(name, given.get(name), message)
