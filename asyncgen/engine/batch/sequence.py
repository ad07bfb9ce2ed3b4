"""One sequence of a request: one row of the shared batch, from its admission to its last event.

The scheduler moves it along (`RequestState`), the sampler picks its tokens, and the batch tells its
reader. What is true of a growing sequence is kept, so that a step looks at the new token alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from asyncgen.engine.requests.request import sample_name
from asyncgen.engine.sampling.random_draws import HashDraw
from asyncgen.engine.sampling.shortlist import make_plan, place
from asyncgen.engine.scheduling.state import RequestState
from asyncgen.generation.logits.base import definition_of
from asyncgen.generation.logits.checked import CheckedProcessors, raise_named
from asyncgen.generation.logits.grammar_mask import GrammarLogitsProcessor
from asyncgen.generation.strategies.token_by_token import most_probable, require_finite
from asyncgen.runtime.request_failure import request_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from asyncgen.engine.requests.request import Request
    from asyncgen.engine.sampling.shortlist import Plan
    from asyncgen.generation.stopping.ends import Ends
    from asyncgen.structured.grammar import Matcher


_ROWS_A_FORCED_TOKEN = 32
"""Beside rows without a grammar, a step computes one forced token for so many rows, or one."""


class Sequence(RequestState):
    """A row of the batch; ``tokens`` are those of the prompt and those generated so far.

    Attributes:
        request: Whose it is.
        index: Which sequence of the request, from 0.
        has_begun: Whether it has had a step.
        decodes: Whether it has its first token, or will have it before the next step.
        processors: Those of the request, from its first step on; what keeps state has an object
            for this sequence.
        draw: Where its tokens come from; ``None`` where the likeliest one is taken.
        matcher: Where it is in its grammar; ``None`` where it is free, or has not begun.
        takes_forced: Whether tokens that the grammar forces need no step of their own: nobody
            looks at their scores.
        top_logprobs: Alternatives a token; ``None`` where no log-probabilities were asked for.
    """

    __slots__ = (
        "_filled",
        "_ids",
        "_plan",
        "decodes",
        "draw",
        "has_begun",
        "index",
        "matcher",
        "processors",
        "request",
        "takes_forced",
        "top_logprobs",
    )

    def __init__(self, request: Request, index: int, *, salt: bytes = b"") -> None:
        """Begin behind the prompt and what was generated before.

        In the queue it costs little more than its ids.

        Args:
            request: Whose it is.
            index: Which sequence.
            salt: See `RequestState`.
        """
        config, most = request.params.config, request.ends.max_length
        reader, chunk = request.reader, config.prefill_chunk_size
        if reader is not None and reader.most_tokens is not None:
            chunk = min(chunk or reader.most_tokens, reader.most_tokens)
        super().__init__(
            request_id=sample_name(request.id, index),
            initial_tokens=request.starting_ids,
            tokens=request.tokens_of(index),
            max_new_tokens=None if most is None else max(most - len(request.starting_ids), 1),
            priority=request.params.priority,
            client=request.params.client,
            prefill_chunk_size=chunk,
            salt=salt,
            is_whole=reader is not None and reader.is_whole,
        )
        self.request = request
        self.index = index
        self.has_begun = self.decodes = False
        self.processors = CheckedProcessors()
        self.draw = HashDraw(request.params.seed) if config.do_sample else None
        self.top_logprobs = request.params.top_logprobs
        self.matcher: Matcher | None = None
        self.takes_forced = False
        self._plan: Plan | None = None
        self._ids: Tensor | None = None
        self._filled = 0

    def begin_sampling(self) -> None:
        """Make what the sampler needs, at the first step."""
        self.has_begun = True
        self.processors = CheckedProcessors(map(_own, self.request.processors))
        if self.request.grammar is None:
            return
        (own,) = (each for each in self.processors if type(each) is GrammarLogitsProcessor)
        self.matcher = own.matcher(0)
        params = self.request.params
        self.takes_forced = (
            self.top_logprobs is None
            and not self.ends.tensor_criteria
            and not params.processors
            and params.config.watermarking_config is None
        )

    @property
    def position(self) -> int:
        """Absolute position of the token that comes next."""
        return len(self.tokens)

    @property
    def ends(self) -> Ends:
        """When it ends; shared with the other sequences of the request."""
        return self.request.ends

    @property
    def may_go_on(self) -> bool:
        """Whether the length allows another token behind the one that comes next."""
        most = self.request.ends.max_length
        return most is None or len(self.tokens) + 1 < most

    def plan(self, scores: Tensor) -> Plan:
        """Return what its processors amount to; ``scores`` [R, V] are like those of all steps."""
        if self._plan is None:
            passed = {id(each) for each in self.request.params.processors}
            own = [id(each) in passed for each in self.request.processors]
            placed = place(self.processors, own, scores.shape[1])
            judged = bool(self.ends.tensor_criteria)
            self._plan = make_plan(placed, scores, draws=self.draw is not None, needs_all=judged)
        return self._plan

    def input_ids(self, device: torch.device) -> Tensor:
        """Return the tokens so far, int64 [1, T]; a call costs as much as the tokens are new."""
        length = len(self.tokens)
        ids = self._ids
        if ids is None or ids.shape[1] < length or ids.device != device:
            ids = self._ids = torch.empty(1, max(2 * length, 64), dtype=torch.int64, device=device)
            self._filled = 0
        if self._filled < length:
            new = torch.tensor(self.tokens[self._filled :], device=device)
            ids[0, self._filled : length] = new
            self._filled = length
        return ids[:, :length]

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
        except BaseException as error:
            return request_failure(error)
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
        return 0 if self.draw is None else self.draw.key(self.index, len(self.tokens))

    def reason_to_end(self, scores: Tensor | None) -> str | None:
        """Tell why the row ends with the token just appended to ``tokens``.

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
        reason = ends.reason(self.index, self.tokens[-1], len(self.tokens), stops=stops)
        return reason if self.matcher is None else self._shaped(self.matcher, reason)

    def _shaped(self, matcher: Matcher, reason: str | None) -> str | None:
        """Why the row ends, where its answer has a shape: it may only stop with that complete."""
        matcher.extend(self.tokens, len(self.request.starting_ids))
        if matcher.is_over:
            return "stop"
        return "incomplete" if reason == "stop" and not matcher.is_complete else reason

    def take_forced(self, room: int | None) -> list[int]:
        """Append the tokens that the grammar forces next, as far as the length allows.

        Args:
            room: Most tokens; ``None`` for any number. What is left out comes in later steps.
        """
        if self.matcher is None or not self.takes_forced:
            return []
        taken = list(self.matcher.forced[:room])
        most = self.request.ends.max_length
        if most is not None:
            taken = taken[: most - len(self.tokens)]
        self.tokens += taken
        return taken


def forced_room(sequences: list[Sequence]) -> int | None:
    """How many forced tokens may be taken behind a step.

    Each of them is computed with the next step, and makes it longer. Where all rows have grammars
    that is their gain; rows without one would wait for what others get.

    Args:
        sequences: The rows of the step, those that still read their prompts among them.

    Returns:
        ``None`` where there may be any number.
    """
    free = sum(sequence.matcher is None for sequence in sequences)
    if free in (0, len(sequences)):
        return None
    return max(1, len(sequences) // _ROWS_A_FORCED_TOKEN)


def _own(processor: Callable[..., Any]) -> Callable[..., Any]:
    """Give a sequence its own object of a processor that keeps something of the sequence."""
    definition = definition_of(processor)
    if definition is None:
        return processor
    own: Callable[..., Any] = definition.for_sample(processor)
    return own
