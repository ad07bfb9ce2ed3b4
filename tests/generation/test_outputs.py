"""Output objects: attributes, tuple and dict at once, with the fields of transformers."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest
import torch
import transformers

from asyncgen.generation import outputs
from asyncgen.generation.outputs import CausalLMOutputWithPast, GenerateDecoderOnlyOutput
from tests.cases import for_each

LOGITS = torch.ones(2)


def output() -> CausalLMOutputWithPast:
    return CausalLMOutputWithPast(logits=LOGITS, past_key_values="cache")


OUTPUTS = (
    "BaseModelOutput",
    "CausalLMOutputWithPast",
    "GenerateBeamDecoderOnlyOutput",
    "GenerateBeamEncoderDecoderOutput",
    "GenerateDecoderOnlyOutput",
    "GenerateEncoderDecoderOutput",
    "Seq2SeqLMOutput",
)


def test_every_output_is_compared() -> None:
    own = {name for name, kind in vars(outputs).items() if isinstance(kind, type)}
    assert {*OUTPUTS, "ModelOutput"} == {
        name for name in own if getattr(outputs, name).__module__ == outputs.__name__
    }


@for_each("name", OUTPUTS)
def test_fields_are_those_of_the_reference(name: str) -> None:
    where: Any = transformers.generation if "Generate" in name else transformers.modeling_outputs
    theirs = [field.name for field in dataclasses.fields(getattr(where, name))]
    assert [field.name for field in dataclasses.fields(getattr(outputs, name))] == theirs


def test_attribute_access() -> None:
    assert output().logits is LOGITS
    assert output().loss is None


def test_tuple_access() -> None:
    found = output()
    assert found[0] is LOGITS
    assert found[:2] == (LOGITS, "cache")
    assert found[-1] == "cache"
    assert found.to_tuple() == (LOGITS, "cache")
    with pytest.raises(IndexError):
        found[2]


def test_dict_access() -> None:
    found = output()
    assert found["logits"] is LOGITS
    assert list(found) == list(found.keys()) == ["logits", "past_key_values"]
    assert list(found.values()) == [LOGITS, "cache"]
    assert dict(found) == {**found} == {"logits": LOGITS, "past_key_values": "cache"}
    assert ("logits" in found, "loss" in found, "to_tuple" in found) == (True, False, False)
    assert (found.get("loss", 4), len(found)) == (4, 2)
    for missing in ("loss", "nonsense", "to_tuple"):
        with pytest.raises(KeyError):
            found[missing]


def test_all_views_follow_a_change() -> None:
    found, loss = output(), torch.zeros(())
    found["loss"] = loss
    assert found.loss is loss
    assert found[0] is loss
    found.loss = None
    assert list(found) == ["logits", "past_key_values"]


def test_copies() -> None:
    for twin in (copy.deepcopy(output()), pickle.loads(pickle.dumps(output()))):
        assert torch.equal(twin["logits"], LOGITS)
        assert twin["past_key_values"] == "cache"


def test_sequences_are_required() -> None:
    with pytest.raises(TypeError):
        GenerateDecoderOnlyOutput()  # type: ignore[call-arg]
    assert GenerateDecoderOnlyOutput(LOGITS)[0] is LOGITS
