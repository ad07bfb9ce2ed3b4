"""Rules that single values are held to."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.config.checks import check_config, check_values
from asyncgen.generation.config.parameters import BY_NAME, DEFAULTS, PARAMETERS
from asyncgen.generation.config.rules import MOST_ROWS, MOST_STOP_CHARACTERS, Documented, Range
from asyncgen.text.tokenizer import Tokenizer
from tests.cases import for_each


def _range_of(rule: Any) -> Range | None:
    rule = rule.rule if isinstance(rule, Documented) else rule
    return rule if isinstance(rule, Range) else None


_NUMBERS = [each.name for each in PARAMETERS if _range_of(each.rule)]
_SWITCHES = [each.name for each in PARAMETERS if each.type == "bool" and each.rule]


_ALL_USED = {"do_sample": True, "num_beams": 2, "use_cache": True, "return_dict_in_generate": True}


def test_defaults_pass() -> None:
    check_config(GenerationConfig(), ())
    check_config(SimpleNamespace(**DEFAULTS), ())
    check_values(DEFAULTS)


def test_the_numbers_are_all_there() -> None:
    assert len(_NUMBERS) > 25 and len(_SWITCHES) > 8
    for name in ("top_p", "temperature", "max_new_tokens", "top_logprobs", "n", "min_p"):
        assert name in _NUMBERS


@for_each(
    ("value", "said"),
    [
        ([], "a dict"),
        ({1: 2}, "a dict"),
        ({"enable_thinking": True, "tools": []}, "`tools` is no variable"),
        ({"add_generation_prompt": False}, "`add_generation_prompt` is no variable"),
        ({"chat_template": "x"}, "`chat_template`"),
        ({"self": 1}, "`self`"),
    ],
)
def test_variables_of_a_chat_template(value: Any, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^`chat_template_kwargs` is .*{said}"):
        check_values({"chat_template_kwargs": value})


def test_no_argument_of_a_rendering_is_a_variable() -> None:
    for name in inspect.signature(Tokenizer.apply_chat_template).parameters:
        if name != "template_variables":
            with pytest.raises(InvalidRequestError):
                check_values({"chat_template_kwargs": {name: None}})
    check_values({"chat_template_kwargs": {"enable_thinking": False, "bos_token": "<s>"}})


@for_each("name", [*_NUMBERS, "eos_token_id"])
@for_each("value", [True, "x", float("nan"), float("inf"), [1.5], {}])
def test_nonsense_is_refused_everywhere(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_values({name: value})
    assert caught.value.parameter == name
    assert caught.value.value is value
    # A file may have keys of its own, and a length that is overridden.
    if name in DEFAULTS and name != "max_length":
        with pytest.raises(InvalidRequestError):
            check_config(SimpleNamespace(**{**_ALL_USED, name: value}), ())


@for_each("name", [*_NUMBERS, "eos_token_id"])
def test_values_below_the_range_are_refused(name: str) -> None:
    rule = _range_of(BY_NAME[name].rule)
    if rule is not None and rule.low is None:
        check_values({name: -1})
        return
    with pytest.raises(InvalidRequestError):
        check_values({name: -31})


@for_each(
    ("name", "value", "passes"),
    [
        ("top_p", 0, True),
        ("top_p", 1.0, True),
        ("top_p", 1.01, False),
        ("epsilon_cutoff", 0.0, True),
        ("epsilon_cutoff", 1.0, False),
        ("repetition_penalty", 0, False),
        ("max_time", 1e-9, True),
        ("no_repeat_ngram_size", 0, True),
        ("no_repeat_ngram_size", 2.0, False),
        ("num_return_sequences", 0, False),
        ("num_return_sequences", MOST_ROWS, True),
        ("num_return_sequences", MOST_ROWS + 1, False),
        ("num_beams", MOST_ROWS + 1, False),
        ("top_k", 0, True),
        ("top_k", 2**63 - 1, True),
        ("temperature", 1e-300, True),
        ("temperature", 0, True),
        ("temperature", -1e-300, False),
        ("guidance_scale", 2**63, False),
        ("max_cache_len", 0, False),
        ("eos_token_id", [], True),
        ("eos_token_id", (1, 2), True),
        ("eos_token_id", [1, "2"], False),
    ],
)
def test_bounds(name: str, value: Any, passes: bool) -> None:
    if passes:
        check_values({name: value})
    else:
        with pytest.raises(InvalidRequestError):
            check_values({name: value})


@for_each("name", _NUMBERS)
@for_each("bits", [63, 64, 1300, 16000], ids=lambda bits: f"{bits} bits")
def test_numbers_beyond_a_word_are_refused_by_name(name: str, bits: int) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_values({name: 1 << bits})
    assert caught.value.parameter == name
    assert len(str(caught.value)) < 300


_TYPED = [*_SWITCHES, "early_stopping", "min_p", "top_h", "diversity_penalty", "penalty_alpha"]


@for_each("name", [*_TYPED, "pad_token_id"])
@for_each("value", ["false", "", [], [[1]], {"a": 1}, float("nan"), object()])
def test_a_value_of_another_type_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_values({name: value})
    assert (caught.value.parameter, caught.value.value) == (name, value)


@for_each("name", [*_TYPED, "pad_token_id"])
def test_a_switch_is_no_number_and_a_number_no_switch(name: str) -> None:
    is_switch = name in {*_SWITCHES, "early_stopping"}
    switches, numbers = (True, False), (0.5, 1) if name in ("top_h", "typical_p") else (0, 1)
    for wrong in numbers if is_switch else switches:
        with pytest.raises(InvalidRequestError, match=f"`{name}` is {wrong}: "):
            check_values({name: wrong})
    for right in switches if is_switch else numbers:
        check_values({name: right})
    check_values({name: None})


def test_types_that_pass() -> None:
    check_values({"early_stopping": "never", "min_p": 0.5, "pad_token_id": torch.tensor(3)})


@for_each("name", ["stop", "stop_strings"])
@for_each("value", [0, 1.5, True, {"a": 1}, "", [""], ["a", 1]])
def test_stop_strings_are_strings(name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        check_values({name: value})
    if name in DEFAULTS:  # a file may have keys of its own
        with pytest.raises(InvalidRequestError, match=name):
            check_config(SimpleNamespace(**{name: value}), ())


@pytest.mark.parametrize("stops", [["a" * 2**14], ["ab"] * 2**13])
def test_stop_strings_are_short_altogether(stops: list[str]) -> None:
    assert sum(map(len, stops)) == MOST_STOP_CHARACTERS
    for name in ("stop", "stop_strings"):
        check_values({name: stops})
        with pytest.raises(InvalidRequestError, match=f"`{name}` is .*16385 characters in all"):
            check_values({name: [*stops, "x"]})


def test_text() -> None:
    check_values({"stop": ["a", "😀"]})
    with pytest.raises(InvalidRequestError, match="`stop` is .*position 1"):
        check_values({"stop": ["a", "b\ud83d"]})


def test_callables() -> None:
    for good in ([], [len]):
        check_values({"logits_processor": good})
    for bad in (5, (len,), [len, 5]):
        with pytest.raises(InvalidRequestError) as caught:
            check_values({"logits_processor": bad})
        assert caught.value.parameter == "logits_processor"


@for_each(
    ("rule", "words"),
    [
        (Range(), "a finite number"),
        (Range(whole=True), "a whole number"),
        (Range(0, 1), "a number from 0 to 1"),
        (Range(0, 1, below=True), "a number from 0 to below 1"),
        (Range(0, 1, above=True), "a number above 0 and at most 1"),
        (Range(0, 1, above=True, below=True), "a number above 0 and below 1"),
        (Range(0, above=True, note="so there"), "a number above 0; so there"),
        (Range(1, whole=True), "a whole number of at least 1"),
        (Range(1, MOST_ROWS, whole=True), f"a whole number from 1 to {MOST_ROWS}"),
    ],
)
def test_ranges_in_words(rule: Range, words: str) -> None:
    assert rule.allowed == words
    assert rule("none") == f"must be {words}"
