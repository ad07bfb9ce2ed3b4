"""Build the result of a sample from the events that a reader received."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen import Sample, ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen import FinishReason, TokenEvent


def sample_of(index: int, events: Sequence[TokenEvent], unfinished: FinishReason) -> Sample:
    """Join the events of one sample.

    Args:
        index: Number of the sample.
        events: Its events in order.
        unfinished: Finish reason of a sample that did not reach its end.
    """
    end = next((event for event in events if event.finish_reason is not None), None)
    logprobs = [event.logprobs for event in events if event.logprobs is not None]
    calls = [piece for event in events for piece in event.tool_calls]
    return Sample(
        index=index,
        text="".join(event.text for event in events),
        token_ids=tuple(token_id for event in events for token_id in event.token_ids),
        finish_reason=(end and end.finish_reason) or unfinished,
        stop_reason=None if end is None else end.stop_reason,
        logprobs=tuple(entry for each in logprobs for entry in each) if logprobs else None,
        reasoning="".join(event.reasoning for event in events),
        tool_calls=ToolCall.whole(calls),
        tool_errors=tuple(piece.error for piece in calls if piece.error is not None),
    )
