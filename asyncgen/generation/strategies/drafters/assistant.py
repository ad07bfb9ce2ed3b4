"""Drafts of a smaller model with the same vocabulary, or of the first layers of the model itself.

Leviathan, Kalman and Matias 2023, "Fast Inference from Transformers via Speculative Decoding"
(arXiv 2211.17192); Elhoushi et al. 2024, "LayerSkip" (arXiv 2404.16710) for early exit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from asyncgen.generation.logits.checked_processors import raise_named
from asyncgen.generation.strategies.forward import Forward, read_prompt
from asyncgen.generation.strategies.step import Drafting, Proposal, Step

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch import Tensor

    from asyncgen.generation.config import GenerationConfig
    from asyncgen.generation.logits.base import LogitsProcessorList
    from asyncgen.generation.strategies.drafters.drafter import ConfidenceThreshold, DraftSchedule
    from asyncgen.generation.strategies.step import Draw, Plan


class AssistantForward(Forward):
    """A draft model with a cache of its own, which outlives a proposal."""

    def finish(self) -> None:
        """A proposal is complete. Nothing is shared with the deciding model."""


class ExitForward(AssistantForward):
    """The first layers of a model as a draft model, with a cache of its own."""

    def __init__(self, plan: Plan, depth: int) -> None:
        """Begin where the plan's cache ends; ``depth`` layers run."""
        super().__init__(plan)
        self._depth = depth

    def __call__(self, input_ids: Tensor) -> Tensor:
        """See `Forward`."""
        hidden = self.hidden(input_ids, depth=self._depth)
        return self.project(hidden[:, -1].contiguous())


class EarlyExit:
    """The first layers of the deciding model as a draft model; they share weights and cache.

    What a proposal adds to the cache is taken away again at its end, before all layers run.
    """

    def __init__(self, plan: Plan, depth: int) -> None:
        """Compute nothing yet.

        Args:
            plan: The deciding model's.
            depth: Layers that run.
        """
        self._plan = plan
        self._depth = depth
        self._forward: Forward | None = None
        self._start = 0

    @property
    def length(self) -> int:
        """Ids that were read."""
        return self._open().length - self._plan.offset

    def __call__(self, input_ids: Tensor) -> Tensor:
        """See `Forward`."""
        forward = self._open()
        hidden = forward.hidden(input_ids, depth=self._depth)
        return forward.project(hidden[:, -1].contiguous())

    def mark(self) -> None:
        """Do nothing: the deciding model marked its states before."""

    def crop(self, length: int) -> None:
        """Do nothing: the deciding model crops the cache itself."""

    def finish(self) -> None:
        """A proposal is complete: leave the cache as it was."""
        self._open().crop(self._start)
        self._forward = None

    def _open(self) -> Forward:
        """The forward of this proposal; the cache has grown since the last one."""
        if self._forward is None:
            self._forward = Forward(self._plan)
            self._start = self._forward.length
        return self._forward


@dataclass(eq=False)
class AssistantDrafter:
    """Decodes a few tokens ahead with a draft model.

    Attributes:
        forward: The draft model.
        schedule: Tokens of a proposal.
        confidence: May end a proposal earlier.
        processors: Logits processors of the draft; never those with a state that the deciding
            model's depend on.
        draw: Draws the guesses; ``None`` takes the most probable ones.
        eos_token_ids: A proposal ends with one of these.
        prefill_chunk: Most tokens of one forward pass; ``None`` is all at once.
        position_limit: Positions of the draft model, where it has no more; it stops there.
        memory: Configuration that what was learnt is written to, after each check.
        scores: Processed scores of each guess of the last proposal, float32 ``[1, V]``.
    """

    forward: AssistantForward | EarlyExit
    schedule: DraftSchedule
    confidence: ConfidenceThreshold
    processors: LogitsProcessorList
    draw: Draw | None = None
    eos_token_ids: Collection[int] = ()
    prefill_chunk: int | None = None
    position_limit: int | None = None
    memory: GenerationConfig | None = None
    scores: list[Tensor] = field(default_factory=list, init=False)
    _start: int = field(default=0, init=False)
    _stream: int = field(default=0, init=False)
    _probabilities: list[float] = field(default_factory=list, init=False)

    def propose(self, ids: Tensor, room: int, *, stream: int | None = None) -> Drafting:
        """See `Drafter`. Yields after each forward pass but the last.

        ``stream`` is the number of the randomness of this round; ``None`` takes the length of
        ``ids``, which no other round has.
        """
        forward = self.forward
        start, count = ids.shape[1], min(self.schedule.count, room)
        if self.position_limit is not None:
            count = min(count, self.position_limit - start + 1)
        self._start, self._probabilities, self.scores = start, [], []
        self._stream = start if stream is None else stream
        if count < 1:
            return Proposal(ids.new_empty(0))
        sequence = torch.cat((ids, ids.new_empty(1, count)), dim=1)
        raw = yield from read_prompt(forward, ids[:, forward.length :], self.prefill_chunk, 1)
        forward.mark()
        scores = self.scores
        while True:
            raw = raw.float()
            length = start + len(scores)
            row = self.processors(sequence[:, :length], raw) if self.processors else raw
            try:
                token = self._pick(row, length)
            except FloatingPointError as error:
                raise_named(self.processors, error)
            scores.append(row)
            sequence[:, length] = token
            if self._is_last(row, token, count - len(scores)):
                break
            yield Step([[]])
            raw = forward(token[:, None])
        forward.finish()
        drawn = None if self.draw is None else torch.cat(scores)
        return Proposal(sequence[0, start : start + len(scores)], drawn)

    def update(self, accepted: int) -> None:
        """See `Drafter`. Keeps the cache of what was right."""
        self.forward.crop(self._start + accepted)
        self.learn(accepted, len(self.scores))
        if self.memory is not None and self.schedule.kind == "heuristic":
            self.memory.num_assistant_tokens = self.schedule.count
        if self.memory is not None and self.confidence.is_on:
            self.memory.assistant_confidence_threshold = self.confidence.threshold

    def learn(self, accepted: int, drafted: int) -> None:
        """Choose the length of the next proposal and the confidence anew.

        Args:
            accepted: How many of the last guesses were right.
            drafted: How many there were.
        """
        self.schedule.update(accepted, drafted)
        self.confidence.update(self._probabilities, accepted)

    def crop(self, length: int) -> None:
        """Forget what was computed from position ``length`` on, whose ids have changed."""
        self.forward.crop(length)

    def _pick(self, scores: Tensor, length: int) -> Tensor:
        """The guess for position ``length``, int64 ``[1]``."""
        if self.draw is None:
            return scores.argmax(dim=-1)
        # The stream is the round: a guess that was thrown away is never drawn a second time.
        return self.draw(scores, length, stream=self._stream)

    def _is_last(self, scores: Tensor, token: Tensor, left: int) -> bool:
        """Return whether a proposal ends with this token."""
        token_id = int(token)
        if self.confidence.is_on:
            probability = float(torch.softmax(scores[0], dim=-1)[token_id])
            self._probabilities.append(probability)
            if self.confidence.stops(probability):
                return True
        return left == 0 or token_id in self.eos_token_ids
