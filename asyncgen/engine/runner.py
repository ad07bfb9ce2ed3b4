"""Advances one request by one step of its strategy at a time.

A run is laid out at its first turn, so that a request in the queue costs nothing but its ids. It
knows no thread and no loop; between two turns it is a suspended generator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.engine.events import EventWriter
from asyncgen.engine.logprobs import token_logprob
from asyncgen.engine.sampler import HashDraw
from asyncgen.generation.modes import uses_beams
from asyncgen.generation.prepare import make_plan, rows_of_prompt
from asyncgen.generation.strategies import EncoderInput, Steps, strategy_for

if TYPE_CHECKING:
    from collections.abc import Callable

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
    ) -> None:
        """Take up a request without computing anything.

        Args:
            request: What to run.
            model: Computes.
            tokenizer: Turns ids to text.
            clock: Monotonic seconds.
            prefill_chunk: Most prompt tokens of one turn; ``None`` is all at once.
        """
        self._request = request
        self._model = model
        self._tokenizer = tokenizer
        self._prefill_chunk = prefill_chunk
        self._events = EventWriter(request, tokenizer, clock)
        self._steps: Steps | None = None
        self._is_past_prompt = False

    def turn(self) -> bool:
        """Run one decode step or one chunk of the prompt.

        Returns:
            Whether the request goes on.

        Raises:
            Exception: Whatever a processor, a criterion or the model raised.
        """
        interrupted = self._request.ends.interrupted()
        if interrupted is not None and not self._has_more_to_say(interrupted):
            self.end(interrupted)
            return False
        if self._steps is None:
            self._steps = self._start()
        self._write(next(self._steps))
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
        request = self._request
        draw = HashDraw(request.params.seed)
        plan = make_plan(
            self._model,
            [request.starting_ids] * rows_of_prompt(request.params.config),
            config=request.params.config,
            processors=request.processors,
            ends=request.ends,
            draw=draw,
            draw_several=draw.several,
            keep_logits=request.params.top_logprobs is not None,
            prefill_chunk=request.params.config.prefill_chunk_size or self._prefill_chunk,
            encoder=self._encoder_input(),
        )
        return strategy_for(request.params.mode)(plan)

    def _encoder_input(self) -> EncoderInput | None:
        """What the encoder reads, in a model that has one."""
        if self._request.decoder_ids is None:
            return None
        return EncoderInput(torch.tensor([self._request.prompt_ids], device=self._model.device))

    def _has_more_to_say(self, interrupted: str) -> bool:
        """Beams that run out of time end with the best hypothesis so far, in one more step."""
        return (
            interrupted == "time"
            and self._is_past_prompt
            and uses_beams(self._request.params.config)
        )

    def _write(self, step: Step) -> None:
        """Turn what a step settled into events."""
        self._is_past_prompt |= step.scores is not None
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
        behind = [step.logits[row]] if step.settled_logits is None else step.settled_logits[row]
        return tuple(
            token_logprob(logits, token_id, top, self._tokenizer)
            for token_id, logits in zip(step.token_ids[row], behind, strict=True)
        )
