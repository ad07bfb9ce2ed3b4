"""One row of the shared batch, as the sampler sees it: whose it is, and its tokens so far.

A row is made once, at admission. It keeps what is true of a growing sequence, so that a step looks
at the new token alone. It knows nothing of pages or of other rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from asyncgen.engine.sampling.gumbel import HashDraw
from asyncgen.engine.sampling.placing import make_plan, place
from asyncgen.generation.logits import CheckedProcessors, raise_named
from asyncgen.generation.logits.definition import definition_of
from asyncgen.generation.strategies.finite import require_finite
from asyncgen.generation.strategies.greedy import most_probable

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from asyncgen.engine.requests.request import Request
    from asyncgen.engine.sampling.placing import Plan
    from asyncgen.generation.stopping.ends import Ends

__all__ = ["SamplerRow"]


class SamplerRow:
    """One sample of a request, from its admission to its end.

    Attributes:
        request: Whose it is.
        index: Which sample of the request, from 0.
        token_ids: Prompt and generated tokens; may be replaced by a live list that holds the
            same, and only ever grows at its end.
        originals: The processors of the request.
        processors: The same; what keeps state has an object for this row.
        draw: Where its tokens come from; None where the likeliest one is taken.
        top_logprobs: Alternatives a token; None where no log-probabilities were asked for.
    """

    def __init__(self, request: Request, index: int) -> None:
        """Begin at the end of the prompt.

        Args:
            request: Whose row it is.
            index: Which sample.
        """
        self.request = request
        self.index = index
        self.token_ids: list[int] = list(request.starting_ids)
        self.originals = request.processors
        self.processors = CheckedProcessors(map(_own, request.processors))
        self.draw = HashDraw(request.params.seed) if request.params.config.do_sample else None
        self.top_logprobs = request.params.top_logprobs
        self._plan: Plan | None = None
        self._ids = torch.empty(1, 0, dtype=torch.int64)
        self._filled = 0

    @property
    def position(self) -> int:
        """Absolute position of the token that comes next."""
        return len(self.token_ids)

    @property
    def ends(self) -> Ends:
        """When it ends; shared with the other samples of the request."""
        return self.request.ends

    @property
    def may_go_on(self) -> bool:
        """Whether the length allows another token behind the one that comes next."""
        most = self.request.ends.max_length
        return most is None or len(self.token_ids) + 1 < most

    def plan(self, scores: Tensor) -> Plan:
        """Return what its processors amount to; ``scores`` [R, V] are like those of all steps."""
        if self._plan is None:
            passed = {id(each) for each in self.request.params.processors}
            placed = place(
                self.processors, [id(each) in passed for each in self.originals], scores.shape[1]
            )
            judged = bool(self.ends.tensor_criteria)
            self._plan = make_plan(placed, scores, draws=self.draw is not None, needs_all=judged)
        return self._plan

    def input_ids(self, device: torch.device) -> Tensor:
        """Return the tokens so far, int64 [1, T]; a call costs as much as the tokens are new."""
        length = len(self.token_ids)
        if self._ids.shape[1] < length or self._ids.device != device:
            grown = torch.empty(1, max(2 * length, 64), dtype=torch.int64, device=device)
            grown[:, : self._filled] = self._ids[:, : self._filled]
            self._ids = grown
        if self._filled < length:
            new = torch.tensor(self.token_ids[self._filled :], device=device)
            self._ids[0, self._filled : length] = new
            self._filled = length
        return self._ids[:, :length]

    def failure(self, logits: Tensor, best: float) -> Exception:
        """Find out why there is no token to pick.

        Args:
            logits: Raw logits, float32 [1, V].
            best: The highest processed score, which is not finite.

        Returns:
            The error; names the processor behind it, where there is one.
        """
        if self.processors:
            self.processors.begin(self.input_ids(logits.device), logits)
        try:
            try:
                require_finite(torch.tensor([best]), self.position)
            except FloatingPointError as error:
                raise_named(self.processors, error)
        except Exception as error:
            return error
        raise AssertionError(best)

    def pick(self, scores: Tensor) -> int:
        """Pick from processed scores, [1, V] of any floating dtype, apart from other rows.

        Raises:
            FloatingPointError: There is no token to pick.
        """
        if self.draw is None:
            return int(most_probable(scores, self.position))
        return int(self.draw.draw_row(self.index, scores[0], self.position))

    @property
    def key(self) -> int:
        """Hash behind the noise of the next token; 0 where nothing is drawn."""
        return 0 if self.draw is None else self.draw.key(self.index, len(self.token_ids))

    def reason_to_end(self, scores: Tensor | None) -> str | None:
        """Tell why the row ends with the token just appended to ``token_ids``.

        Criteria that users wrote see this row alone; without any, no tensor is touched.

        Args:
            scores: Processed scores the token was picked from, [1, V]; only criteria that users
                wrote look at them.

        Returns:
            ``"stop"``, ``"length"``, ``"time"``, ``"cancelled"``, or None if it goes on.

        Raises:
            Exception: What a criterion raised.
        """
        ends, called = self.request.ends, self.request.ends.tensor_criteria
        stops = False
        if called:
            device = torch.device("cpu") if scores is None else scores.device
            stops = bool(called(self.input_ids(device), scores).item())
        return ends.reason(self.index, self.token_ids[-1], len(self.token_ids), stops=stops)


def _own(processor: Callable[..., Any]) -> Callable[..., Any]:
    """Give a row its own object of a processor that keeps something of the sequence."""
    definition = definition_of(processor)
    if definition is None:
        return processor
    own: Callable[..., Any] = definition.for_sample(processor)
    return own
