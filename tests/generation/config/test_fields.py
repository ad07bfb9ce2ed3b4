"""The table of fields."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import transformers

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.config.fields import (
    FIELDS,
    GENERATE_ARGUMENTS,
    check_supported,
    hard_rules,
    minor_issues,
)
from asyncgen.generation.logits.definition import kinds

BY_NAME = {field.name: field for field in FIELDS}


def test_every_row_is_complete() -> None:
    assert len(BY_NAME) == len(FIELDS)
    for field in FIELDS:
        assert field.doc.endswith(".")
        assert (field.check is None) == (not field.allowed)
        assert field.is_neutral(None)
        assert field.is_neutral(field.default) or field.awaits is None


def test_every_documented_field_is_there() -> None:
    text = inspect.cleandoc(transformers.GenerationConfig.__doc__)  # as Python 3.13 keeps it
    documented = re.findall(r"^ {4}(\w+) ?\(", text, re.MULTILINE)
    assert len(documented) > 50
    assert set(documented) <= set(BY_NAME)


def test_defaults_pass_every_rule() -> None:
    config = GenerationConfig(**GenerationConfig._get_default_generation_params())
    hard_rules(config)
    assert not minor_issues(config)
    check_supported(config)


def test_every_field_that_is_served_has_a_builder_or_a_reader() -> None:
    built = {kind.definition.parameter for kind in kinds() if kind.definition.parameter}
    # These two are arguments of our own.
    built -= {"presence_penalty", "frequency_penalty"}
    assert built <= {*BY_NAME, *GENERATE_ARGUMENTS}
    assert all(BY_NAME[name].awaits is None for name in built & set(BY_NAME))


# A value that asks for something, for every field that is or was awaited.
REQUESTS: dict[str, Any] = {
    "use_mtp": True,
    "cache_implementation": "paged",
    "cache_config": {"nbits": 4},
    "encoder_repetition_penalty": 1.2,
    "token_healing": True,
    "guidance_scale": 1.5,
    "watermarking_config": {"bias": 2.0},
    "encoder_no_repeat_ngram_size": 2,
    "is_assistant": True,
    "prompt_lookup_num_tokens": 3,
    "assistant_early_exit": 2,
    "assistant_ensemble_weight": 0.5,
    "speculation_type": "dflash",
    "compile_config": transformers.CompileConfig(),
    "continuous_batching_config": {"a": 1},
    "penalty_alpha": 0.6,
    "dola_layers": "low",
    "prefill_chunk_size": 16,
}


AWAITED = [field.name for field in FIELDS if field.awaits is not None]


@pytest.mark.parametrize("name", AWAITED)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_is_not_served_is_refused_by_name(name: str) -> None:
    config = GenerationConfig(**{name: REQUESTS[name]})
    with pytest.raises(InvalidRequestError, match="not supported yet") as caught:
        check_supported(config)
    assert caught.value.parameter == name


def test_one_rule_of_each_kind() -> None:
    config = GenerationConfig()
    config.assistant_ensemble_weight = 1.0
    with pytest.raises(InvalidRequestError, match="strictly between"):
        hard_rules(config)
    config.assistant_ensemble_weight = None
    config.num_return_sequences = 3
    with pytest.raises(InvalidRequestError, match="must be 1 for greedy"):
        hard_rules(config)
    config.num_beams = 2
    with pytest.raises(InvalidRequestError, match=r"num_beams` \(2\)"):
        hard_rules(config)


def test_who_switches_sampling_off_hears_only_of_what_they_set() -> None:
    config = GenerationConfig(do_sample=True, temperature=0.5, top_k=3)
    config.do_sample = False
    assert [issue.name for issue in minor_issues(config)] == ["temperature", "top_k"]
    assert not minor_issues(config, {"do_sample"})
    assert [issue.name for issue in minor_issues(config, {"do_sample", "top_k"})] == ["top_k"]


def test_comparing_with_arrays_is_no_error() -> None:
    class Array:
        """Compares as an array does."""

        def __eq__(self, other: object) -> Any:
            return inspect

        def __hash__(self) -> int:
            return 0

    assert BY_NAME["temperature"].is_neutral(1.0)
    assert not BY_NAME["temperature"].is_neutral(0.5)
    assert BY_NAME["temperature"].is_neutral(Array())
