"""A decoding method that a user wrote runs here as it runs in transformers."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.config.parameters import DRAFTING, FIELDS
from asyncgen.generation.generate.mixin import GenerationMixin
from asyncgen.reference.load_model import load_model
from tests.generation.generate.test_custom import DOCUMENTED
from tests.generation.test_custom_methods import write
from tests.models.build import random_config, random_ids, reference_model

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")


def models(folder: Path) -> tuple[Any, Any]:
    """The same random weights in transformers and here."""
    theirs = reference_model(random_config("llama"), seed=0)
    theirs.save_pretrained(folder)
    return theirs, load_model(folder)


def second_best(
    model: Any, input_ids: torch.Tensor, logits_processor: Any, stopping_criteria: Any, **_: Any
) -> torch.Tensor:
    """Always the token that comes second."""
    while True:
        logits = model(input_ids).logits[:, -1]
        scores = logits_processor(input_ids, logits)
        input_ids = torch.cat((input_ids, scores.topk(2).indices[:, 1:]), dim=1)
        if bool(stopping_criteria(input_ids, scores).all()):
            return input_ids


def test_a_callable_gets_the_same_inputs(tmp_path: Path) -> None:
    theirs, ours = models(tmp_path)
    options: dict[str, Any] = {"max_new_tokens": 9, "suppress_tokens": [4, 5], "pad_token_id": 0}
    ids = random_ids(2, 6)
    expected = theirs.generate(ids, custom_generate=second_best, **options)
    assert ours.generate(ids, custom_generate=second_best, **options).tolist() == expected.tolist()


@pytest.mark.filterwarnings("ignore:.*max_length")  # both warn of their default length
def test_a_callable_gets_the_configuration_of_the_reference(tmp_path: Path) -> None:
    pair = models(tmp_path)
    calls: list[dict[str, Any]] = [
        {},
        {"max_new_tokens": 4},
        {"max_length": 9},
        {"min_new_tokens": 2, "max_new_tokens": 5},
        {"do_sample": True, "temperature": 0.5, "num_return_sequences": 2},
        {"num_beams": 2},
    ]
    for own in ({}, {"max_length": 12}, {"max_new_tokens": 3, "top_k": 5}):
        for options in calls:
            seen = []
            for model in pair:
                kind = type(model.generation_config)
                model.generation_config = kind(eos_token_id=2, pad_token_id=0, **own)

                def method(_: Any, input_ids: Any, generation_config: Any, **__: Any) -> Any:
                    seen.append(generation_config)  # noqa: B023 - called at once
                    return input_ids

                model.generate(random_ids(1, 6), custom_generate=method, **options)
            theirs, ours = seen
            for name in {each.name for each in FIELDS} - set(DRAFTING):
                assert getattr(ours, name) == getattr(theirs, name), (own, options, name)


@pytest.mark.parametrize("spelling", ["custom_generate", "recipe"])
def test_a_folder_does_the_same(spelling: str, tmp_path: Path) -> None:
    theirs, ours = models(tmp_path)
    write(tmp_path, generate=DOCUMENTED)
    options: dict[str, Any] = {"max_new_tokens": 5, "pad_token_id": 0}
    ids = random_ids(1, 6)
    method: dict[str, Any] = {}
    exec(DOCUMENTED, method)
    # Called as it is: the loader of the reference would copy the folder into the user's cache.
    config = transformers.GenerationConfig(**options)
    expected = method["generate"](theirs, ids, config, left_padding=2)
    asked: dict[str, Any] = {spelling: str(tmp_path), "left_padding": 2}
    found = ours.generate(ids, GenerationConfig(**options), **asked)
    assert found.tolist() == expected.tolist()


def test_generate_takes_the_arguments_of_the_reference() -> None:
    ours, theirs = (
        inspect.signature(mixin.generate).parameters
        for mixin in (GenerationMixin, transformers.GenerationMixin)
    )
    assert [(one.name, one.default, one.kind) for one in ours.values()] == [
        (one.name, one.default, one.kind) for one in theirs.values()
    ]
