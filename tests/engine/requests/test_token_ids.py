"""A token id that is none is refused by the name of its parameter, before any work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from asyncgen.engine.requests.token_ids import check_token_ids, join_equal_ids
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from tests.engine.making import request_for

SIZE = 10
ONE = "pad_token_id bos_token_id forced_bos_token_id".split()
LISTS = "suppress_tokens begin_suppress_tokens".split()
EITHER = "eos_token_id forced_eos_token_id decoder_start_token_id".split()


def check(name: str, value: Any, *, is_given: bool = True) -> None:
    check_token_ids(SimpleNamespace(**{name: value}), {name} if is_given else (), SIZE)


def test_nothing_given() -> None:
    check_token_ids(GenerationConfig(), (), SIZE)


@pytest.mark.parametrize("name", [*ONE, *EITHER])
def test_one_id(name: str) -> None:
    check(name, 0)
    check(name, SIZE - 1)
    for bad in (-1, SIZE, 2**70):
        with pytest.raises(InvalidRequestError, match=f"{name}.*from 0 to 9"):
            check(name, bad)


@pytest.mark.parametrize("name", [*LISTS, *EITHER])
def test_several_ids(name: str) -> None:
    check(name, [0, 9])
    check(name, (3,))
    check(name, torch.tensor([1, 2]))
    with pytest.raises(InvalidRequestError, match=f"`{name}` is 10: token ids are from 0 to 9"):
        check(name, [1, SIZE])


@pytest.mark.parametrize("name", [*ONE, *LISTS, *EITHER])
@pytest.mark.parametrize("value", ["a", 1.5, True, ["a"], [1.5], [False], [[1]], {}])
def test_what_is_no_id_is_refused_also_as_a_default(name: str, value: Any) -> None:
    for is_given in (True, False):
        if value == {} and name not in ONE:
            continue  # a set of no ids
        with pytest.raises(InvalidRequestError) as caught:
            check(name, value, is_given=is_given)
        assert caught.value.parameter == name
        assert caught.value.value == value


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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
