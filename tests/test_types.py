"""The values that cross the public surface."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from asyncgen.types import (
    Completion,
    Sample,
    Timing,
    TokenEvent,
    TokenLogprob,
    TopLogprob,
    Usage,
)


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
    assert pickle.loads(pickle.dumps(completion)) == completion


def test_values_are_frozen() -> None:
    event = TokenEvent(0, (1,), "a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.text = "b"  # type: ignore[misc]
