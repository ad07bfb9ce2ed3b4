"""`GenerationConfig`, against the class of transformers."""

from __future__ import annotations

import copy
import random
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import transformers

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import CompileConfig, GenerationConfig
from asyncgen.generation.config.parameters import FIELDS, GENERATE_ARGUMENTS
from tests.cases import for_each
from tests.generation.alike import plain, same

Reference = transformers.GenerationConfig

VALUES: dict[str, list[Any]] = {
    "max_new_tokens": [-1, 0, 1, 5, "x", [1]],
    "max_length": [5, 0],
    "min_length": [3],
    "early_stopping": [True, False, "never", "x", 2, [1]],
    "do_sample": [True, False, None],
    "num_beams": [None, 1, 2, 4],
    "num_return_sequences": [1, 2, 3, 5],
    "num_beam_groups": [1, 2],
    "use_cache": [True, False, None],
    "cache_implementation": ["static", "dynamic", "offloaded_static", "paged", "x", 3],
    "cache_config": [{"a": 1}, {}],
    "max_cache_len": [8],
    "temperature": [1.0, 0.5, 0.0, "x"],
    "top_k": [50, 0, 5],
    "top_p": [1.0, 0.5],
    "min_p": [0.1],
    "top_h": [0.5],
    "typical_p": [1.0, 0.4],
    "epsilon_cutoff": [0.0, 0.1],
    "eta_cutoff": [0.0, 0.1],
    "length_penalty": [1.0, 2.0],
    "repetition_penalty": [1.2],
    "pad_token_id": [0, -1, "x"],
    "eos_token_id": [2, [2, 3], -1],
    "return_dict_in_generate": [True, False],
    "output_scores": [True, False],
    "output_logits": [True],
    "output_attentions": [True],
    "output_hidden_states": [False],
    "suppress_tokens": [[1], 3, [[1]]],
    "assistant_ensemble_weight": [0.5, 0.0, 1.0, "x"],
    "compile_config": [3, "x"],
    "watermarking_config": [3, "x"],
    "penalty_alpha": [0.6],
    "guidance_scale": [1.5],
    "logits_processor": [None, 1],
    "some_custom_thing": [1, None],
}


def combination(chooser: random.Random, count: int) -> dict[str, Any]:
    """Draw some fields, fewer of the values that are refused anyway."""
    chosen = {}
    for name in chooser.sample(list(VALUES), chooser.randint(0, count)):
        allowed = VALUES[name]
        fine = [value for value in allowed if not isinstance(value, str) or value == "never"]
        chosen[name] = chooser.choice(fine if fine and chooser.random() < 0.85 else allowed)
    if chooser.random() < 0.9:
        chosen.pop("logits_processor", None)
    return chosen


def test_fields_and_defaults_are_those_of_the_reference() -> None:
    assert set(GenerationConfig().__dict__) == set(Reference().__dict__)
    defaults = GenerationConfig._get_default_generation_params()
    assert defaults == Reference._get_default_generation_params()
    assert all(value is None for value in GenerationConfig().__dict__.values())


def test_every_field_is_annotated() -> None:
    annotated = set(GenerationConfig.__annotations__)
    assert annotated == {field.name for field in FIELDS} | {
        "_from_model_config",
        "transformers_version",
    }


@for_each("name", VALUES)
def test_each_value_alone_ends_as_in_the_reference(name: str) -> None:
    for value in VALUES[name]:
        for others in ({}, {"do_sample": True}, {"num_beams": 3}, {"use_cache": False}):
            values = {**others, name: value}
            assert same(partial(GenerationConfig, **values), partial(Reference, **values)), values


def test_random_combinations_end_as_in_the_reference() -> None:
    chooser = random.Random(1)
    accepted = 0
    for _ in range(400):
        values = combination(chooser, 6)
        assert same(
            partial(GenerationConfig, **values), partial(Reference, **values), several_faults=True
        ), values
        try:
            ours = GenerationConfig(**values)
        except (ValueError, TypeError):
            continue
        accepted += 1
        theirs = Reference(**values)
        assert plain(ours.to_diff_dict()) == plain(theirs.to_diff_dict())
        assert same(partial(ours.validate, strict=True), partial(theirs.validate, strict=True))
        assert ours.get_generation_mode().value == theirs.get_generation_mode().value
    assert accepted > 150


def test_random_updates_end_as_in_the_reference() -> None:
    chooser = random.Random(2)
    for _ in range(300):
        before, after = combination(chooser, 4), combination(chooser, 4)
        after.pop("logits_processor", None)
        options: dict[str, Any] = {
            "defaults_only": chooser.random() < 0.3,
            "allow_custom_entries": chooser.random() < 0.3,
        }
        try:
            ours, theirs = GenerationConfig(**before), Reference(**before)
        except (ValueError, TypeError):
            continue
        twins = copy.deepcopy(ours), copy.deepcopy(theirs)
        assert same(
            partial(ours.update, **options, **after),
            partial(theirs.update, **options, **after),
            several_faults=True,
        ), (before, after, options)
        try:
            unused = twins[0].update(**options, **after)
        except (ValueError, TypeError):
            continue
        assert unused == twins[1].update(**options, **after)
        assert plain(twins[0].to_diff_dict()) == plain(twins[1].to_diff_dict())


def test_update_leaves_methods_alone() -> None:
    config = GenerationConfig()
    assert config.update(validate=1, top_k=3, do_sample=True) == {"validate": 1}
    config.validate()


@for_each("name", [each.name for each in GENERATE_ARGUMENTS])
def test_arguments_of_generate_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name}.*pass it there"):
        GenerationConfig(**{name: None})


def test_errors_name_field_value_and_remedy() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        GenerationConfig(temperature=0.5, top_k=3).validate(strict=True)
    message = str(caught.value)
    assert caught.value.parameter == "temperature"
    for part in ("`temperature` is 0.5", "`top_k` is 3", "do_sample=True"):
        assert part in message
    with pytest.raises(TypeError, match="`max_new_tokens` is 'x': must be a number"):
        GenerationConfig(max_new_tokens="x")


def test_a_batching_configuration_inside_is_deprecated() -> None:
    with pytest.warns(FutureWarning, match="continuous_batching_config"):
        GenerationConfig(continuous_batching_config={})


def test_equality_ignores_metadata() -> None:
    assert GenerationConfig() == GenerationConfig(transformers_version="1", _from_model_config=True)
    assert GenerationConfig(max_length=3) != GenerationConfig(max_length=4)
    assert GenerationConfig(custom=1) != GenerationConfig()
    assert GenerationConfig() != {}
    assert hash(GenerationConfig(max_length=3)) == hash(GenerationConfig(max_length=3))
    assert copy.deepcopy(GenerationConfig(bad_words_ids=[[1]])).bad_words_ids == [[1]]


def test_repr_shows_only_set_fields() -> None:
    assert repr(GenerationConfig()) == repr(Reference()) == "GenerationConfig {}\n"
    assert repr(GenerationConfig(max_length=4)) == repr(Reference(max_length=4))


def test_compile_config_has_the_arguments_of_the_reference() -> None:
    # The documents ask for a single graph; newer references no longer do.
    assert CompileConfig().fullgraph is True
    assert CompileConfig(False).to_dict() == transformers.CompileConfig(False).to_dict()


def test_importing_it_imports_no_torch() -> None:
    code = "import asyncgen.generation.config, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
