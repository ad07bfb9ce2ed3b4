"""What a request may say of the samplers of llama.cpp, and under which names."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgen.engine.requests.params import RequestParams, resolve_params
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.config.own_parameters import ALIASES
from asyncgen.generation.config.samplers import join_aliases
from tests.cases import for_each


def resolve(**given: Any) -> RequestParams:
    """The parameters of a request to a model with filters of its own."""
    defaults = GenerationConfig(top_k=20, top_p=0.9, temperature=0.7)
    return resolve_params(given, defaults, prompt_length=3, context_length=100)


SENT_BY_CLIENTS: dict[str, Any] = {
    "xtc_probability": 0,
    "xtc_threshold": 0.1,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 0,
    "dry_sequence_breakers": ["\n"],
    "top_n_sigma": -1,
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "mirostat": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
    "repeat_last_n": 64,
    "repetition_penalty": 1,
    "presence_penalty": 0,
}


def test_samplers_that_are_sent_switched_off_change_nothing() -> None:
    for more in ({}, {"temperature": 0}, {"do_sample": False}, {"num_beams": 2}):
        params = resolve(**SENT_BY_CLIENTS, **more)
        assert params.samplers == {}
        assert params.config.do_sample is resolve(**more).config.do_sample


@for_each(
    ("given", "name"),
    [
        ({"xtc_threshold": 0.1}, "xtc_threshold"),
        ({"dry_base": 2.0}, "dry_base"),
        ({"dynatemp_exponent": 2.0}, "dynatemp_exponent"),
        ({"mirostat_tau": 2.0}, "mirostat_tau"),
        ({"repeat_last_n": 4}, "repeat_last_n"),
        ({"xtc_probability": 1.1}, "xtc_probability"),
        ({"xtc_probability": "0.1"}, "xtc_probability"),
        ({"dry_multiplier": -1.0}, "dry_multiplier"),
        ({"dry_multiplier": 1.0, "dry_sequence_breakers": "a"}, "dry_sequence_breakers"),
        ({"dry_multiplier": 1.0, "dry_sequence_breakers": [""]}, "dry_sequence_breakers"),
        ({"dry_multiplier": 1.0, "dry_sequence_breakers": ["a" * 41]}, "dry_sequence_breakers"),
        ({"dry_multiplier": 1.0, "dry_penalty_last_n": -2}, "dry_penalty_last_n"),
        ({"mirostat": 3}, "mirostat"),
        ({"mirostat": 2, "top_k": 5}, "top_k"),
        ({"mirostat": 1, "min_p": 0.1}, "min_p"),
        ({"mirostat": 1, "xtc_probability": 0.1}, "xtc_probability"),
        ({"xtc_probability": 0.5, "do_sample": False}, "xtc_probability"),
        ({"dynatemp_range": 0.5, "temperature": 0}, "dynatemp_range"),
        ({"top_n_sigma": 1.0, "num_beams": 2}, "top_n_sigma"),
        ({"dry_multiplier": 1.0, "num_beams": 2}, "dry_multiplier"),
        ({"xtc_probability": 0.5, "prompt_lookup_num_tokens": 2}, "xtc_probability"),
        ({"dry_multiplier": 1.0, "penalty_alpha": 0.6, "top_k": 4}, "dry_multiplier"),
        ({"mirostat": 2, "dola_layers": "low"}, "mirostat"),
    ],
)
def test_what_cannot_work_is_refused_by_name(given: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        resolve(**given)
    assert caught.value.parameter == name


def test_mirostat_switches_the_filters_of_a_model_off() -> None:
    config = resolve(mirostat=2, top_k=0, min_p=0.0, typical_p=1.0).config
    assert (config.top_k, config.top_p, config.min_p, config.do_sample) == (None, None, None, True)
    assert config.temperature == 0.7


def test_a_sampler_of_llama_cpp_puts_the_temperature_last() -> None:
    for sampler in ({"xtc_probability": 0.5}, {"top_n_sigma": 1}, {"dynatemp_range": 0.2}):
        params = resolve(**sampler)
        assert params.config.temperature is None
        assert params.samplers["last_temperature"] == 0.7
    for sampler in ({"dry_multiplier": 0.5}, {"repeat_last_n": 5, "repetition_penalty": 1.2}):
        assert resolve(**sampler).config.temperature == 0.7
    assert resolve(top_n_sigma=1.0, temperature=0).samplers == {}  # the best token stays


def test_a_file_with_a_penalty_may_have_a_window() -> None:
    defaults = GenerationConfig(repetition_penalty=1.1)
    params = resolve_params({"repeat_last_n": 8}, defaults, prompt_length=3, context_length=None)
    assert params.samplers == {"repeat_last_n": 8}


def test_other_engines_names_are_ours() -> None:
    for name, ours in ALIASES.items():
        if name == "truncation":  # whose values are others
            continue
        assert join_aliases({name: 7, "seed": 1}) == {ours: 7, "seed": 1}
        assert join_aliases({name: 7, ours: 7}) == {ours: 7}
        with pytest.raises(InvalidRequestError, match=f"`{name}` is 7: the same thing as `{ours}`"):
            join_aliases({name: 7, ours: 8})
    assert join_aliases({"truncation": "auto"}) == {"context_overflow": "truncate_middle"}
    assert join_aliases({"truncation": "disabled"}) == {"context_overflow": "refuse"}
    assert join_aliases({"reasoning_budget": -1}) == {}
    with pytest.raises(InvalidRequestError, match="the same thing as `max_reasoning_tokens`"):
        join_aliases({"reasoning_budget": -1, "max_reasoning_tokens": 3})
    for two in ({"thinking_budget": -1, "reasoning_budget": 4}, {"thinking_budget": 3}):
        with pytest.raises(InvalidRequestError, match="give one"):
            join_aliases({**two, "thinking_token_budget": 5})
    for value in (-2, 1.5, "3", True):
        with pytest.raises(InvalidRequestError, match="`thinking_token_budget` is"):
            join_aliases({"thinking_token_budget": value})
    with pytest.raises(InvalidRequestError, match="`repeat_penalty` is 0"):
        join_aliases({"repeat_penalty": 0})
