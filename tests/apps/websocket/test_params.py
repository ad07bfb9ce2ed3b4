"""The table of parameters is whole, and keeps code and files out."""

from __future__ import annotations

import pytest

from asyncgen.generation.config.parameters import PARAMETERS
from asyncgen_apps.serving.limits import MOST_SAMPLES
from asyncgen_apps.websocket.params import check_params, check_priority
from tests.cases import for_each

STREAM = {each.name for each in PARAMETERS if not each.elsewhere}


@for_each(
    "name", ["custom_generate", "recipe", "trust_remote_code", "assistant_model", "compile_config"]
)
def test_code_and_files_stay_out(name: str) -> None:
    fault = check_params({"temperature": 1.0, name: "x"})
    assert fault is not None
    assert (fault.code, fault.param) == ("invalid_request", name)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, [1, [2**70]], {"a": {"b": 10**400}}])
def test_numbers_beyond_a_word(value: object) -> None:
    fault = check_params({"seed": value})  # type: ignore[dict-item]
    assert fault is not None
    assert fault.param == "seed"


@pytest.mark.parametrize("name", ["n", "num_return_sequences", "num_beams"])
def test_rows_are_bounded(name: str) -> None:
    assert check_params({name: MOST_SAMPLES}) is None
    for value in (MOST_SAMPLES + 1, 0, True, "many"):
        fault = check_params({name: value})
        assert fault is not None
        assert (fault.code, fault.param) == ("invalid_request", name)
        said = f"`{name}` is {value!r}: must be a whole number from 1 to {MOST_SAMPLES}"
        assert fault.message == said


def test_null_is_not_given() -> None:
    assert check_params(dict.fromkeys(STREAM)) is None


def test_the_rest_is_up_to_the_engine() -> None:
    assert (
        check_params({"seed": 2**64 - 1, "tempo": 3, "stop": ["a"], "x": None, "y": True}) is None
    )


@pytest.mark.parametrize("value", [0, 1, "x"])
def test_priority_is_the_operators_to_allow(value: str | int) -> None:
    fault = check_priority({"priority": value}, allow_priority=False)
    assert fault is not None and fault.param == "priority"
    assert check_priority({"priority": value}, allow_priority=True) is None
    assert check_priority({"priority": None}, allow_priority=False) is None
