"""Run a model that decodes by itself: any object with a Hugging Face style ``generate``.

Such code has a loop of its own, so one turn is the whole request, and all other requests wait. It
streams through ``streamer=`` and stops through ``stopping_criteria=``, like every ``generate``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from asyncgen.engine.output.events import EventWriter
from asyncgen.errors import InvalidRequestError, shorten
from asyncgen.generation.config.modes import uses_beams
from asyncgen.generation.generate.written_model import device_of
from asyncgen.generation.logits.penalties import (
    FrequencyPenaltyLogitsProcessor,
    PresencePenaltyLogitsProcessor,
)
from asyncgen.runtime.transfer import given_ints, plain_tensor
from asyncgen.runtime.user_code import run_user_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from asyncgen.engine.metrics import EngineMetrics
    from asyncgen.engine.requests.request import Request
    from asyncgen.generation.logits.base import LogitsProcessor
    from asyncgen.text.tokenizer import Tokenizer


class ForeignRun:
    """Request that a foreign ``generate`` serves."""

    def __init__(
        self,
        request: Request,
        model: Any,
        tokenizer: Tokenizer,
        *,
        clock: Callable[[], float],
        is_closing: Callable[[], bool] = bool,
        metrics: EngineMetrics | None = None,
    ) -> None:
        """Begin a request without computing anything.

        Args:
            request: The request.
            model: Has ``generate(input_ids=…, streamer=…, stopping_criteria=…, **config)``.
            tokenizer: Decodes ids.
            clock: Monotonic seconds.
            is_closing: Returns whether the decode thread was asked to stop, as its inbox is not
                read meanwhile.
            metrics: Records the request.
        """
        self._request = request
        self._model = model
        self._has_encoder = bool(
            getattr(getattr(model, "config", None), "is_encoder_decoder", False)
        )
        self._is_closing = is_closing
        self._events = EventWriter(request, tokenizer, clock, metrics)

    def turn(self) -> bool:
        """Run the whole request.

        Returns:
            ``False``: it has ended.

        Raises:
            Exception: The foreign code raised it.
        """
        request = self._request
        interrupted = self._interrupted()
        if interrupted is not None:
            self.end(interrupted)
            return False
        streamer = _RowStreamer(
            request, self._events, self._interrupted, has_encoder=self._has_encoder
        )
        run_user_code(self._generate, streamer)
        self._events.end(self._interrupted() or "stop")
        return False

    def _generate(self, streamer: _RowStreamer) -> None:
        """Call the foreign code, and write what it returned where it put no tokens."""
        request = self._request
        has_beams = uses_beams(request.params.config)
        rows = _num_equal_rows(request)
        ids = torch.tensor(
            [request.prompt_ids] * rows, dtype=torch.int64, device=device_of(self._model)
        )
        result = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            streamer=None if has_beams else streamer,  # transformers takes none beside beams
            stopping_criteria=[streamer.stops],
            logits_processor=[*_penalties(request), *request.params.processors],
            **_negative_prompt(request),
            **_foreign_config(request),
        )
        if streamer.has_tokens:
            return
        found = self._new_ids(result)
        if found is not None:
            streamer.put_rows(found)
        elif self._interrupted() is None:
            rows = request.params.num_samples
            allowed = (
                "it puts its tokens into `streamer`, or returns an integer tensor [B, T] of"
                f" {rows} rows that begin with the prompt"
            )
            raise _unusable("returns", result, allowed)

    def _new_ids(self, result: Any) -> list[list[int]] | None:
        """Return the new ids of each row of a result; ``None`` where these cannot be told."""
        found = plain_tensor(getattr(result, "sequences", result))
        is_tensor = isinstance(found, torch.Tensor) and found.dim() == 2 and not found.is_meta
        rows = [given_ints(row) for row in found] if is_tensor else []
        known = [row for row in rows if row is not None]
        if len(known) != self._request.params.num_samples:
            return None
        if self._has_encoder:
            return [row[1:] for row in known]  # a decoder begins with one id of its own
        prompt = self._request.prompt_ids
        if any(row[: len(prompt)] != [*prompt] for row in known):
            return None
        return [row[len(prompt) :] for row in known]

    def end(self, reason: str) -> None:
        """End before the foreign code was called."""
        self._events.end(reason)

    def _interrupted(self) -> str | None:
        """Return a reason to end at once, if there is one."""
        return "aborted" if self._is_closing() else self._request.stop_checks.interrupted()


class _RowStreamer:
    """Streamer and stopping criterion of a foreign ``generate``.

    Attributes:
        has_tokens: Whether any were put.
    """

    def __init__(
        self,
        request: Request,
        events: EventWriter,
        interrupted: Callable[[], str | None],
        *,
        has_encoder: bool,
    ) -> None:
        self._stop_checks = request.stop_checks
        self._events = events
        self._interrupted = interrupted
        # Length at which a criterion ended a row: criteria run before or after the put.
        self._ended: dict[int, int] = {}
        self._prompt: list[int] | None = request.prompt_ids  # until something was put
        self._begins_anew = has_encoder
        self.has_tokens = False
        self._rows = request.params.num_samples
        self._length = len(request.prompt_ids)

    def put(self, value: Any) -> None:
        """Write the ids ``[B]`` of a step, of one row also several.

        First comes the prompt, or where a decoder begins, which is no answer; or at once one new
        id of each row.

        Raises:
            InvalidRequestError: It is no ids of these rows.
        """
        found = given_ints(value)
        prompt, self._prompt = self._prompt, None
        if prompt is not None and found is not None:
            if self._begins_anew or found == prompt * (len(found) // len(prompt)):
                return
        most = self._rows if prompt is not None or self._rows > 1 else None
        if found is None or len(found) % self._rows or most is not None and len(found) > most:
            allowed = f"it puts the prompt, then integers [{self._rows}], an id of each row"
            raise _unusable("puts", value, allowed)
        for start in range(0, len(found), self._rows):
            self._put(found[start : start + self._rows])

    def _put(self, token_ids: list[int]) -> None:
        self.has_tokens = True
        self._length += 1
        for row, token_id in enumerate(token_ids):
            if self._length <= self._ended.get(row, self._length) and row in self._events.live:
                self._events.write(row, [token_id], self._reason(token_id))

    def put_rows(self, sequences: list[list[int]]) -> None:
        """Write the new ids of each finished sequence."""
        ends = self._stop_checks.eos_token_ids
        for row, token_ids in enumerate(sequences):
            last = next((at for at, each in enumerate(token_ids) if each in ends), len(token_ids))
            is_full = self._length + len(token_ids) == self._stop_checks.max_length
            reason = "stop"
            if last == len(token_ids):  # it has no end of its own
                reason = "length" if is_full else self._interrupted() or "stop"
            self._events.write(row, token_ids[: last + 1], reason)

    def end(self) -> None:
        """Do nothing at the end of ``generate``, as the run writes the last event."""

    def stops(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        """Stop when everything has ended, or the request was interrupted."""
        done = not self._events.live or self._interrupted() is not None
        verdict = torch.full((input_ids.shape[0],), done, dtype=torch.bool, device=input_ids.device)
        if self._stop_checks.tensor_criteria:
            found = self._stop_checks.tensor_criteria(input_ids, scores)
            for row in torch.nonzero(found).flatten().tolist():
                self._ended.setdefault(row, input_ids.shape[1])
            verdict = verdict | found
        return verdict

    def _reason(self, token_id: int) -> str | None:
        if token_id in self._stop_checks.eos_token_ids:
            return "stop"
        end = self._stop_checks.max_length
        return "length" if end is not None and self._length >= end else None


def _unusable(does: str, value: object, allowed: str) -> InvalidRequestError:
    what = f"an object whose `generate` {does} {shorten(value, 60)}"
    return InvalidRequestError("model", what, allowed)


def _num_equal_rows(request: Request) -> int:
    """Count equal samples of a greedy request: transformers computes them as rows of prompts."""
    config = request.params.config
    is_greedy = not config.do_sample and not uses_beams(config)
    return request.params.num_samples if is_greedy else 1


def _penalties(request: Request) -> list[LogitsProcessor]:
    """Return the penalties that only this library has, as processors for any ``generate``."""
    kinds = (PresencePenaltyLogitsProcessor, FrequencyPenaltyLogitsProcessor)
    return [each for each in request.processors if isinstance(each, kinds)]


def _negative_prompt(request: Request) -> dict[str, Tensor]:
    names = ("negative_prompt_ids", "negative_prompt_attention_mask")
    given = {name: getattr(request.params, name) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def _foreign_config(request: Request) -> dict[str, Any]:
    """Return the parameters that differ from the documented defaults, and the length."""
    params = request.params
    if params.top_logprobs is not None:
        raise InvalidRequestError("logprobs", True, "not available from a foreign model object")
    config = params.config.to_diff_dict()
    # The run's own criterion ends at time limits and stop strings. A length in new tokens has
    # precedence over defaults of the foreign model.
    for name in ("transformers_version", "max_time", "stop_strings", "max_length"):
        config.pop(name, None)
    if not params.config.do_sample and config.get("temperature") == 0:
        del config["temperature"]  # it says no more than that
    if _num_equal_rows(request) > 1:
        del config["num_return_sequences"]
    assert params.config.max_length is not None
    return config | {
        "max_new_tokens": params.config.max_length - len(request.prompt_ids),
        "do_sample": params.config.do_sample,
    }
