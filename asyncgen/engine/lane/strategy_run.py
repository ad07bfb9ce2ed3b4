"""Advance one request of the side lane by one step of its strategy at a time.

Tensors are made at the first turn, so that a waiting request costs only its ids. A run knows no
thread and no event loop; between two turns it is a suspended generator.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from asyncgen.engine.output.events import EventWriter
from asyncgen.engine.requests.prepare import num_rows
from asyncgen.engine.sampling.logprobs import decoder_of, raw_logprobs
from asyncgen.engine.sampling.random_draws import HashDraw
from asyncgen.generation.config.modes import GenerationMode, uses_beams
from asyncgen.generation.generate.custom import custom_strategy
from asyncgen.generation.generate.plan_parts import make_plan, pad_id, rows_per_prompt
from asyncgen.generation.logits.checked_processors import raise_named
from asyncgen.generation.strategies import strategy_for
from asyncgen.generation.strategies.drafters.drafting import make_drafter
from asyncgen.generation.strategies.mode_checks import StrategyInputs, check_mode
from asyncgen.generation.strategies.step import EncoderInput, Steps
from asyncgen.generation.strategies.token_healing import decode_healed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from asyncgen.engine.lane.assistants import Assistants
    from asyncgen.engine.metrics import EngineMetrics
    from asyncgen.engine.requests.request import Request
    from asyncgen.generation.generate.plan_parts import GenerativeModel
    from asyncgen.generation.strategies.step import Step
    from asyncgen.text.tokenizer import Tokenizer
    from asyncgen.types import TokenLogprob


class StepRun:
    """Request in progress: the generator of its steps, and the writer of its events."""

    def __init__(
        self,
        request: Request,
        model: GenerativeModel,
        tokenizer: Tokenizer | None,
        *,
        clock: Callable[[], float],
        prefill_chunk: int | None,
        assistants: Assistants,
        metrics: EngineMetrics | None = None,
    ) -> None:
        """Begin a request without computing anything.

        Args:
            request: The request.
            model: The model.
            tokenizer: Decodes ids; ``None`` where only ids are wanted.
            clock: Monotonic seconds.
            prefill_chunk: Most prompt tokens of one turn; ``None`` for all at once.
            assistants: Source of draft models.
            metrics: Records the request.
        """
        self._request = request
        self._model = model
        self._tokenizer = tokenizer
        self._prefill_chunk = prefill_chunk
        self._assistants = assistants
        self._events = EventWriter(request, tokenizer, clock, metrics)
        self._steps: Steps | None = None
        self._is_past_prompt = False
        self._row_ids: dict[int, list[int]] = {}  # of each row with a grammar

    def turn(self) -> bool:
        """Run one decode step or one chunk of the prompt.

        Returns:
            True if the request goes on.

        Raises:
            Exception: A processor, a criterion or the model raised it.
        """
        if not self._events.live:  # all sequences had ended before
            return False
        interrupted = self._request.stop_checks.interrupted()
        if interrupted is not None and not self._ends_beams(interrupted):
            self.end(interrupted)
            return False
        if self._steps is None:
            self._steps = self._start()
        try:
            step = next(self._steps)
        except FloatingPointError as error:
            raise_named(self._request.processors, error)
        self._write(step)
        if not self._events.live:
            self._steps.close()
        return bool(self._events.live)

    def end(self, reason: str) -> None:
        """Stop here and write the last events; what was generated stays."""
        if self._steps is not None:
            self._steps.close()
        self._events.end(reason)

    def _start(self) -> Steps:
        """Make the tensors of the request and start its strategy."""
        request, mode = self._request, self._request.params.mode
        assistance = None
        if mode is GenerationMode.ASSISTED_GENERATION and request.method is None:
            assistance = self._assistants.assistance(request.params, self._tokenizer)
            # A draft model that was loaded just now has not been checked before.
            rows, config = request.params.num_samples, request.params.config
            check_mode(mode, StrategyInputs(self._model, config, rows, assistance=assistance))
        plan = make_plan(
            self._model,
            self._beginnings(),
            config=request.params.config,
            processors=request.processors,
            stop_checks=request.stop_checks,
            draw=HashDraw(request.params.seed),
            beams=1 if request.method else request.params.config.num_beams or 1,
            keep_logits=request.params.top_logprobs is not None,
            prefill_chunk=request.params.config.prefill_chunk_size or self._chunk(),
            encoder=self._encoder_input(),
            live=[request.goes_on(row) for row in range(self._rows)],
        )
        if request.method is not None:
            request.method.emit = self._write
        elif assistance is not None:
            # A drafter that learned from one request would change the draws of another.
            plan.drafter = make_drafter(self._model, plan, assistance, remember=False)
        method = request.method
        strategy = strategy_for(mode) if method is None else custom_strategy(method)
        if request.healing is not None:
            bias = request.healing.bias.expand(self._rows, -1)
            strategy = partial(decode_healed, strategy=strategy, bias=bias)
        return strategy(plan)

    def _beginnings(self) -> list[list[int]]:
        """Return the ids that each row continues; a row that has ended is padded."""
        rows = [self._request.tokens_of(row) for row in range(self._rows)]
        length = max(len(ids) for row, ids in enumerate(rows) if self._request.goes_on(row))
        filled = pad_id(self._request.params.config)
        return [(ids + [filled] * length)[:length] for ids in rows]

    def _chunk(self) -> int | None:
        """Return the prompt tokens of each row in a turn, within the budget of all rows."""
        budget = self._prefill_chunk
        return None if budget is None else max(budget // num_rows(self._request.params), 1)

    def _encoder_input(self) -> EncoderInput | None:
        """Return the input of the encoder, in a model that has one."""
        if self._request.decoder_ids is None:
            return None
        return EncoderInput(
            torch.tensor([self._request.prompt_ids], dtype=torch.int64, device=self._model.device)
        )

    @property
    def _rows(self) -> int:
        """Rows of the tensors; a method that a user wrote sees every sample."""
        params = self._request.params
        return params.num_samples if self._request.method else rows_per_prompt(params.config)

    def _ends_beams(self, interrupted: str) -> bool:
        """Return whether beams that ran out of time end with the best one, in one more step."""
        is_late = interrupted == "time" and self._is_past_prompt
        return is_late and uses_beams(self._request.params.config)

    def _write(self, step: Step) -> None:
        """Write the events of a step."""
        if step.prompt is not None:
            self._events.heal(step.prompt.tolist())
        self._is_past_prompt |= step.scores is not None
        for row, token_ids in enumerate(step.token_ids):
            reason = step.reasons[row] if step.reasons else None
            if row not in self._events.live or (not token_ids and reason is None):
                continue
            if self._request.grammar is not None:
                reason = self._match(row, token_ids, reason)
            goes_on = self._events.write(row, token_ids, reason, self._logprobs(step, row))
            if not goes_on:
                self._request.stop_checks.stop_row(row)

    def _match(self, row: int, token_ids: Sequence[int], reason: str | None) -> str | None:
        """Return why a row ends, where its answer may only stop if it fits the grammar."""
        ids = self._row_ids.setdefault(row, self._request.tokens_of(row))
        ids += token_ids
        if reason != "stop":
            return reason
        assert self._request.grammar is not None
        matcher = self._request.grammar.matcher(self._request.stop_checks.eos_token_ids)
        matcher.extend(ids, len(self._request.starting_ids))
        return "stop" if matcher.is_complete else "incomplete"

    def _logprobs(self, step: Step, row: int) -> tuple[TokenLogprob, ...] | None:
        """Return the log-probabilities of a row, if the request asked for them."""
        top = self._request.params.top_logprobs
        if top is None or step.logits is None or not step.token_ids[row]:
            return None
        # Logits come in rows of their own, as one position a row, or as all positions of a row.
        behind: Sequence[Tensor] | Tensor
        if step.settled_logits is not None:
            behind = step.settled_logits[row]
        else:
            behind = step.logits[row:] if step.positions == 1 else step.logits
        decode = decoder_of(self._tokenizer)
        return tuple(
            raw_logprobs(behind[number][None], [token_id], [top])[0].named(decode)
            for number, token_id in enumerate(step.token_ids[row])
        )
