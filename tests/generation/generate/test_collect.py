"""The output object: its class, and the parts that were asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.generate.collect import StepOutputs, assemble, make_record
from asyncgen.generation.outputs import (
    GenerateBeamDecoderOnlyOutput,
    GenerateBeamEncoderDecoderOutput,
    GenerateDecoderOnlyOutput,
    GenerateEncoderDecoderOutput,
)
from asyncgen.generation.strategies.layer_outputs import LayerOutputs
from asyncgen.generation.strategies.step import EncoderInput, Outcome, Step
from tests.doubles.models import TableModel
from tests.generation.strategies.plans import plan_of

OUTCOME = Outcome(torch.tensor([[1, 2]]))
LAYER = torch.zeros(1)


def build(*, encoder: bool, **config: Any) -> Any:
    plan = plan_of(TableModel(), [[1]], new_tokens=1)
    plan.config = GenerationConfig(**config)
    plan.record = make_record(plan.config)
    plan.encoder = EncoderInput(torch.tensor([[1]])) if encoder else None
    kept = StepOutputs(plan.config, plan.record)
    for logits in (None, torch.zeros(1, 3)):
        if plan.record is not None:
            plan.record.fresh.append(LayerOutputs((LAYER,), (LAYER,), (LAYER,)))
            plan.record.encoder = LayerOutputs((LAYER,), (LAYER,))
        kept.add(Step([[]], logits=logits, scores=logits))
    return assemble(plan, OUTCOME, kept)


@pytest.mark.parametrize("encoder", [False, True])
@pytest.mark.parametrize("beams", [1, 2])
def test_the_class_follows_model_and_strategy(encoder: bool, beams: int) -> None:
    expected = {
        (False, 1): GenerateDecoderOnlyOutput,
        (True, 1): GenerateEncoderDecoderOutput,
        (False, 2): GenerateBeamDecoderOnlyOutput,
        (True, 2): GenerateBeamEncoderDecoderOutput,
    }[encoder, beams]
    output = build(encoder=encoder, num_beams=beams, return_dict_in_generate=True)
    assert type(output) is expected
    assert list(output.keys()) == ["sequences", "past_key_values"]


def test_ids_alone() -> None:
    assert build(encoder=False, output_scores=True) is OUTCOME.sequences


@pytest.mark.parametrize(
    ("wanted", "decoder", "both"),
    [
        (
            "output_attentions",
            {"attentions"},
            {"encoder_attentions", "decoder_attentions", "cross_attentions"},
        ),
        (
            "output_hidden_states",
            {"hidden_states"},
            {"encoder_hidden_states", "decoder_hidden_states"},
        ),
        ("output_scores", {"scores"}, {"scores"}),
        ("output_logits", {"logits"}, {"logits"}),
    ],
)
def test_output_has_exactly_the_requested_fields(
    wanted: str, decoder: set[str], both: set[str]
) -> None:
    options: dict[str, Any] = {wanted: True, "return_dict_in_generate": True}
    common = {"sequences", "past_key_values"}
    found = build(encoder=False, **options)
    assert set(found.keys()) == common | decoder
    assert all(len(found[name]) == 1 for name in decoder)
    assert set(build(encoder=True, **options).keys()) == common | both
