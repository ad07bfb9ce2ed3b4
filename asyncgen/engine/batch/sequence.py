"""One sequence of a request, from its admission to its last event: a row of the shared batch.

The scheduler moves it along as a `RequestState`, the sampler picks its tokens, and the batch writes
its events. A step looks at the new token alone; what earlier tokens amount to is kept.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from asyncgen.engine.requests.request import sample_name
from asyncgen.engine.sampling.random_draws import HashDraw
from asyncgen.engine.scheduling.state import RequestState
from asyncgen.generation.logits.base import definition_of
from asyncgen.generation.logits.checked_processors import CheckedProcessors
from asyncgen.generation.logits.followed import FollowedProcessor
from asyncgen.generation.logits.grammar_mask import GrammarLogitsProcessor
from asyncgen.runtime.plain_values import runs_user_code
from asyncgen.runtime.user_code import drawing_from, run_user_code

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.engine.requests.pooling import HiddenReader
    from asyncgen.engine.requests.request import Request
    from asyncgen.engine.sampling.shortlist import RowPlan
    from asyncgen.runtime.user_code import UserDraws
    from asyncgen.structured.grammar import Matcher


class Sequence(RequestState):
    """Tokens, blocks and sampler state of one sample of a request.

    ``tokens`` are those of the prompt and those generated so far.

    Attributes:
        request: The request.
        index: Number of the sequence in the request, from 0.
        has_begun: Whether it has had a step.
        decodes: Whether it has its first token, or will have it before the next step.
        processors: Logits processors, from the first step on; one that keeps state is a copy of
            the request's for this sequence, and follows what a user changes in theirs.
        passed: For each processor, whether the user passed it as an object.
        plan: Way from its logits to a token; the sampler makes it.
        draw: Source of its random draws.
        is_greedy: Whether the likeliest token is taken, and nothing drawn.
        reader: Takes hidden states of its prompt; ``None`` where none are wanted.
        matcher: Its place in the grammar; ``None`` without a grammar, or before the first step.
        takes_forced: Whether tokens that the grammar forces need no step of their own, because
            nothing reads their scores.
        needs_scores: Whether its stopping criteria read processed scores.
        top_logprobs: Alternatives to report with a token; ``None`` where no log-probabilities
            are wanted.
    """

    __slots__ = (
        "_filled",
        "_ids",
        "decodes",
        "draw",
        "has_begun",
        "index",
        "is_greedy",
        "matcher",
        "needs_scores",
        "passed",
        "plan",
        "processors",
        "reader",
        "request",
        "takes_forced",
        "top_logprobs",
    )

    def __init__(
        self,
        request: Request,
        index: int,
        reader: HiddenReader | None = None,
        *,
        salt: bytes = b"",
    ) -> None:
        """Begin behind the prompt and the tokens that were generated before.

        While it waits it costs little more than its ids.

        Args:
            request: The request.
            index: Number of the sequence.
            reader: Takes hidden states of its prompt.
            salt: As in `RequestState`.
        """
        params, most = request.params, request.stop_checks.max_length
        prompt, chunk = request.prompt_ids, params.config.prefill_chunk_size
        if reader is not None and reader.most_tokens is not None:
            chunk = min(chunk or reader.most_tokens, reader.most_tokens)
        given = request.given[index].token_ids if request.given else ()
        super().__init__(
            request_id=sample_name(request.id, index) if index else request.id,
            initial_tokens=prompt,
            tokens=[*prompt, *given],
            max_new_tokens=None if most is None else max(most - len(prompt), 1),
            priority=params.priority,
            client=params.client,
            prefill_chunk_size=chunk,
            salt=salt,
            is_whole=reader is not None and reader.is_whole,
        )
        self.request = request
        self.index = index
        self.reader = reader
        self.has_begun = self.decodes = False
        self.processors = CheckedProcessors()
        self.passed: list[bool] = []
        self.plan: RowPlan | None = None
        self.draw = HashDraw(params.seed)
        self.is_greedy = not params.config.do_sample
        self.needs_scores = bool(request.stop_checks.tensor_criteria)
        self.top_logprobs = params.top_logprobs
        self.matcher: Matcher | None = None
        self.takes_forced = False
        self._ids: Tensor | None = None
        self._filled = 0

    def begin_sampling(self) -> None:
        """Make the objects that the sampler needs, at the first step."""
        self.has_begun = True
        params = self.request.params
        passed = {id(each) for each in params.processors}
        self.processors.followed = followed = {}
        for number, processor in enumerate(self.request.processors):
            definition = definition_of(processor)
            self.passed.append(id(processor) in passed)
            own = processor
            if definition is not None:
                copied = partial(definition.for_sample, processor, self.index)
                is_guarded = self.passed[-1] and runs_user_code(processor)
                own = run_user_code(copied) if is_guarded else copied()
            self.processors.append(own)
            if definition is not None and self.passed[-1]:
                followed[number] = FollowedProcessor(processor, own)
            if type(own) is GrammarLogitsProcessor:
                if own.prompt_length is None:
                    own.prompt_length = len(self.request.prompt_ids)
                if self.request.grammar is not None:
                    self.matcher = own.matcher(0)
        self.takes_forced = (
            self.matcher is not None
            and self.top_logprobs is None
            and not self.needs_scores
            and not params.processors
            and params.config.watermarking_config is None
            and "mirostat" not in params.samplers
        )

    @property
    def may_go_on(self) -> bool:
        """Tell whether the length allows another token behind the one that comes next."""
        most = self.request.stop_checks.max_length
        return most is None or len(self.tokens) + 1 < most

    @property
    def user_draws(self) -> UserDraws:
        """The random numbers of the code that the user passed."""
        return self.request.user_draws

    def input_ids(self, device: torch.device) -> Tensor:
        """Return the tokens so far, int64 [1, T]; only new tokens are copied to the device."""
        length = len(self.tokens)
        ids = self._ids
        if ids is None or ids.shape[1] < length or ids.device != device:
            ids = self._ids = torch.empty(1, max(2 * length, 64), dtype=torch.int64, device=device)
            self._filled = 0
        if self._filled < length:
            new = torch.tensor(self.tokens[self._filled :], dtype=torch.int64, device=device)
            ids[0, self._filled : length] = new
            self._filled = length
        return ids[:, :length]

    def reason_to_end(self, scores: Tensor | None) -> str | None:
        """Tell why the sequence ends with the token just appended to ``tokens``.

        Criteria of users see this sequence alone; without any, no tensor is touched.

        Args:
            scores: Processed scores that the token was picked from, [1, V]; only criteria of
                users read them.

        Returns:
            ``"stop"``, ``"incomplete"``, ``"length"``, ``"time"``, ``"cancelled"``, or None if
            it goes on.

        Raises:
            Exception: A criterion raised it.
        """
        stop_checks, stops = self.request.stop_checks, False
        if self.needs_scores:
            device = torch.device("cpu") if scores is None else scores.device
            with drawing_from(self.user_draws):
                stops = bool(stop_checks.tensor_criteria(self.input_ids(device), scores).item())
        reason = stop_checks.reason(self.index, self.tokens[-1], len(self.tokens), stops=stops)
        return reason if self.matcher is None else self._match(self.matcher, reason)

    def _match(self, matcher: Matcher, reason: str | None) -> str | None:
        """Tell why the sequence ends, where its answer may only stop if it fits the grammar."""
        matcher.extend(self.tokens, len(self.request.prompt_ids))
        if matcher.is_over:
            return "stop"
        return "incomplete" if reason == "stop" and not matcher.is_complete else reason

    def take_forced(self, most: int | None) -> list[int]:
        """Append the tokens that the grammar forces next, as far as the length allows.

        Args:
            most: Most tokens to append; ``None`` for no limit. Later steps append the rest.
        """
        if self.matcher is None or not self.takes_forced:
            return []
        taken = list(self.matcher.forced[:most])
        end = self.request.stop_checks.max_length
        if end is not None:
            taken = taken[: end - len(self.tokens)]
        self.tokens += taken
        return taken
