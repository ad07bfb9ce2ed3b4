"""Stream the settled ids of a beam search: those that every possible result begins with.

Settled is the common prefix of all live beams and of the best complete hypothesis: whatever comes
out continues one of them. The other sequences of a prompt are settled when it is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncgen.generation.strategies.step import Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from asyncgen.generation.strategies.step import Plan


@dataclass(frozen=True, slots=True)
class BeamResult:
    """One returned sequence of a prompt that is done.

    Attributes:
        ids: All of it, int64 ``[T]``, end-of-sequence id included.
        origins: Row that each generated token was picked from, int ``[T - S]`` or longer.
        reason: Why it ended.
    """

    ids: Tensor
    origins: Tensor
    reason: str


class BeamStream:
    """Remembers what of each prompt was handed on.

    Attributes:
        sent: How much of the best sequence of each, the prompt included.
        is_done: Whether all of it was.
        returned: Sequences of each that will be returned.
    """

    def __init__(
        self, batch: int, returned: int, prompt_length: int, *, keep_logits: bool = False
    ) -> None:
        """Begin after the prompt.

        Args:
            batch: Prompts.
            returned: Sequences of each that will be returned.
            prompt_length: Their length, padding included.
            keep_logits: Whether to keep raw logits until the ids they belong to are settled.
        """
        self.returned = returned
        self._prompt_length = prompt_length
        self.sent = [prompt_length] * batch
        self.is_done = [False] * batch
        self._kept: dict[int, Tensor] | None = {} if keep_logits else None
        self._begin_step()

    def settle(self, prompt: int, ids: Tensor, end: int, origins: Tensor) -> None:
        """Hand on what all possible results of a prompt have in common.

        Args:
            prompt: Its index.
            ids: One of them, int64 ``[T]``.
            end: How far they are alike.
            origins: Rows that its generated tokens were picked from.
        """
        if end > self.sent[prompt]:
            self._put(prompt * self.returned, self.sent[prompt], ids[:end], origins)
            self.sent[prompt] = end

    def finish(self, prompt: int, results: Sequence[BeamResult]) -> None:
        """Hand on the rest of all results of a prompt, the best first.

        After a cancellation nothing more is handed on: an uncancelled search might have ended
        otherwise.
        """
        for place, result in enumerate(results):
            index = prompt * self.returned + place
            start = self._prompt_length if place else self.sent[prompt]
            if result.reason != "cancelled":
                self._put(index, start, result.ids, result.origins)
            self._reasons[index] = result.reason
        self.is_done[prompt] = True

    def step(self, logits: Tensor, scores: Tensor) -> Step:
        """Everything that was handed on since the last call, as a step.

        Args:
            logits: Raw logits of this step, float32 ``[B * N, V]``.
            scores: Processed log-probabilities, float32 ``[B * N, V]``.
        """
        step = Step(self._ids, self._reasons, None, logits, scores, settled_logits=self._logits)
        self._begin_step()
        return step

    def keep(self, place: int, logits: Tensor) -> None:
        """Keep the raw logits ``[B * N, V]`` of the generated token ``place``, if wanted."""
        if self._kept is not None:
            self._kept[place] = logits
            if self.returned == 1:
                settled = min(self.sent) - self._prompt_length
                for old in [each for each in self._kept if each < settled]:
                    del self._kept[old]

    def _put(self, index: int, start: int, ids: Tensor, origins: Tensor) -> None:
        if self._kept is not None and self._logits is not None:
            first = start - self._prompt_length
            rows: list[int] = origins[first : len(ids) - self._prompt_length].tolist()
            # Without a row it is an end that no beam chose; it has no logits.
            rows = [row for row in rows if row >= 0]
            ids = ids[: start + len(rows)]
            self._logits[index] += [
                self._kept[place][row] for place, row in enumerate(rows, start=first)
            ]
        self._ids[index] += ids[start:].tolist()

    def _begin_step(self) -> None:
        rows = len(self.sent) * self.returned
        self._ids: list[list[int]] = [[] for _ in range(rows)]
        self._reasons: list[str | None] = [None] * rows
        self._logits: list[list[Tensor]] | None = (
            None if self._kept is None else [[] for _ in range(rows)]
        )


def make_beam_stream(plan: Plan) -> BeamStream:
    """A stream of what a plan returns."""
    batch, length = plan.input_ids.shape
    returned = plan.config.num_return_sequences or 1
    return BeamStream(batch, returned, length, keep_logits=plan.keep_logits)


def common_length(ids: Tensor, start: int, end: int) -> int:
    """Find how far sequences agree.

    Args:
        ids: int64 ``[N, T]``.
        start: They are known to agree before this position.
        end: Positions from here on do not count.

    Returns:
        The first position from ``start`` on where they differ, at most ``end``.
    """
    window = ids[:, start:end]
    differs = (window != window[:1]).any(dim=0).nonzero()
    return start + int(differs[0]) if len(differs) else max(start, end)
