"""Keyword parameters joined with the model's defaults, and every value that is refused."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgen.engine.params import RequestParams, resolve_params
from asyncgen.errors import ContextLengthError, InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.modes import GenerationMode


def _resolve(
    defaults: GenerationConfig | None = None, prompt_length: int = 10, **given: Any
) -> RequestParams:
    return resolve_params(
        given,
        GenerationConfig() if defaults is None else defaults,
        prompt_length=prompt_length,
        context_length=100,
    )


def test_generation_may_go_to_the_end_of_the_context() -> None:
    assert _resolve().config.max_length == 100


def test_the_models_own_length_counts() -> None:
    assert _resolve(GenerationConfig(max_new_tokens=7)).config.max_length == 17
    assert _resolve(GenerationConfig(max_length=50)).config.max_length == 50
    assert _resolve(GenerationConfig(max_length=50), max_new_tokens=60).config.max_length == 70


def test_greedy_unless_asked() -> None:
    assert _resolve().mode is GenerationMode.GREEDY_SEARCH
    assert _resolve(GenerationConfig(do_sample=True)).mode is GenerationMode.SAMPLE


@pytest.mark.parametrize(
    "given",
    [{"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"typical_p": 0.5}],
)
def test_a_sampling_parameter_asks_for_sampling(given: dict[str, Any]) -> None:
    params = _resolve(**given)
    assert params.mode is GenerationMode.SAMPLE
    (name,) = given
    assert getattr(params.config, name) == given[name]
    with pytest.raises(InvalidRequestError) as caught:
        _resolve(do_sample=False, **given)
    assert caught.value.parameter == name


def test_none_is_not_given() -> None:
    assert _resolve(temperature=None, max_new_tokens=None, stop=None).mode is (
        GenerationMode.GREEDY_SEARCH
    )


def test_a_config_of_the_caller_is_the_base_and_stays_as_it_is() -> None:
    base = GenerationConfig(do_sample=True, top_k=9)
    params = _resolve(
        GenerationConfig(eos_token_id=3, top_k=4), generation_config=base, temperature=0.5
    )
    assert (params.config.top_k, params.config.eos_token_id) == (9, 3)
    assert base.temperature is None


def test_samples_by_either_name() -> None:
    assert _resolve(n=3, do_sample=True).num_samples == 3
    assert _resolve(num_return_sequences=2, do_sample=True).num_samples == 2
    with pytest.raises(InvalidRequestError):
        _resolve(n=3, num_return_sequences=2, do_sample=True)


def test_logprobs() -> None:
    assert _resolve().top_logprobs is None
    assert _resolve(logprobs=True).top_logprobs == 0
    assert _resolve(top_logprobs=4).top_logprobs == 4
    with pytest.raises(InvalidRequestError):
        _resolve(logprobs=False, top_logprobs=4)


def test_seed_is_kept_or_drawn() -> None:
    assert _resolve(seed=7).seed == 7
    assert _resolve().seed != _resolve().seed


def test_stop_in_both_forms() -> None:
    assert _resolve(stop="a").stop == ("a",)
    assert _resolve(stop=["a", "bc"]).stop == ("a", "bc")


@pytest.mark.parametrize(
    ("given", "parameter"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -3}, "top_k"),
        ({"min_p": 2.0}, "min_p"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": -5}, "max_new_tokens"),
        ({"max_new_tokens": 2.5}, "max_new_tokens"),
        ({"max_length": 20, "max_new_tokens": 5}, "max_length"),
        ({"min_new_tokens": 50, "max_new_tokens": 5}, "min_new_tokens"),
        ({"min_length": 5, "min_new_tokens": 5}, "min_length"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"seed": 1.5}, "seed"),
        ({"seed": True}, "seed"),
        ({"priority": "high"}, "priority"),
        ({"stop": [""]}, "stop"),
        ({"stop": [3]}, "stop"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 1000}, "top_logprobs"),
        ({"skip_special_tokens": 1}, "skip_special_tokens"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size"),
        ({"bad_words_ids": []}, "bad_words_ids"),
    ],
)
def test_bad_values_are_named(given: dict[str, Any], parameter: str) -> None:
    from asyncgen.engine.prepare import prepare_request
    from asyncgen.generation.cancel import CancelCriteria
    from streamers import Mailbox
    from tests.doubles.models import TableModel, byte_tokenizer

    with pytest.raises(InvalidRequestError) as caught:
        prepare_request(
            TableModel(),
            byte_tokenizer(),
            "a prompt",
            given,
            cancel=CancelCriteria(),
            sink=Mailbox(),
        )
    assert caught.value.parameter == parameter


@pytest.mark.parametrize("given", [{"max_new_tokens": 91}, {"max_length": 101}, {"max_length": 10}])
def test_beyond_the_context(given: dict[str, Any]) -> None:
    with pytest.raises(ContextLengthError, match="10 tokens"):
        _resolve(**given)
    with pytest.raises(ContextLengthError):
        _resolve(prompt_length=100)
