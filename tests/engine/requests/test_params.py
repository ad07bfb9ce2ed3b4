"""Parameters of a request over those of its config over the model's over the documented ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncgen.engine.requests.params import RequestParams, resolve_params
from asyncgen.errors import ContextLengthError, InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.config.generation_config import _warn_once
from asyncgen.generation.config.modes import GenerationMode
from asyncgen.generation.config.rules import MOST_ROWS
from tests.cases import for_each


def resolve(
    given: dict[str, Any] | None = None,
    defaults: GenerationConfig | None = None,
    *,
    prompt: int = 4,
    context: int | None = 100,
    base: GenerationConfig | None = None,
) -> RequestParams:
    """Resolve over a prompt of 4 ids in a context of 100."""
    return resolve_params(
        {**(given or {}), **({} if base is None else {"generation_config": base})},
        defaults or GenerationConfig(),
        prompt_length=prompt,
        context_length=context,
    )


def test_defaults_apply_without_parameters() -> None:
    params = resolve()
    assert params.mode is GenerationMode.GREEDY_SEARCH
    assert params.config.max_length == 100
    assert params.config.max_new_tokens is None
    assert (params.stop, params.top_logprobs, params.num_samples, params.priority) == (
        (),
        None,
        1,
        0,
    )
    assert params.skip_special_tokens
    assert not params.processors and not params.criteria
    assert 0 <= params.seed < 2**64
    assert params.seed != resolve().seed


def test_the_order_of_sources() -> None:
    defaults = GenerationConfig(top_k=1, temperature=0.1, do_sample=True, max_new_tokens=5)
    base = GenerationConfig(top_k=2, do_sample=True)
    before = (defaults.to_dict(), base.to_dict())
    params = resolve({"generation_config": base, "top_p": 0.5}, defaults)
    config = params.config
    assert (config.top_k, config.temperature, config.top_p) == (2, 0.1, 0.5)
    assert (config.typical_p, config.max_length) == (1.0, 9)
    assert (defaults.to_dict(), base.to_dict()) == before


@for_each(
    ("defaults", "given", "end"),
    [
        ({}, {}, 100),
        ({"max_length": 20}, {}, 20),
        ({"max_new_tokens": 20}, {}, 24),
        ({"max_new_tokens": 20, "max_length": 9}, {}, 24),
        ({"max_new_tokens": 20}, {"max_length": 30}, 30),
        ({"max_length": 20}, {"max_new_tokens": 96}, 100),
    ],
)
def test_lengths(defaults: dict[str, Any], given: dict[str, Any], end: int) -> None:
    assert resolve(given, GenerationConfig(**defaults)).config.max_length == end


def test_without_a_context_there_is_no_end_to_speak_of() -> None:
    length = resolve(context=None).config.max_length
    assert length is not None and length > 10**9


@pytest.mark.parametrize(
    ("given", "prompt"),
    [
        ({}, 100),
        ({"max_new_tokens": 97}, 4),
        ({"max_length": 101}, 4),
        ({"max_length": 4}, 4),
    ],
)
def test_too_long_requests_raise_context_length_error(given: dict[str, Any], prompt: int) -> None:
    with pytest.raises(ContextLengthError, match=str(prompt)):
        resolve(given, prompt=prompt)


def test_least_lengths_are_absolute_afterwards() -> None:
    assert resolve({"min_new_tokens": 6}).config.min_length == 10
    with pytest.raises(InvalidRequestError, match="at most 3 tokens"):
        resolve({"min_new_tokens": 4, "max_new_tokens": 3})
    with pytest.raises(InvalidRequestError) as caught:
        resolve({"min_new_tokens": 4, "min_length": 3})
    assert caught.value.parameter == "min_length"


@for_each(
    "name", ["temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"]
)
def test_sampling_is_implied(name: str) -> None:
    value = 7 if name == "top_k" else 0.5
    assert resolve({name: value}).mode is GenerationMode.SAMPLE
    with pytest.raises(InvalidRequestError, match="do_sample") as caught:
        resolve({name: value, "do_sample": False})
    assert caught.value.parameter == name
    # A default of the model does not ask for anything.
    defaults = GenerationConfig(**{name: value, "do_sample": True})
    assert resolve({"do_sample": False}, defaults).mode is GenerationMode.GREEDY_SEARCH


@pytest.mark.parametrize("zero", [0, 0.0, torch.tensor(0.0)])
def test_a_temperature_of_0_is_greedy(zero: object) -> None:
    own = GenerationConfig(do_sample=True, temperature=0.7, top_p=0.9)
    given = {"temperature": zero, "top_p": 0.3, "top_k": 4, "min_p": 0.1}
    assert resolve(given, own).mode is GenerationMode.GREEDY_SEARCH
    assert resolve({**given, "do_sample": False}, own).mode is GenerationMode.GREEDY_SEARCH
    assert resolve({"temperature": zero, "num_beams": 2}, own).mode is GenerationMode.BEAM_SEARCH
    contrastive = resolve({"temperature": zero, "top_k": 4, "penalty_alpha": 0.6}, own)
    assert contrastive.mode is GenerationMode.CONTRASTIVE_SEARCH
    assert contrastive.config.top_k == 4


@for_each(
    ("beside", "name"),
    [
        ({"do_sample": True}, "temperature"),
        ({"do_sample": "no"}, "do_sample"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"typical_p": 0.5}, "typical_p"),
        ({"n": 2, "num_return_sequences": 3}, "n"),
    ],
)
def test_sampling_parameters_are_refused_at_temperature_0(
    beside: dict[str, Any], name: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        resolve({"temperature": 0, **beside})
    assert caught.value.parameter == name


COLD = ({"temperature": 0.0}, {"do_sample": False, "temperature": 0}, {"temperature": -0.0})


@for_each("own", [GenerationConfig(**fields) for fields in COLD])
def test_default_temperature_of_0_is_greedy(own: GenerationConfig) -> None:
    for given in ({}, {"top_p": 0.3, "top_k": 4}, {"do_sample": False}, {"temperature": 0}):
        assert resolve(given, own).mode is GenerationMode.GREEDY_SEARCH
        assert resolve(given, GenerationConfig(), base=own).mode is GenerationMode.GREEDY_SEARCH
    assert resolve({"temperature": 0.5}, own).mode is GenerationMode.SAMPLE
    for asking in ({"do_sample": True}, {"do_sample": True, "top_p": 0.3}):
        with pytest.raises(InvalidRequestError, match="`temperature` is 0: .*`do_sample` asks"):
            resolve(asking, own)


def test_default_temperature_of_0_beside_sampling_is_refused_until_one_is_given() -> None:
    own = GenerationConfig(temperature=0.0, do_sample=True)
    with pytest.raises(InvalidRequestError, match="`temperature` is 0: .*`do_sample` asks"):
        resolve({}, own)
    assert resolve({"temperature": 0}, own).mode is GenerationMode.GREEDY_SEARCH
    assert resolve({"do_sample": False}, own).mode is GenerationMode.GREEDY_SEARCH
    assert resolve({"temperature": 0.5}, own).mode is GenerationMode.SAMPLE


def test_temperature_of_0_is_no_flag_without_effect(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", logger="asyncgen.generation")
    _warn_once.cache_clear()
    resolve({"temperature": 0.0})
    resolve({"temperature": 0, "do_sample": False, "n": 2})
    assert not caplog.records


@for_each("name", ["n", "num_return_sequences"])
def test_samples_at_temperature_0_are_equal_ones(name: str) -> None:
    for given, own in (({"temperature": 0}, None), ({}, GenerationConfig(temperature=0.0))):
        found = resolve({**given, name: 3}, own)
        assert found.mode is GenerationMode.GREEDY_SEARCH
        assert found.num_samples == found.config.num_return_sequences == 3
    with pytest.raises(InvalidRequestError, match="must be 1 for greedy"):
        resolve({"do_sample": False, name: 3})
    with pytest.raises(InvalidRequestError, match="must not exceed `num_beams`"):
        resolve({"temperature": 0, "num_beams": 2, name: 3})


@for_each(
    "unused",
    [{"top_k": -1}, {"top_p": 2.0}, {"typical_p": 1.5}, {"length_penalty": 99}],
)
def test_default_outside_its_range_counts_only_where_it_is_used(unused: dict[str, Any]) -> None:
    own = GenerationConfig(**unused)
    assert resolve({}, own).mode is GenerationMode.GREEDY_SEARCH
    used = {"num_beams": 2} if "length_penalty" in unused else {"do_sample": True}
    with pytest.raises(InvalidRequestError, match=f"^`{next(iter(unused))}`"):
        resolve(used, own)


def test_no_temperature_at_all_is_none_of_0() -> None:
    with pytest.raises(InvalidRequestError, match="temperature"):
        resolve({"temperature": False})


@for_each(
    ("given", "top"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"top_logprobs": 3}, 3),
        ({"top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 100}, 100),
    ],
)
def test_logprobs(given: dict[str, Any], top: int | None) -> None:
    assert resolve(given).top_logprobs == top


def test_samples() -> None:
    assert resolve({"n": 3, "do_sample": True}).num_samples == 3
    assert resolve({"n": 3, "num_return_sequences": 3, "do_sample": True}).num_samples == 3
    assert resolve({"n": 1}).num_samples == 1


@pytest.mark.parametrize("length", [11, 2**31, 2**63 - 1])
def test_a_least_length_beyond_the_end_is_refused(length: int) -> None:
    assert resolve({"max_length": 10, "min_length": 10}).config.min_length == 10
    with pytest.raises(InvalidRequestError, match="ends at 10 tokens") as caught:
        resolve({"max_length": 10, "min_length": length})
    assert caught.value.parameter == "min_length"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("negative_prompt_ids", [True]),
        ("negative_prompt_ids", torch.ones(1, 2, dtype=torch.bool)),
        ("negative_prompt_attention_mask", [-1]),
        ("negative_prompt_attention_mask", [[0, 2**63 - 1]]),
    ],
)
def test_a_prompt_to_lead_away_from_is_ids_and_a_mask_of_bits(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        resolve({"guidance_scale": 1.5, name: value})
    assert caught.value.parameter == name
    passing = {"negative_prompt_ids": [3, 0], "negative_prompt_attention_mask": [True, False]}
    assert resolve({"guidance_scale": 1.5, **passing}).negative_prompt_ids is not None


@for_each("count", [MOST_ROWS + 1, 10**9, 2**63, True, 0])
@for_each("name", ["n", "num_return_sequences"])
def test_samples_are_bounded(name: str, count: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"from 1 to {MOST_ROWS}") as caught:
        resolve({name: count, "do_sample": True})
    assert caught.value.parameter == name


def test_stop_strings() -> None:
    assert resolve({"stop": "a"}).stop == ("a",)
    assert resolve({"stop": ["a", "b"]}).stop == ("a", "b")
    assert resolve({"stop": []}).stop == ()


def test_parameters_without_effect_are_refused() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        resolve({"early_stopping": True})
    assert caught.value.parameter == "early_stopping"


def test_an_error_of_the_config_names_the_parameter() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        resolve({"max_new_tokens": "many", "seed": 1})
    assert caught.value.parameter == "max_new_tokens"
    assert caught.value.value == "many"


@for_each("seed", [-(2**63), -1, 0, 2**63, 2**64 - 1])
def test_seeds_are_those_that_torch_takes(seed: int) -> None:
    torch.Generator().manual_seed(seed)
    assert resolve({"seed": seed}).seed == seed


@for_each("seed", [-(2**63) - 1, 2**64, 2**70, True, 1.0])
def test_another_seed_is_refused_and_not_reduced(seed: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"`seed` is .*from -2\*\*63 to 2\*\*64 - 1"):
        resolve({"seed": seed})
