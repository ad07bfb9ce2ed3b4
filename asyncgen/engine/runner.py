"""Advances one request by one step of its strategy at a time.

A run is laid out at its first turn, so that a request in the queue costs nothing but its ids. It
knows no thread and no loop; between two turns it is a suspended generator.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from asyncgen.engine.events import EventWriter
from asyncgen.engine.logprobs import token_logprob
from asyncgen.engine.sampler import HashDraw
from asyncgen.generation.custom import custom_strategy
from asyncgen.generation.drafting import make_drafter
from asyncgen.generation.logits import raise_named
from asyncgen.generation.mode_checks import Situation, check_mode
from asyncgen.generation.modes import GenerationMode
from asyncgen.generation.prepare import make_plan
from asyncgen.generation.strategies import EncoderInput, Steps, strategy_for
from asyncgen.generation.strategies.healed import healed

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen.engine.assistants import Assistants
    from asyncgen.engine.request import Request
    from asyncgen.generation.prepare import GenerativeModel
    from asyncgen.generation.strategies import Step
    from asyncgen.tokenizer import Tokenizer
    from asyncgen.types import TokenLogprob

__all__ = ["StepRun"]


class StepRun:
    """A request in progress: its step generator and the events that come of it."""

    def __init__(
        self,
        request: Request,
        model: GenerativeModel,
        tokenizer: Tokenizer,
        *,
        clock: Callable[[], float],
        prefill_chunk: int | None,
        assistants: Assistants,
    ) -> None:
        """Take up a request without computing anything.

        Args:
            request: What to run.
            model: Computes.
            tokenizer: Turns ids to text.
            clock: Monotonic seconds.
            prefill_chunk: Most prompt tokens of one turn; ``None`` is all at once.
            assistants: Where draft models come from.
        """
        self._request = request
        self._model = model
        self._tokenizer = tokenizer
        self._prefill_chunk = prefill_chunk
        self._assistants = assistants
        self._events = EventWriter(request, tokenizer, clock)
        self._steps: Steps | None = None

    def turn(self) -> bool:
        """Run one decode step or one chunk of the prompt.

        Returns:
            Whether the request goes on.

        Raises:
            Exception: Whatever a processor, a criterion or the model raised.
        """
        interrupted = self._request.ends.interrupted()
        if interrupted is not None:
            self.end(interrupted)
            return False
        if self._steps is None:
            self._steps = self._start()
        try:
            step = next(self._steps)
        except FloatingPointError as error:
            raise_named(self._request.processors, error)
        self._write(step)
        if not self._events.any_live:
            self._steps.close()
        return self._events.any_live

    def end(self, reason: str) -> None:
        """Stop here and tell the reader why; what was generated stays."""
        if self._steps is not None:
            self._steps.close()
        self._events.end(reason)

    def _start(self) -> Steps:
        """Lay the request out as tensors and start its strategy."""
        request, mode = self._request, self._request.params.mode
        assistance = None
        if mode is GenerationMode.ASSISTED_GENERATION:
            assistance = self._assistants.assistance(request.params, self._tokenizer)
            # A draft model that was loaded just now has not been looked at before.
            rows, config = request.params.num_samples, request.params.config
            check_mode(mode, Situation(self._model, config, rows, assistance=assistance))
        plan = make_plan(
            self._model,
            [request.starting_ids] * request.params.num_samples,
            config=request.params.config,
            processors=request.processors,
            ends=request.ends,
            draw=HashDraw(request.params.seed),
            prefill_chunk=request.params.config.prefill_chunk_size or self._prefill_chunk,
            encoder=self._encoder_input(),
        )
        if request.method is not None:
            request.method.emit = self._write
            return custom_strategy(request.method)(plan)
        if assistance is not None:
            # What one request teaches a draft model must not change the draws of another.
            plan.drafter = make_drafter(self._model, plan, assistance, remember=False)
        strategy = strategy_for(mode)
        if request.healing is not None:
            bias = request.healing.bias.expand(request.params.num_samples, -1)
            strategy = partial(healed, strategy=strategy, bias=bias)
        return strategy(plan)

    def _encoder_input(self) -> EncoderInput | None:
        """What the encoder reads, in a model that has one."""
        if self._request.decoder_ids is None:
            return None
        return EncoderInput(torch.tensor([self._request.prompt_ids], device=self._model.device))

    def _write(self, step: Step) -> None:
        """Turn what a step settled into events."""
        if step.prompt is not None:
            self._events.heal(step.prompt.tolist())
        for row, token_ids in enumerate(step.token_ids):
            reason = step.reasons[row] if step.reasons else None
            if not self._events.is_live(row) or (not token_ids and reason is None):
                continue
            goes_on = self._events.settle(row, token_ids, reason, self._logprobs(step, row))
            if not goes_on:
                self._request.ends.stop_row(row)

    def _logprobs(self, step: Step, row: int) -> tuple[TokenLogprob, ...] | None:
        """Log-probabilities of a row, if the request asked for them."""
        top = self._request.params.top_logprobs
        if top is None or step.logits is None or not step.token_ids[row]:
            return None
        # One row of logits a position, or one position for all rows.
        first = row if step.positions == 1 else 0
        return tuple(
            token_logprob(step.logits[first + place], token_id, top, self._tokenizer)
            for place, token_id in enumerate(step.token_ids[row])
        )
