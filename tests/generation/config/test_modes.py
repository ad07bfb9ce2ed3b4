"""The decoding mode, as a table and against transformers."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Any

import transformers

from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.config.modes import GenerationMode, generation_mode
from tests.cases import for_each
from tests.generation.alike import records

if TYPE_CHECKING:
    import pytest

TABLE: list[tuple[dict[str, Any], bool, str]] = [
    ({}, False, "greedy_search"),
    ({"num_beams": 1}, False, "greedy_search"),
    ({"do_sample": True}, False, "sample"),
    ({"num_beams": 3}, False, "beam_search"),
    ({"num_beams": 3, "do_sample": True}, False, "beam_sample"),
    ({"num_beams": 4, "num_beam_groups": 2}, False, "group_beam_search"),
    ({"num_beam_groups": 2}, False, "greedy_search"),
    ({"constraints": [1]}, False, "constrained_beam_search"),
    ({"force_words_ids": [[1]], "num_beams": 2}, False, "constrained_beam_search"),
    ({"penalty_alpha": 0.6, "top_k": 4}, False, "contrastive_search"),
    ({"penalty_alpha": 0.6, "top_k": 1}, False, "greedy_search"),
    ({"penalty_alpha": 0.6, "top_k": 4, "do_sample": True}, False, "sample"),
    ({"dola_layers": "low"}, False, "dola_generation"),
    ({}, True, "assisted_generation"),
    ({"do_sample": True}, True, "assisted_generation"),
    ({"prompt_lookup_num_tokens": 3}, False, "assisted_generation"),
    ({"assistant_early_exit": 2}, False, "assisted_generation"),
    ({"use_mtp": True}, False, "assisted_generation"),
    ({"dola_layers": "low"}, True, "assisted_generation"),
    ({"num_beams": 3}, True, "beam_search"),
    ({"num_beams": 3, "dola_layers": "low"}, False, "beam_search"),
    ({"penalty_alpha": 0.6, "top_k": 4}, True, "contrastive_search"),
]


@for_each(("values", "assisted", "mode"), TABLE)
def test_table(values: dict[str, Any], assisted: bool, mode: str) -> None:
    config = GenerationConfig(**values)
    found = generation_mode(config, object() if assisted else None)
    assert found is GenerationMode(mode)
    assert config.get_generation_mode(object() if assisted else None) is found


def test_all_combinations_as_in_the_reference() -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    choices: dict[str, list[Any]] = {
        "do_sample": [None, True],
        "num_beams": [None, 1, 3],
        "num_beam_groups": [None, 3],
        "penalty_alpha": [0.0, 0.5],
        "top_k": [None, 1, 4],
        "constraints": [None, [1]],
        "prompt_lookup_num_tokens": [None, 3],
        "dola_layers": [None, "low"],
    }
    for values in itertools.product(*choices.values()):
        ours, theirs = GenerationConfig(), transformers.GenerationConfig()
        for name, value in zip(choices, values, strict=True):
            setattr(ours, name, value)
            setattr(theirs, name, value)
        for assistant in (None, object()):
            mode = ours.get_generation_mode(assistant)
            assert mode.value == theirs.get_generation_mode(assistant).value


def test_values_are_those_of_the_reference() -> None:
    theirs = transformers.generation.configuration_utils.GenerationMode
    assert {mode.name: mode.value for mode in GenerationMode} == {
        mode.name: mode.value for mode in theirs
    }


def test_an_ignored_speed_up_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with records("asyncgen.generation"):
        generation_mode(GenerationConfig(num_beams=3), object())
    assert "assisted_generation works with greedy search and sampling only" in caplog.text
