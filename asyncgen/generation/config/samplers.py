"""Settle the samplers of llama.cpp in a request, and names that other engines have for ours.

What is given for a sampler that is off is refused, unless the request itself says that it is off:
clients of llama.cpp send all of its parameters, with the values that change nothing.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.checks import check_values
from asyncgen.generation.config.modes import GenerationMode
from asyncgen.generation.config.own_parameters import ALIASES, SAMPLERS
from asyncgen.generation.config.parameters import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SAMPLER_NAMES = frozenset(each.name for each in SAMPLERS)
ALIAS_NAMES = frozenset(ALIASES)

DRAWING = tuple(each.name for each in SAMPLERS if each.needs == "do_sample")
"""Samplers that ask to draw tokens."""

_COMPANIONS = {each.name: each.needs for each in SAMPLERS if each.needs not in (None, "do_sample")}
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_LAST_FIRST = ("xtc_probability", "top_n_sigma", "dynatemp_range")
"""Samplers with which all filters run in llama.cpp's order: the temperature comes last."""

_FILTERS: Mapping[str, float | None] = {
    "top_h": None,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}
"""Filters that do not go with mirostat, and the value of each that keeps all tokens."""

_MOST_XTC_THRESHOLD = 0.5

_TRUNCATION = {"disabled": "refuse", "auto": "truncate_middle"}
"""Values of the Responses API, and ours."""


def join_aliases(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters under our own names.

    Args:
        given: As the request gave them, under any name; none is ``None``.

    Raises:
        InvalidRequestError: A value that is not allowed, or two names of one parameter with two
            values.
    """
    joined = {name: value for name, value in given.items() if name not in ALIASES}
    for name in [name for name in given if name in ALIASES]:
        ours, value = ALIASES[name], given[name]
        check_values({name: value})
        if ours == "context_overflow":
            value = _TRUNCATION[value]
        elif ours == "max_reasoning_tokens" and value == -1:
            value = None  # no limit
        if joined.setdefault(ours, value) != value:
            raise InvalidRequestError(name, given[name], f"the same thing as `{ours}`; give one")
    return {name: value for name, value in joined.items() if value is not None}


@contextmanager
def names_as_given(given: Mapping[str, Any]) -> Iterator[None]:
    """Let an error about a parameter name it as the request did."""
    try:
        yield
    except InvalidRequestError as error:
        for name in given:
            if ALIASES.get(name) == error.parameter:
                raise type(error)(name, given[name], error.allowed) from error
        raise


def ask_samplers(params: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Find the samplers that a request turns on.

    Args:
        params: All parameters of the request, their values checked.
        given: Those that are fields of a configuration; gets ``do_sample`` where a sampler asks
            for it.

    Returns:
        The samplers and all that belongs to them, defaults included.

    Raises:
        InvalidRequestError: Names what has no effect, or goes not together.
    """
    for name, switch in _COMPANIONS.items():
        if name in params and switch not in params:
            raise InvalidRequestError(name, params[name], f"has no effect without `{switch}`")
    asked = {name: params[name] for name in ("dry_multiplier", *DRAWING) if params.get(name, 0) > 0}
    for name, switch in _COMPANIONS.items():
        if switch in asked:
            asked[name] = params.get(name, BY_NAME[name].default)
    if asked.get("xtc_threshold", 0) > _MOST_XTC_THRESHOLD:
        asked.pop("xtc_probability"), asked.pop("xtc_threshold")
    if asked.get("dry_penalty_last_n") == 0:
        asked = {name: value for name, value in asked.items() if not name.startswith("dry_")}
    if "repeat_last_n" in params:
        asked["repeat_last_n"] = params["repeat_last_n"]
    for name in DRAWING:
        if name in asked and given.setdefault("do_sample", True) is not True:
            allowed = "a sampling parameter; leave it out together with `do_sample=False`"
            raise InvalidRequestError(name, asked[name], allowed)
    if "mirostat" in asked:
        _check_mirostat(asked, given)
    return asked


def _check_mirostat(asked: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse other filters beside mirostat, which chooses by itself what is left out."""
    wrong = {name: asked[name] for name in _LAST_FIRST if name in asked}
    for name, off in _FILTERS.items():
        if given.get(name, off) != off:
            wrong[name] = given[name]
    for name, value in wrong.items():
        allowed = "`mirostat` chooses by itself which tokens stay; give one of them"
        raise InvalidRequestError(name, value, allowed)


def fit_samplers(
    asked: dict[str, Any], params: Mapping[str, Any], config: Any, mode: GenerationMode
) -> dict[str, Any]:
    """Fit the samplers of a request into its complete configuration.

    Args:
        asked: What `ask_samplers` returned.
        params: All parameters of the request.
        config: Its configuration; filters that do not go with mirostat are switched off, and a
            temperature that comes last is taken out.
        mode: Its strategy.

    Returns:
        Arguments for building the processors, by name.

    Raises:
        InvalidRequestError: Names the sampler that does not work with the strategy, or has no
            effect.
    """
    if "repeat_last_n" in asked:
        _check_window(asked, params, config)
    if mode not in (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH):
        for name, value in asked.items():
            raise InvalidRequestError(name, value, f"does not work in {mode.value}; leave it out")
    if "mirostat" in asked:
        for name in _FILTERS:
            setattr(config, name, None)
    if any(name in asked for name in _LAST_FIRST):
        # A range of 0 is a temperature that does not move.
        asked.setdefault("dynatemp_range", 0.0)
        asked.setdefault("dynatemp_exponent", 1.0)
        asked["last_temperature"] = 1.0 if config.temperature is None else config.temperature
        config.temperature = None
    return asked


def _check_window(asked: dict[str, Any], params: Mapping[str, Any], config: Any) -> None:
    """Refuse a window that no penalty looks through; leave it out where all of them are off."""
    is_on = any(not BY_NAME[name].is_neutral(params.get(name)) for name in _PENALTIES)
    if is_on or config.repetition_penalty not in (None, 1.0):
        return
    last_n = asked.pop("repeat_last_n")
    if not any(name in params for name in _PENALTIES):
        names = ", ".join(f"`{name}`" for name in _PENALTIES)
        allowed = f"has no effect without one of {names}"
        raise InvalidRequestError("repeat_last_n", last_n, allowed)
