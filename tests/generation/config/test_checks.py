"""Test rules between parameters: names, token ids, beams, and which switches which off."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.engine.requests.params import resolve_params
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.config.checks import (
    check_names,
    check_supported,
    check_token_ids,
    check_values,
    hard_rules,
    join_equal_ids,
    minor_issues,
)
from asyncgen.generation.config.combinations import BEAMS, Parameters, check_combinations
from asyncgen.generation.config.modes import GenerationMode
from asyncgen.generation.config.parameters import PARAMETERS, SAMPLING
from asyncgen.generation.strategies.constraints import check_constraints
from tests.cases import for_each
from tests.doubles.models import TableModel
from tests.engine.making import request_for

if TYPE_CHECKING:
    from pathlib import Path


def test_every_known_name_passes() -> None:
    check_names({each.name: None for each in PARAMETERS if not each.elsewhere})


def test_parameters_that_belong_elsewhere_are_refused() -> None:
    for each in PARAMETERS:
        if each.elsewhere:
            with pytest.raises(InvalidRequestError, match="not a parameter of a stream"):
                check_names({each.name: True})


def test_each_method_has_separate_names() -> None:
    def method(model: Any, input_ids: Any, depth: int = 1) -> None:
        """Takes a parameter that nobody else knows."""

    check_names({"custom_generate": method, "depth": 2})
    check_names({"custom_generate": "folder", "whatever": 2})
    with pytest.raises(InvalidRequestError, match="unknown parameter"):
        check_names({"custom_generate": method, "breadth": 2})


def test_misspelled_parameter_error_suggests_the_name() -> None:
    with pytest.raises(InvalidRequestError, match="did you mean `temperature`"):
        check_names({"temperatur": 1.0})
    with pytest.raises(InvalidRequestError, match=r"unknown parameter$"):
        check_names({"qqqqqqqq": 1.0})


def test_defaults_pass_every_rule() -> None:
    config = GenerationConfig(**GenerationConfig._get_default_generation_params())
    hard_rules(config)
    assert not minor_issues(config)
    check_supported(config)


def test_one_rule_of_each_kind() -> None:
    config = GenerationConfig()
    config.assistant_ensemble_weight = 1.0
    with pytest.raises(InvalidRequestError, match="strictly between"):
        hard_rules(config)
    config.assistant_ensemble_weight = None
    config.num_return_sequences = 3
    with pytest.raises(InvalidRequestError, match="must be 1 for greedy"):
        hard_rules(config)
    config.num_beams = 2
    with pytest.raises(InvalidRequestError, match=r"num_beams` \(2\)"):
        hard_rules(config)


def test_greedy_decoding_refuses_only_given_sampling_parameters() -> None:
    config = GenerationConfig(do_sample=True, temperature=0.5, top_k=3)
    config.do_sample = False
    assert [issue.name for issue in minor_issues(config)] == ["temperature", "top_k"]
    assert not minor_issues(config, {"do_sample"})
    assert [issue.name for issue in minor_issues(config, {"do_sample", "top_k"})] == ["top_k"]


_MODES: dict[GenerationMode, dict[str, Any]] = {
    GenerationMode.GREEDY_SEARCH: {},
    GenerationMode.SAMPLE: {"do_sample": True},
    GenerationMode.CONTRASTIVE_SEARCH: {"penalty_alpha": 0.6},
    GenerationMode.ASSISTED_GENERATION: {"prompt_lookup_num_tokens": 2},
    GenerationMode.DOLA_GENERATION: {"dola_layers": "low"},
    GenerationMode.BEAM_SEARCH: {"num_beams": 2},
    GenerationMode.BEAM_SAMPLE: {"num_beams": 2, "do_sample": True},
    GenerationMode.GROUP_BEAM_SEARCH: {"num_beams": 2, "num_beam_groups": 2},
    GenerationMode.CONSTRAINED_BEAM_SEARCH: {"num_beams": 2, "force_words_ids": [[3]]},
}
_OF_BEAMS = {"length_penalty", "early_stopping"}


@pytest.mark.parametrize("mode", GenerationMode)
def test_minor_issues_list_the_idle_flags_of_each_mode(
    mode: GenerationMode, tmp_path: Path
) -> None:
    flags: dict[str, Any] = dict.fromkeys(SAMPLING, 0.5)
    flags |= {"top_k": 4, "length_penalty": 2.0, "early_stopping": True}
    config = GenerationConfig()
    config.__dict__.update({**flags, **_MODES[mode]})
    assert config.get_generation_mode() is mode
    idle = set() if config.do_sample else set(SAMPLING)
    idle -= {"top_k"} if mode is GenerationMode.CONTRASTIVE_SEARCH else set()
    idle |= set() if config.num_beams else _OF_BEAMS
    assert {issue.name for issue in minor_issues(config)} == idle
    used = {name: value for name, value in flags.items() if name not in idle}
    GenerationConfig(**used, **_MODES[mode]).save_pretrained(tmp_path)


SIZE = 10
ONE = "pad_token_id bos_token_id forced_bos_token_id".split()
LISTS = "suppress_tokens begin_suppress_tokens".split()
EITHER = "eos_token_id forced_eos_token_id decoder_start_token_id".split()


def check(name: str, value: Any, *, is_given: bool = True) -> None:
    check_token_ids(SimpleNamespace(**{name: value}), {name} if is_given else (), SIZE)


def test_empty_token_id_settings_pass_the_check() -> None:
    check_token_ids(GenerationConfig(), (), SIZE)


@for_each("name", [*ONE, *EITHER])
def test_one_id(name: str) -> None:
    check(name, 0)
    check(name, SIZE - 1)
    for bad in (-1, SIZE, 2**70):
        with pytest.raises(InvalidRequestError, match=f"{name}.*from 0 to 9"):
            check(name, bad)


@for_each("name", [*LISTS, *EITHER])
def test_several_ids(name: str) -> None:
    check(name, [0, 9])
    check(name, (3,))
    check(name, torch.tensor([1, 2]))
    with pytest.raises(InvalidRequestError, match=f"`{name}` is 10: token ids are from 0 to 9"):
        check(name, [1, SIZE])


@for_each("name", [*ONE, *LISTS, *EITHER])
@for_each("value", ["a", 1.5, True, ["a"], [1.5], [False], [[1]], {}])
def test_invalid_token_ids_are_refused_as_argument_and_default(name: str, value: Any) -> None:
    for is_given in (True, False):
        if value == {} and name not in ONE:
            continue  # a set of no ids
        with pytest.raises(InvalidRequestError) as caught:
            check(name, value, is_given=is_given)
        assert caught.value.parameter == name
        assert caught.value.value == value


@for_each(
    ("name", "value"),
    [
        ("bad_words_ids", [[1], [2, SIZE]]),
        ("sequence_bias", [[[1, SIZE], 1.0]]),
        ("sequence_bias", {(1, SIZE): 1.0}),
        ("force_words_ids", [[1], [2, SIZE]]),
        ("force_words_ids", [[1], [[2], [3, SIZE]]]),
    ],
)
def test_ids_in_words(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"`{name}` is 10: token ids are from 0 to 9"):
        check(name, value)
    forms: list[Any] = [3, [3], [[]], [["a"]]]
    for broken in forms:  # their form is not looked at here
        check(name, broken)


def test_a_default_beyond_the_vocabulary_never_comes() -> None:
    for name in ("eos_token_id", "pad_token_id", "suppress_tokens"):
        check(name, [SIZE] if name == "suppress_tokens" else SIZE, is_given=False)
    for name in ("forced_eos_token_id", "forced_bos_token_id"):
        with pytest.raises(InvalidRequestError, match=name):
            check(name, SIZE, is_given=False)


def test_an_empty_list_forces_nothing() -> None:
    check("eos_token_id", [])
    with pytest.raises(InvalidRequestError, match="forced_eos_token_id"):
        check("forced_eos_token_id", [])


@pytest.mark.parametrize("name", [*LISTS, "eos_token_id", "forced_eos_token_id"])
def test_an_id_that_is_named_often_is_looked_at_once(name: str) -> None:
    given = [7, 3, 7, 7, 3]
    config = SimpleNamespace(**{name: given})
    join_equal_ids(config)
    assert getattr(config, name) == [7, 3], "the first is the first"
    assert len(given) == 5
    for other in (None, 3, [[1], [1]], "aa", [True, 1]):
        setattr(config, name, other)
        join_equal_ids(config)
        assert getattr(config, name) is other


def test_start_ids_are_one_for_each_row() -> None:
    config = SimpleNamespace(decoder_start_token_id=[0, 0])
    join_equal_ids(config)
    assert config.decoder_start_token_id == [0, 0]


def test_a_request_names_each_id_once() -> None:
    request, _ = request_for(eos_token_id=[5] * 1000, suppress_tokens=[6] * 1000)
    assert request.params.config.eos_token_id == [5]
    assert request.params.config.suppress_tokens == [6]


@for_each(
    ("name", "value"),
    [
        ("forced_eos_token_id", 260),
        ("forced_eos_token_id", "a"),
        ("forced_bos_token_id", "a"),
        ("suppress_tokens", [260]),
        ("bad_words_ids", [[260]]),
        ("force_words_ids", [[2**63 - 1]]),
    ],
)
def test_a_request_is_checked(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        request_for(**{name: value}, **({"num_beams": 2} if "force_words" in name else {}))
    assert caught.value.parameter == name


def check_all(config: Any) -> None:
    """Run the checks of beams that both entry points run."""
    check_combinations(BEAMS, Parameters(config))
    check_values({"length_penalty": config.length_penalty})
    if config.constraints is not None or config.force_words_ids is not None:
        check_constraints(config)


GROUPS: dict[str, Any] = {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"num_beams": 0}, "num_beams"),
    ({"num_beams": 4, "num_beam_groups": 3, "diversity_penalty": 1.0}, "num_beam_groups"),
    ({"num_beams": 2, "num_beam_groups": 4, "diversity_penalty": 1.0}, "num_beam_groups"),
    ({"num_beam_groups": 2}, "num_beam_groups"),
    ({"num_beams": 4, "num_beam_groups": 2}, "diversity_penalty"),
    ({"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": -1.0}, "diversity_penalty"),
    ({"num_beams": 4, "diversity_penalty": 1.0}, "diversity_penalty"),
    (
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0, "do_sample": True},
        "do_sample",
    ),
    ({"force_words_ids": [[1]]}, "num_beams"),
    ({"force_words_ids": [[1]], "num_beams": 2, "do_sample": True}, "do_sample"),
    (
        {
            "force_words_ids": [[1]],
            "num_beams": 4,
            "num_beam_groups": 2,
            "diversity_penalty": 1.0,
        },
        "num_beam_groups",
    ),
    ({"force_words_ids": [], "num_beams": 2}, "force_words_ids"),
    ({"force_words_ids": [[-1]], "num_beams": 2}, "force_words_ids"),
    ({"force_words_ids": [[[1], [1, 2]]], "num_beams": 2}, "force_words_ids"),
    ({"constraints": [7], "num_beams": 2}, "constraints"),
    ({"force_words_ids": [[1]] * 65, "num_beams": 2}, "force_words_ids"),
    ({"num_beams": 2, "length_penalty": "long"}, "length_penalty"),
    ({"num_beams": 2, "length_penalty": 31}, "length_penalty"),
    ({"num_beams": 2, "length_penalty": -(10**400)}, "length_penalty"),
    ({"num_beams": 2, "length_penalty": float("nan")}, "length_penalty"),
    ({**GROUPS, "guidance_scale": 1.5}, "guidance_scale"),
    ({**GROUPS, "watermarking_config": {"keys": [1], "ngram_len": 2}}, "watermarking_config"),
]


@for_each(("options", "name"), REFUSED)
def test_refused_by_name_before_any_work(options: dict[str, Any], name: str) -> None:
    config = GenerationConfig()
    for field, value in options.items():
        setattr(config, field, value)
    with pytest.raises(InvalidRequestError) as caught:
        check_all(config)
    assert caught.value.parameter == name
    model = TableModel()
    with pytest.raises(InvalidRequestError):
        model.generate(torch.tensor([[1, 2]]), max_new_tokens=2, **options)
    with pytest.raises(InvalidRequestError):
        resolve_params(options, GenerationConfig(), prompt_length=2, context_length=99)
    assert model.num_forwards == 0


@for_each(
    "options",
    [
        {},
        {"num_beams": 3, "num_return_sequences": 3},
        GROUPS,
        {**GROUPS, "watermarking_config": {"bias": 1.0}},
        {"num_beams": 2, "force_words_ids": [[1], [[2], [3, 4]]]},
    ],
)
def test_valid_beam_options_pass_the_check(options: dict[str, Any]) -> None:
    check_combinations(BEAMS, Parameters(GenerationConfig(**options)))


@pytest.mark.parametrize("returned", [0, 3])
def test_more_sequences_than_beams(returned: int) -> None:
    with pytest.raises(ValueError, match="num_return_sequences"):
        resolve_params(
            {"num_beams": 2, "num_return_sequences": returned},
            GenerationConfig(),
            prompt_length=2,
            context_length=99,
        )


def test_forms_of_words_are_bounded_by_the_beams() -> None:
    forms = [[number] for number in range(2**12)]
    check_constraints(GenerationConfig(num_beams=2, force_words_ids=[forms]))
    for beams, words in ((4, [forms]), (2, [forms, [5000, 5001]])):
        config = GenerationConfig(num_beams=beams, force_words_ids=words)
        with pytest.raises(InvalidRequestError, match=f"for {beams} beams; at most") as caught:
            check_constraints(config)
        assert caught.value.parameter == "force_words_ids"


@for_each(
    "field",
    [
        *({"logprobs": 5}, {"stop": ""}, {"seed": 1.0}, {"priority": 0.5}),
        *({"do_sample": 1}, {"use_cache": 1}, {"early_stopping": 1}, {"renormalize_logits": 1}),
    ],
)
def test_a_file_of_a_model_may_hold_what_a_request_may_not(field: dict[str, Any]) -> None:
    """Keys of its own, and numbers for switches, are in many files."""
    config = GenerationConfig()
    for name, value in field.items():
        setattr(config, name, value)
    request_for(generation_config=config, max_new_tokens=2)


def test_a_file_of_a_model_is_held_to_the_ranges() -> None:
    config = GenerationConfig(do_sample=True)
    config.top_k = -3
    with pytest.raises(InvalidRequestError, match="top_k"):
        request_for(generation_config=config, max_new_tokens=2)
