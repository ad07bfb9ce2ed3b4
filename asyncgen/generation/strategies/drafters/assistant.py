"""Drafts of a smaller model with the same vocabulary, or of the first layers of the model itself.

Leviathan, Kalman and Matias 2023, "Fast Inference from Transformers via Speculative Decoding"
(arXiv 2211.17192); Elhoushi et al. 2024, "LayerSkip" (arXiv 2404.16710) for early exit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.generation.logits import raise_named
from asyncgen.generation.strategies.forward import Forward, read_prompt
from asyncgen.generation.strategies.step import Drafting, Proposal, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from torch import Tensor

    from asyncgen.generation.logits import LogitsProcessorList
    from asyncgen.generation.strategies.drafters.drafter import Confidence, Schedule
    from asyncgen.generation.strategies.step import Draw, Plan


class OwnModel(Forward):
    """A draft model with a cache of its own, which outlives a proposal."""

    def finish(self) -> None:
        """A proposal is complete. Nothing is shared with the deciding model."""


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
        """See `Forward`."""
        return self._open().length

    def __call__(self, input_ids: Tensor) -> Tensor:
        """See `Forward`."""
        forward = self._open()
        hidden = forward.hidden(input_ids, depth=self._depth)
        return forward.project(hidden[:, -1].contiguous())

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


class AssistantDrafter:
    """Decodes a few tokens ahead with a draft model."""

    def __init__(
        self,
        forward: OwnModel | EarlyExit,
        schedule: Schedule,
        confidence: Confidence,
        *,
        processors: LogitsProcessorList,
        draw: Draw | None = None,
        eos_token_ids: Collection[int] = (),
        prefill_chunk: int | None = None,
        position_limit: int | None = None,
        on_update: Callable[[Schedule, Confidence], None] | None = None,
    ) -> None:
        """Begin without having computed anything.

        Args:
            forward: The draft model.
            schedule: Tokens of a proposal.
            confidence: May end a proposal earlier.
            processors: Logits processors of the draft; never those with a state that the
                deciding model's depend on.
            draw: Draws the guesses; ``None`` takes the most probable ones.
            eos_token_ids: A proposal ends with one of these.
            prefill_chunk: Most tokens of one forward pass; ``None`` is all at once.
            position_limit: Positions of the draft model, where it has no more; it stops there.
            on_update: Told what was learnt, after each check.
        """
        self._forward = forward
        self._schedule = schedule
        self._confidence = confidence
        self._processors = processors
        self._draw = draw
        self._ends = frozenset(eos_token_ids)
        self._prefill_chunk = prefill_chunk
        self._position_limit = position_limit
        self._on_update = on_update
        self._start = self._stream = 0
        self._probabilities: list[float] = []

    def propose(self, ids: Tensor, room: int, *, stream: int | None = None) -> Drafting:
        """See `Drafter`. Yields after each forward pass but the last.

        ``stream`` is the number of the randomness of this round; ``None`` takes the length of
        ``ids``, which no other round has.
        """
        forward = self._forward
        start, count = ids.shape[1], min(self._schedule.count, room)
        if self._position_limit is not None:
            count = min(count, self._position_limit - start + 1)
        self._start, self._probabilities = start, []
        self._stream = start if stream is None else stream
        if count < 1:
            return Proposal(ids.new_empty(0))
        sequence = torch.cat((ids, ids.new_empty(1, count)), dim=1)
        raw = yield from read_prompt(forward, ids[:, forward.length :], self._prefill_chunk, 1)
        scores: list[Tensor] = []
        while True:
            raw = raw.float()
            length = start + len(scores)
            row = self._processors(sequence[:, :length], raw) if self._processors else raw
            try:
                token = self._pick(row, length)
            except FloatingPointError as error:
                raise_named(self._processors, error)
            scores.append(row)
            sequence[:, length] = token
            if self._is_last(row, token, count - len(scores)):
                break
            yield Step([[]])
            raw = forward(token[:, None])
        forward.finish()
        drawn = None if self._draw is None else torch.cat(scores)
        return Proposal(sequence[0, start : start + len(scores)], drawn)

    def update(self, accepted: int) -> None:
        """See `Drafter`. Keeps the cache of what was right."""
        self._forward.crop(self._start + accepted)
        self._schedule.update(accepted)
        self._confidence.update(self._probabilities, accepted)
        if self._on_update is not None:
            self._on_update(self._schedule, self._confidence)

    def crop(self, length: int) -> None:
        """Forget what was computed from position ``length`` on, whose ids have changed."""
        self._forward.crop(length)

    def _pick(self, scores: Tensor, length: int) -> Tensor:
        """The guess for position ``length``, int64 ``[1]``."""
        if self._draw is None:
            return scores.argmax(dim=-1)
        # The stream is the round: a guess that was thrown away is never drawn a second time.
        return self._draw(scores, length, stream=self._stream)

    def _is_last(self, scores: Tensor, token: Tensor, left: int) -> bool:
        """Whether a proposal ends with this token."""
        token_id = int(token)
        if self._confidence.is_on:
            probability = float(torch.softmax(scores[0], dim=-1)[token_id])
            self._probabilities.append(probability)
            if self._confidence.stops(probability):
                return True
        return left == 0 or token_id in self._ends
