"""Collect the requested outputs of ``generate`` step by step, and assemble its result.

Which of the documented classes it is, follows from the model and the strategy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from asyncgen.generation.outputs import (
    GenerateBeamDecoderOnlyOutput,
    GenerateBeamEncoderDecoderOutput,
    GenerateDecoderOnlyOutput,
    GenerateEncoderDecoderOutput,
)
from asyncgen.generation.strategies.layer_outputs import LayerOutputs, LayerRecorder

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from asyncgen.generation.config import GenerationConfig
    from asyncgen.generation.strategies.step import Outcome, Plan, Step


Result: TypeAlias = (
    "GenerateDecoderOnlyOutput | GenerateEncoderDecoderOutput | GenerateBeamDecoderOnlyOutput"
    " | GenerateBeamEncoderDecoderOutput | torch.LongTensor"
)


_OUTPUTS: dict[tuple[bool, bool], Callable[..., Result]] = {
    (False, False): GenerateDecoderOnlyOutput,
    (False, True): GenerateBeamDecoderOnlyOutput,
    (True, False): GenerateEncoderDecoderOutput,
    (True, True): GenerateBeamEncoderDecoderOutput,
}
"""The output of a model with or without an encoder, without or with beams."""


class StepOutputs:
    """Outputs that the documented result keeps of every step, if requested.

    Attributes:
        scores: Processed scores of each step.
        logits: Raw logits of each step.
    """

    def __init__(self, config: GenerationConfig, record: LayerRecorder | None) -> None:
        """Begin with nothing.

        Args:
            config: Says what is wanted.
            record: Where forward passes leave what goes on inside the model.
        """
        asked = bool(config.return_dict_in_generate)
        self.scores: list[Tensor] | None = [] if asked and config.output_scores else None
        self.logits: list[Tensor] | None = [] if asked and config.output_logits else None
        self._record = record

    def add(self, step: Step) -> None:
        """Keep the tensors of a step; prompt chunks have none."""
        if self.scores is not None and step.scores is not None:
            self.scores += step.scores.chunk(step.positions)
        if self.logits is not None and step.logits is not None:
            self.logits += step.logits.chunk(step.positions)
        if self._record is not None:
            self._record.settle(is_step=step.logits is not None)


def make_record(config: GenerationConfig, encoder_outputs: Any = None) -> LayerRecorder | None:
    """The record that a configuration asks for, or ``None``.

    Args:
        config: Complete configuration.
        encoder_outputs: What the caller had from the encoder already.
    """
    states, weights = bool(config.output_hidden_states), bool(config.output_attentions)
    if not config.return_dict_in_generate or not (states or weights):
        return None
    record = LayerRecorder(states, weights)
    if encoder_outputs is not None:
        record.encoder = LayerOutputs(
            getattr(encoder_outputs, "hidden_states", None) or (),
            getattr(encoder_outputs, "attentions", None) or (),
        )
    return record


def assemble(plan: Plan, outcome: Outcome, kept: StepOutputs) -> Result:
    """Build the documented output.

    Args:
        plan: What was decoded.
        outcome: What its strategy returned.
        kept: What was kept of its steps.

    Returns:
        The sequences, or an output object with ``return_dict_in_generate=True``.
    """
    config = plan.config
    cache = plan.cache if plan.call is None else plan.call.cache
    if outcome.result is not None:
        return outcome.result
    if not config.return_dict_in_generate:
        return outcome.sequences  # type: ignore[return-value]
    fields: dict[str, Any] = {
        "sequences": outcome.sequences,
        "scores": None if kept.scores is None else tuple(kept.scores),
        "logits": None if kept.logits is None else tuple(kept.logits),
        "past_key_values": cache if config.use_cache is not False else None,
        **outcome.extra,
    }
    if not config.output_scores:
        fields.pop("sequences_scores", None)
    fields |= _layer_outputs(plan.record, has_encoder=plan.encoder is not None)
    return _OUTPUTS[plan.encoder is not None, (config.num_beams or 1) > 1](**fields)


def _layer_outputs(record: LayerRecorder | None, *, has_encoder: bool) -> dict[str, Any]:
    """Return the requested layer outputs, under the names of the result."""
    if record is None:
        return {}
    names = ("hidden_states", "attentions")
    wanted = [name for name in names if getattr(record, f"wants_{name}")]
    if not has_encoder:
        return {name: record.per_step(name) for name in wanted}
    found: dict[str, Any] = {f"decoder_{name}": record.per_step(name) for name in wanted}
    if record.wants_attentions:
        found["cross_attentions"] = record.per_step("cross_attentions")
    if record.encoder is not None:
        found |= {f"encoder_{name}": getattr(record.encoder, name) or None for name in wanted}
    return found
