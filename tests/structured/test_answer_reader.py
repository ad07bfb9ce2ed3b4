"""Answers that came from elsewhere are read as the streams of the library read their own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen import AnswerReader, Completion, InvalidRequestError, Sample, Timing, ToolCall, Usage
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from asyncgen import FinishReason

pytestmark = pytest.mark.anyio
ARRAY = {"type": "array", "items": {"type": "integer"}}


def said(text: str, reason: FinishReason = "stop", **further: Any) -> Completion:
    """A result without values."""
    first = Sample(0, text, (1,), reason, **further)
    return Completion((first,), Usage(1, 1), Timing(None, None, 1.0, None))


def pieces(*texts: str) -> Callable[[], Awaitable[str]]:
    """Cut a stream's text into pieces."""
    rest = iter(texts)

    async def next_text() -> str:
        for text in rest:
            return text
        raise StopAsyncIteration

    return next_text


async def all_of(next_value: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Its values to the end."""
    found = []
    while True:
        try:
            found.append(await next_value())
        except StopAsyncIteration:
            return found


def test_a_whole_answer_has_its_value() -> None:
    reader = AnswerReader({"json_schema": ARRAY, "regex": None, "temperature": 1})
    found = reader.whole(said("[1, 2]"))
    assert (found.parsed, found.parse_error) == ([1, 2], None)
    free = said("[1, 2]")
    assert AnswerReader({"temperature": 1}).whole(free) is free
    assert AnswerReader({"regex": "a+"}).whole(said("aa")).parsed == "aa"


@for_each(
    ("params", "completion", "reason"),
    [
        ({"json_schema": ARRAY}, said("[1", "length"), "before its format was complete: length"),
        ({"json_schema": ARRAY}, said("[1", "error"), "complete: error"),
        ({"json_schema": ARRAY}, said("[1"), "EOF|Expecting"),
        ({"json_schema": ARRAY}, said("", tool_calls=(ToolCall("a", "b", "{}"),)), "calls tools"),
        ({"json_schema": ARRAY, "generated_ids": [5]}, said(", 2]"), "began elsewhere"),
        ({"json_schema": ARRAY, "generated_ids": [[5]]}, said(", 2]"), "began elsewhere"),
        ({"json_schema": "{"}, said("[1]"), "no JSON"),
    ],
)
def test_an_answer_without_a_value_says_why(
    params: dict[str, Any], completion: Completion, reason: str
) -> None:
    found = AnswerReader(params).whole(completion)
    assert found.parsed is None and found.parse_error is not None
    assert re.search(reason, found.parse_error)


def test_ids_of_another_sample_or_none_change_nothing() -> None:
    given: list[Any] = [[], [[], [5]]]
    for ids in given:
        reader = AnswerReader({"json_schema": ARRAY, "generated_ids": ids})
        assert reader.whole(said("[1]")).parsed == [1]


async def test_a_growing_answer() -> None:
    reader = AnswerReader({"json_schema": ARRAY})
    assert await all_of(reader.partial(pieces("[1", "2, 3", "4]"))) == [[], [12], [12, 34]]
    for params in ({}, {"regex": "a"}):
        with pytest.raises(InvalidRequestError):
            AnswerReader(params).partial(pieces())
