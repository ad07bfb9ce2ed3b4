"""Results of samples from their events."""

from __future__ import annotations

from asyncgen import Sample, TokenEvent, TokenLogprob, ToolCall, ToolCallDelta
from asyncgen_apps.serving.samples import sample_of


def test_joins_the_events_of_a_sample() -> None:
    first, second = TokenLogprob(1, "a", -1.0, ()), TokenLogprob(2, "b", -2.0, ())
    events = [
        TokenEvent(1, (1,), "a", (first,), reasoning="so"),
        TokenEvent(1, (2,), "", (second,), tool_calls=(ToolCallDelta(0, "id", "f", "{}"),)),
        TokenEvent(1, (), "b", None, 0.5, "stop", "!"),
    ]
    assert sample_of(1, events, "cancelled") == Sample(
        1,
        "ab",
        (1, 2),
        "stop",
        "!",
        (first, second),
        reasoning="so",
        tool_calls=(ToolCall("id", "f", "{}"),),
    )


def test_a_sample_without_an_end_has_the_given_reason() -> None:
    assert sample_of(0, [TokenEvent(0, (7,), "x")], "error") == Sample(0, "x", (7,), "error")
    assert sample_of(0, (), "cancelled") == Sample(0, "", (), "cancelled")
