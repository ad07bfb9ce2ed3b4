"""The order of processors is written once, and what a class says of itself is all it takes."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from transformers import GenerationMixin

import asyncgen
from asyncgen.generation import logits
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.logits import base as module
from asyncgen.generation.logits.base import (
    Definition,
    LogitsProcessor,
    Stage,
    definition_of,
    processor_classes,
)
from asyncgen.generation.logits.build import build_logits_processors

if TYPE_CHECKING:
    import pytest
    import torch


def order() -> list[str]:
    """Parameters in the order in which their processors run."""
    return [kind.definition.parameter for kind in processor_classes() if kind.definition.parameter]


def test_the_order_is_that_of_the_documentation() -> None:
    assert logits.__doc__ is not None
    assert re.findall(r"`(\w+)`", logits.__doc__.split("in this order")[1]) == order()


def test_the_order_is_that_of_the_reference() -> None:
    """By the places where transformers asks for each parameter; some it does not know."""
    source = inspect.getsource(GenerationMixin._get_logits_processor)
    asked = [source.find(f"generation_config.{name} ") for name in order()]
    known = [place for place in asked if place >= 0]
    assert len(known) > 15 and known == sorted(known)


def test_no_two_kinds_have_one_place() -> None:
    places = [kind.definition.place for kind in processor_classes() if kind.definition.parameter]
    assert places == sorted(set(places))


def test_a_derived_class_says_nothing_of_itself() -> None:
    class Own(asyncgen.TopKLogitsWarper):
        """May do anything."""

    assert definition_of(asyncgen.TopKLogitsWarper(3)) is asyncgen.TopKLogitsWarper.definition
    assert definition_of(Own(3)) is None
    assert definition_of(lambda ids, scores: scores) is None


def test_a_class_with_a_definition_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KINDS", processor_classes())

    class Adds(LogitsProcessor):
        """Adds a number to all scores."""

        definition = Definition(
            stage=Stage.PROCESSOR,
            rank=155,
            parameter="added",
            is_on=lambda value: value > 0,
        )

        def __init__(self, added: float) -> None:
            self.added = added

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return scores + self.added

    def built(**values: Any) -> list[str]:
        config = GenerationConfig(suppress_tokens=[3], remove_invalid_values=True)
        for name, value in values.items():
            setattr(config, name, value)
        made = build_logits_processors(config, prompt_length=1, eos_token_ids=None, device="cpu")
        return [type(each).__name__ for each in made]

    others = ["InfNanRemoveLogitsProcessor", "SuppressTokensLogitsProcessor"]
    assert built() == built(added=0.0) == others
    assert built(added=1.0) == [others[0], "Adds", others[1]]


def test_a_class_that_is_defined_again_takes_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KINDS", processor_classes())
    before = len(processor_classes())

    def define(rank: int) -> Any:
        class Again(asyncgen.LogitNormalization):
            definition = Definition(Stage.LAST, rank, "again")

        return Again

    made = [define(30), define(5)]
    assert len(processor_classes()) == before + 1
    assert made[1] in processor_classes(Stage.LAST)[:1]
