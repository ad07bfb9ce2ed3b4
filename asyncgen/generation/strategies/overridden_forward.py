"""The model as its user wrote it: every pass asks its hook for inputs, and calls it with these.

For models whose ``prepare_inputs_for_generation`` or ``forward`` was overridden. It costs what the
documented arguments of a call cost; models without an override never come here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn import functional as F

from asyncgen.cache.caches import Cache
from asyncgen.cache.no_cache import NoCache
from asyncgen.cache.sink import SinkCache
from asyncgen.cache.states import largest_crop, mark_states
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.custom_methods import accepted_arguments, parameter_names
from asyncgen.generation.outputs import BaseModelOutput
from asyncgen.generation.strategies.forward import Forward, encoder_embeddings
from asyncgen.generation.strategies.layer_outputs import LayerOutputs
from asyncgen.generation.strategies.step import repeat_rows
from asyncgen.runtime.user_code import run_user_code

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from asyncgen.generation.strategies.step import EncoderInput, Plan
    from asyncgen.models.attention.cross import Encoded
    from asyncgen.models.encoder_decoder import T5


OFFERED = ("past_key_values", "use_cache", "position_ids")
"""Arguments that every hook is offered; one without a parameter of the name does not get it."""


class ModelCaller:
    """A :class:`~asyncgen.generation.strategies.step.ModelCall` of a model with a hook.

    Attributes:
        model: The model.
        given: Further arguments of the caller's, for the model's hook.
        cache: The cache that the last call returned; ``None`` without a cache.
    """

    def __init__(
        self, model: Any, given: Mapping[str, Any], prompts: int, needs_mask: bool = False
    ) -> None:
        """Keep what each call needs.

        Args:
            model: The model.
            given: Further arguments of the caller's.
            prompts: Rows of the tensors in these; they are repeated with the prompts.
            needs_mask: Whether it gets an attention mask also where nothing is padded.
        """
        self.model = model
        self.needs_mask = needs_mask
        self.given = dict(given)
        self.cache: Cache | None = None
        self._prompts = prompts

    def __call__(self, plan: Plan) -> Forward:
        """Run the model over the rows of a plan."""
        return OverriddenForward(plan, self)

    def arguments(self, rows: int) -> dict[str, Any]:
        """The caller's arguments for so many rows."""
        return {name: self._fit(value, rows) for name, value in self.given.items()}

    def _fit(self, value: Any, rows: int) -> Any:
        if isinstance(value, torch.Tensor) and value.dim() and len(value) == self._prompts:
            return repeat_rows(value, rows // self._prompts)
        return value


class OverriddenForward(Forward):
    """Calls a model with what its ``prepare_inputs_for_generation`` makes of each step."""

    def __init__(self, plan: Plan, call: ModelCaller) -> None:
        """Begin where the plan's cache ends.

        Args:
            plan: What to decode.
            call: The model.
        """
        self._call = call
        self._plan = plan
        self._ids = plan.input_ids
        super().__init__(plan)
        model, rows = call.model, len(plan.input_ids)
        self._prepare = model.prepare_inputs_for_generation
        self._given = call.arguments(rows)
        self._kept = self._given.pop("logits_to_keep", None)
        offered = dict.fromkeys(OFFERED) if plan.inputs is None else {}
        self._unasked = offered.keys() - accepted_arguments(self._prepare, offered).keys()
        names = parameter_names(model.forward)
        self._chooses_logits = "logits_to_keep" in names
        # A hook of the user's may hand on all ids in every step.
        is_own = not getattr(self._prepare, "__module__", "").startswith("asyncgen.")
        self._must_fill = "past_key_values" in names and not is_own
        self._constant = self._constants(rows)

    def __call__(self, input_ids: Tensor) -> Tensor:
        """See `Forward`."""
        return self.logits(input_ids, 1)[:, 0]

    def logits(self, input_ids: Tensor, last: int) -> Tensor:
        """See `Forward`."""
        call, start = self._call, self.length
        self._advance(input_ids)
        if not input_ids.is_floating_point():
            self._ids = torch.cat((self._ids, input_ids), dim=1)
        arguments = self._arguments(start, last)
        for name in self._unasked & arguments.keys():
            del arguments[name]
        inputs = run_user_code(self._prepare, self._ids, **arguments)
        output = run_user_code(call.model, **inputs, return_dict=True)
        if self._is_cached and getattr(output, "past_key_values", None) is not None:
            call.cache = output.past_key_values
        elif self._is_cached and self._must_fill and start == 0:
            _require_filled(call.cache, call.model)
        if self._record is not None:
            self._record.fresh.append(_layer_outputs(output))
        return cast("Tensor", output.logits[:, -last:])

    def crop(self, length: int) -> None:
        """See `Forward`."""
        self.repeats = 0
        if length < self.length:
            reached = _shorten(self._call.cache, length)
            self._ids = self._ids[:, : self._ids.shape[1] - (self.length - reached)]
            self.length, self.repeats = reached, length - reached

    def mark(self) -> bool:
        """See `Forward`."""
        return self._call.cache is not None and mark_states(self._call.cache)

    def exchange_rows(self, rows: Tensor, first: int) -> None:
        """See `Forward`."""
        self._ids = self._ids.index_select(0, rows)
        cache: Any = self._call.cache
        if hasattr(cache, "exchange_rows"):
            cache.exchange_rows(rows, first)
        elif hasattr(cache, "reorder_cache"):
            cache.reorder_cache(rows)
        elif cache is not None:
            allowed = "beams change places, and this cache has no `reorder_cache(beam_idx)`"
            raise InvalidRequestError("past_key_values", type(cache).__name__, allowed)

    def _open(self, plan: Plan) -> None:
        self._is_cached = not isinstance(plan.cache, NoCache)
        self._call.cache = plan.cache if self._is_cached else None
        if plan.embeddings is None:
            self._ids = plan.input_ids[:, : self.length - plan.offset]

    def _encode(self, core: T5, plan: Plan, given: EncoderInput) -> Encoded:
        """Run the encoder, whatever the cache holds: the hook is told what it says."""
        if self._record is not None:
            return super()._encode(core, plan, given)
        return core.encode(encoder_embeddings(core, given), given.attention_mask)

    def _constants(self, rows: int) -> dict[str, Any]:
        """Arguments that are the same in every step."""
        plan, record = self._plan, self._record
        found: dict[str, Any] = {"use_cache": self._is_cached, **self._given}
        if record is not None:
            found |= {
                "output_attentions": record.wants_attentions,
                "output_hidden_states": record.wants_hidden_states,
            }
        if plan.embeddings is not None:
            found["inputs_embeds"] = plan.embeddings
        if plan.encoder is not None:
            encoded = plan.encoder.encoded
            assert encoded is not None and encoded.states is not None
            copies = rows // len(encoded.states)
            found["encoder_outputs"] = BaseModelOutput(repeat_rows(encoded.states, copies))
            mask = repeat_rows(encoded.mask, copies)
            found["attention_mask"] = None if mask is None else mask.to(torch.int64)
        return found

    def _arguments(self, start: int, last: int) -> dict[str, Any]:
        """Return the hook's arguments for positions ``start`` to the present length."""
        plan, end = self._plan, self.length
        first = start if self._is_cached else 0
        mask = plan.attention_mask
        if mask is not None:
            mask = F.pad(mask[:, :end].to(torch.int64), (0, max(end - mask.shape[1], 0)), value=1)
        elif self._call.needs_mask:
            mask = self._ids.new_ones(len(self._ids), end)
        arguments = dict(self._constant)
        if self._is_cached:
            arguments["past_key_values"] = self._call.cache
        if plan.encoder is None:
            arguments["attention_mask"] = mask
            if not isinstance(self._call.cache, SinkCache):  # which gives positions itself
                told = self._first_given("position_ids")
                positions = self._positions(told, end, self._ids.device)
                arguments["position_ids"] = positions.expand(len(self._ids), -1)
            if self._chooses_logits:
                arguments["logits_to_keep"] = last if last > 1 or self._kept is None else self._kept
        else:
            arguments["decoder_attention_mask"] = mask
        if self._types is not None:
            arguments["token_type_ids"], _ = self._types(self._first_given("token_type_ids"), end)
        newer = {
            "next_sequence_length": end - start if self._is_cached else None,
            "is_first_iteration": start < plan.num_positions,
        }
        arguments |= accepted_arguments(self._prepare, newer)
        if "cache_position" in parameter_names(self._prepare):
            arguments["cache_position"] = torch.arange(
                first, end, dtype=torch.int64, device=self._ids.device
            )
        return arguments

    def _first_given(self, name: str) -> int:
        """Return the first position that the caller gave a table of; 0 without the table."""
        table = None if self._plan.inputs is None else getattr(self._plan.inputs, name)
        return 0 if table is None else self._plan.num_positions - int(table.shape[1])


def _require_filled(cache: Any, model: Any) -> None:
    """Refuse a model that took a cache, put nothing into it and returned none.

    It would be told the newest id alone from the next step on.
    """
    if isinstance(cache, Cache) and cache.get_seq_length() == 0:
        allowed = (
            "took `past_key_values` and left it empty; fill it, return one, or call with "
            "`use_cache=False`"
        )
        raise InvalidRequestError("forward", type(model).__name__, allowed)


def _shorten(cache: Any, length: int) -> int:
    """Let a cache forget the positions from ``length`` on; return where it ends now."""
    if isinstance(cache, Cache):
        reached = largest_crop(cache, length)
        cache.truncate(reached)
        return reached
    if not hasattr(cache, "crop"):
        allowed = "a refused draft is taken back, and this cache has no `crop(length)`"
        raise InvalidRequestError("past_key_values", type(cache).__name__, allowed)
    cache.crop(length)
    return length


def _layer_outputs(output: Any) -> LayerOutputs:
    """Hidden states and attentions that a model returned."""
    states, weights, across = (
        getattr(output, name, None) or getattr(output, f"decoder_{name}", None) or ()
        for name in ("hidden_states", "attentions", "cross_attentions")
    )
    return LayerOutputs(states, weights, across)
