"""The values that cross the public surface."""

from __future__ import annotations

import dataclasses
from collections import UserDict
from typing import Any

import pytest

from asyncgen.errors import InvalidRequestError
from asyncgen.types import (
    Completion,
    Sample,
    Timing,
    TokenEvent,
    TokenLogprob,
    TopLogprob,
    Usage,
    check_prompt,
    is_messages,
    length_of,
)
from tests.cases import for_each


def test_usage_adds_up() -> None:
    assert Usage(3, 4).total_tokens == 7


@pytest.mark.parametrize(("rate", "expected"), [(None, None), (0.0, None), (4.0, 0.25)])
def test_time_per_token(rate: float | None, expected: float | None) -> None:
    assert Timing(0.0, None, 1.0, rate).per_token == expected


def test_a_completion_reads_like_its_first_sample() -> None:
    entry = TokenLogprob(1, "a", -0.5, (TopLogprob(1, "a", -0.5),))
    first = Sample(0, "a", (1,), "stop", "x", (entry,))
    second = Sample(1, "b", (2,), "length")
    completion = Completion((first, second), Usage(1, 2), Timing(None, None, 0.0, None))
    assert (completion.text, completion.token_ids) == ("a", (1,))
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "x")
    assert completion.logprobs == (entry,)


def test_values_are_frozen() -> None:
    event = TokenEvent(0, (1,), "a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.text = "b"  # type: ignore[misc]


@for_each(
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


@for_each(
    "prompt",
    ["", (), [], {}, b"ab", bytearray(b"a"), None, 1, [1, None], [1.0], [True], ["a"], {1}],
)
def test_no_prompts(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_prompt(prompt)
    assert caught.value.parameter == "prompt"


def test_is_messages_recognizes_messages() -> None:
    assert is_messages([{"role": "user", "content": "x"}])
    assert not is_messages("text")
    assert not is_messages([1, 2])


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("abc", 3),
        ([1, 2, 3], 0),
        ([{"role": "user", "content": "x" * 10**6}], 10**6),
        ([{"role": "user", "content": [{"type": "text", "text": "x" * 5000}] * 3}], 15_000),
    ],
)
def test_the_length_of_a_prompt(prompt: Any, expected: int) -> None:
    assert expected <= length_of(prompt) <= expected + 100


def test_length_of_measures_deep_and_large_content_without_serializing() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    number = 10**5000  # which has no text, by default
    for content in (deep, number, [{"n": number}]):
        assert length_of([{"role": "user", "content": "x", "more": content}]) > 0
    many = [{"role": "user", "content": [{"type": "text", "text": ""}] * 100_000}]
    assert length_of(many) > 4096
    del many[0]["content"]
    while deep:  # else its end would be as deep a recursion
        deep = deep.pop()
