"""Names and prompts are checked at the call."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest

from asyncgen.engine.requests.names import (
    ARGUMENTS,
    NOT_HERE,
    OWN,
    check_names,
    check_prompt,
    is_messages,
)
from asyncgen.engine.requests.stream_params import StreamParams
from asyncgen.errors import InvalidRequestError


def test_every_known_name_passes() -> None:
    check_names({name: None for name in StreamParams.__annotations__ if name not in NOT_HERE})


def test_tables_agree() -> None:
    known = set(StreamParams.__annotations__)
    assert known >= OWN
    assert known >= ARGUMENTS
    assert not known & set(NOT_HERE)
    assert not OWN & ARGUMENTS


def test_a_typo_is_told_what_was_meant() -> None:
    with pytest.raises(InvalidRequestError, match="did you mean `temperature`"):
        check_names({"temperatur": 1.0})
    with pytest.raises(InvalidRequestError, match=r"unknown parameter$"):
        check_names({"qqqqqqqq": 1.0})


@pytest.mark.parametrize(
    "prompt",
    [
        "a",
        [1, 2],
        (1, 2),
        range(3),
        [{"role": "user", "content": "x"}],
        [UserDict(role="user", content="x")],
    ],
)
def test_prompts(prompt: Any) -> None:
    check_prompt(prompt)


@pytest.mark.parametrize(
    "prompt",
    ["", (), [], {}, b"ab", bytearray(b"a"), None, 1, [1, None], [1.0], [True], ["a"], {1}],
)
def test_no_prompts(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_prompt(prompt)
    assert caught.value.parameter == "prompt"


def test_messages_are_told_from_ids() -> None:
    assert is_messages([{"role": "user", "content": "x"}])
    assert not is_messages("text")
    assert not is_messages([1, 2])
