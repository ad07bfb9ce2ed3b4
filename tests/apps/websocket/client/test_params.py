from __future__ import annotations

import json
import math
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pytest

from asyncgen import InvalidRequestError
from asyncgen_apps.websocket.client.params import wire_params, wire_prompt
from asyncgen_apps.websocket.frames import read
from asyncgen_apps.websocket.messages import Generate
from tests.cases import for_each


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ("Once", {"prompt": "Once"}),
        ([1, 2, 3], {"token_ids": [1, 2, 3]}),
        ((1, 2), {"token_ids": [1, 2]}),
        (
            [MappingProxyType({"role": "user", "content": None})],
            {"messages": [{"role": "user", "content": None}]},
        ),
    ],
)
def test_a_prompt_is_one_of_three_fields(prompt: Any, field: dict[str, Any]) -> None:
    assert wire_prompt(prompt) == field


@for_each(
    "prompt",
    [
        "",
        [],
        b"x",
        7,
        None,
        [1, "x"],
        [True],
        [{"role": "user"}, 1],
        "half \ud83d",
        {"a": 1},
        [-1],
        [2**31],
    ],
)
def test_invalid_prompt_is_refused_by_name(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        wire_prompt(prompt)
    assert caught.value.parameter == "prompt"


def test_none_means_not_given() -> None:
    given = {"seed": None, "stop": ("a", "b"), "top_p": 0.5, "bad_words_ids": [[1], [2]]}
    assert wire_params(given) == {"stop": ["a", "b"], "top_p": 0.5, "bad_words_ids": [[1], [2]]}


@for_each(
    "value",
    [
        object(),
        lambda: None,
        math.nan,
        math.inf,
        b"bytes",
        {1, 2},
        {(1, 2): 0.5},
        {7: 0.5},
        [{"deep": [{7: 1}]}],
        OrderedDict({7: 1}),
        "half \ud83d",
    ],
)
def test_values_without_json_form_are_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="JSON") as caught:
        wire_params({"seed": 1, "sequence_bias": value})
    assert caught.value.parameter == "sequence_bias"


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_too_deeply_nested_params_are_refused_by_name() -> None:
    assert wire_params({"bad_words_ids": nested(100)}) == {"bad_words_ids": nested(100)}
    for levels in (101, 500, 100_000):
        with pytest.raises(InvalidRequestError) as caught:
            wire_params({"bad_words_ids": nested(levels)})
        assert caught.value.parameter == "bad_words_ids"


def test_deepest_allowed_request_is_readable_by_the_server() -> None:
    deepest = {"role": "user", "content": nested(99)}
    frame = {"type": "generate", "id": "a", **wire_prompt([deepest])}
    frame["params"] = wire_params({"bad_words_ids": nested(100)})
    assert isinstance(read(json.dumps(frame)), Generate)
