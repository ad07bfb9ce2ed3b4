"""Values that nobody else checks are checked here, by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from asyncgen.engine.requests.values import (
    MOST_ROWS,
    MOST_STOP_CHARACTERS,
    RULES,
    TYPES,
    check_callables,
    check_stops,
    check_text,
    check_types,
    check_values,
)
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.config.fields import DEFAULTS


def test_defaults_pass() -> None:
    check_values(GenerationConfig())
    check_values(SimpleNamespace(**DEFAULTS))


_NAMES = [name for names, _, _ in RULES for name in names]


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("value", [True, "x", -1, float("nan"), float("inf"), [1.5], {}])
def test_nonsense_is_refused_everywhere(name: str, value: Any) -> None:
    if (name, value) == ("guidance_scale", -1):
        return  # away from the prompt
    with pytest.raises(InvalidRequestError) as caught:
        check_values(SimpleNamespace(**{name: value}))
    assert caught.value.parameter == name
    assert caught.value.value is value


@pytest.mark.parametrize(
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
        ("temperature", 0, False),
        ("guidance_scale", 2**63, False),
        ("max_cache_len", 0, False),
        ("eos_token_id", [], True),
        ("eos_token_id", (1, 2), True),
        ("eos_token_id", [1, "2"], False),
    ],
)
def test_bounds(name: str, value: Any, passes: bool) -> None:
    config = SimpleNamespace(**{name: value})
    if passes:
        check_values(config)
    else:
        with pytest.raises(InvalidRequestError):
            check_values(config)


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("bits", [63, 64, 1300, 16000], ids=lambda bits: f"{bits} bits")
def test_numbers_beyond_a_word_are_refused_by_name(name: str, bits: int) -> None:
    if name == "eos_token_id":
        return  # ids are held against the vocabulary
    with pytest.raises(InvalidRequestError) as caught:
        check_values(SimpleNamespace(**{name: 1 << bits}))
    assert caught.value.parameter == name
    assert len(str(caught.value)) < 300


_TYPED = [name for names, _, _ in TYPES for name in names]


@pytest.mark.parametrize("name", _TYPED)
@pytest.mark.parametrize("value", ["false", "", [], [[1]], {"a": 1}, float("nan"), object()])
def test_a_value_of_another_type_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_types({name: value})
    assert (caught.value.parameter, caught.value.value) == (name, value)


@pytest.mark.parametrize("name", _TYPED)
def test_a_switch_is_no_number_and_a_number_no_switch(name: str) -> None:
    is_switch = name in {*TYPES[0][0], *TYPES[1][0]}
    switches, numbers = (True, False), (0, 1)
    for wrong in numbers if is_switch else switches:
        with pytest.raises(InvalidRequestError, match=f"`{name}` is {wrong}: "):
            check_types({name: wrong})
    for right in switches if is_switch else numbers:
        check_types({name: right})
    check_types({name: None})


def test_types_that_pass() -> None:
    check_types({"early_stopping": "never", "min_p": 0.5, "pad_token_id": torch.tensor(3)})


@pytest.mark.parametrize("value", [0, 1.5, True, {"a": 1}])
def test_stop_strings_are_strings(value: object) -> None:
    with pytest.raises(InvalidRequestError, match="stop_strings"):
        check_values(SimpleNamespace(stop_strings=value))


@pytest.mark.parametrize("stops", [["a" * 2**14], ["ab"] * 2**13])
def test_stop_strings_are_short_altogether(stops: list[str]) -> None:
    assert sum(map(len, stops)) == MOST_STOP_CHARACTERS
    check_stops("stop", stops)
    with pytest.raises(InvalidRequestError, match="`stop` is .*16385 characters in all"):
        check_stops("stop", [*stops, "x"])
    with pytest.raises(InvalidRequestError, match="stop_strings"):
        check_values(SimpleNamespace(stop_strings=[*stops, "x"]))


def test_text() -> None:
    check_text("stop", ["a", "😀", 5])
    with pytest.raises(InvalidRequestError, match="`stop` is .*position 1"):
        check_text("stop", ["a", "b\ud83d"])


def test_callables() -> None:
    assert check_callables("logits_processor", {}) == []
    assert check_callables("logits_processor", {"logits_processor": [len]}) == [len]
    for bad in (5, (len,), [len, 5]):
        with pytest.raises(InvalidRequestError) as caught:
            check_callables("logits_processor", {"logits_processor": bad})
        assert caught.value.parameter == "logits_processor"
