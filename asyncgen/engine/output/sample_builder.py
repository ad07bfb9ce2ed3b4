"""Collect the events of one sequence, and build the sample that a result has of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from asyncgen.structured.answer_reader import read_answer
from asyncgen.types import Sample, ToolCall

if TYPE_CHECKING:
    from asyncgen.structured.output_format import OutputFormat
    from asyncgen.types import FinishReason, TokenEvent, TokenLogprob, ToolCallDelta


@dataclass(slots=True)
class SampleBuilder:
    """Collects the events of one sample until it is read out as a :class:`Sample`.

    Attributes:
        index: Number of the sequence in its request.
        keeps_logprobs: False leaves log-probabilities out.
        texts: Its text, in pieces.
        token_ids: Its ids.
        logprobs: One entry an id, if asked for.
        finish_reason: Finish reason; ``None`` while it goes on.
        stop_reason: Id or string that ended it, as in `Sample`.
        first_at: Seconds from acceptance to its first token; ``None`` without one.
        last_at: The same for its newest token.
        num_steps: Steps that gave it tokens.
        reasoning: Its reasoning, in pieces.
        calls: Pieces of its calls, in order.
    """

    index: int
    keeps_logprobs: bool = True
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    first_at: float | None = None
    last_at: float = 0.0
    num_steps: int = 0
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCallDelta] = field(default_factory=list)

    def add(self, event: TokenEvent) -> None:
        """Take in one event of this sample: all of it, as no call comes in between, nor Ctrl-C."""
        if event.text:
            self.texts += (event.text,)
        if event.token_ids:
            self.token_ids += event.token_ids
            self.num_steps += 1
            self.last_at = event.time
            if self.first_at is None:
                self.first_at = event.time
        if event.reasoning:
            self.reasoning += (event.reasoning,)
        if event.tool_calls:
            self.calls += event.tool_calls
        if event.logprobs is not None and self.keeps_logprobs:
            if self.logprobs is None:
                self.logprobs = []
            self.logprobs += event.logprobs
        if event.finish_reason is not None:
            self.finish_reason = event.finish_reason
            self.stop_reason = event.stop_reason

    def build(
        self,
        unfinished: FinishReason = "cancelled",
        shape: OutputFormat | None = None,
        given: str = "",
    ) -> Sample:
        """Freeze.

        Args:
            unfinished: The finish reason of a sample that got none.
            shape: What its answer was to look like, if it was to look like anything.
            given: Text that it had generated elsewhere.
        """
        text, reason = "".join(self.texts), self.finish_reason or unfinished
        parsed = problem = None
        calls = ToolCall.whole(self.calls) if self.calls else ()
        if calls:
            problem = None if shape is None else "the answer calls tools"
        elif shape is not None:
            parsed, problem = read_answer(shape, given + text, reason)
        return Sample(
            index=self.index,
            text=text,
            token_ids=tuple(self.token_ids),
            finish_reason=reason,
            stop_reason=self.stop_reason,
            logprobs=None if self.logprobs is None else tuple(self.logprobs),
            reasoning="".join(self.reasoning),
            tool_calls=calls,
            tool_errors=tuple(each.error for each in self.calls if each.error is not None),
            parsed=parsed,
            parse_error=problem,
        )
