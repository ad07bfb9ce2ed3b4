"""The table of parameters, and what is spelled out elsewhere beside it."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import transformers

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.config.checks import check_supported
from asyncgen.generation.config.parameters import FIELDS, GENERATE_ARGUMENTS, PARAMETERS
from asyncgen.generation.logits.base import processor_classes
from tests.cases import for_each

BY_NAME = {each.name: each for each in PARAMETERS}


def test_every_row_is_complete() -> None:
    assert len(BY_NAME) == len(PARAMETERS)
    for field in PARAMETERS:
        assert field.doc.endswith(".") and field.type and field.group
        assert field.is_neutral(None)
        assert field.is_neutral(field.default) or field.awaits is None


def test_every_documented_field_is_there() -> None:
    text = inspect.cleandoc(transformers.GenerationConfig.__doc__)  # as Python 3.13 keeps it
    documented = re.findall(r"^ {4}(\w+) ?\(", text, re.MULTILINE)
    assert len(documented) > 50
    assert set(documented) <= set(BY_NAME)


def test_every_field_that_is_served_has_a_builder_or_a_reader() -> None:
    built = {kind.definition.parameter for kind in processor_classes() if kind.definition.parameter}
    # These are arguments of our own.
    built -= {"presence_penalty", "frequency_penalty", "grammar"}
    assert built <= {*BY_NAME, *(each.name for each in GENERATE_ARGUMENTS)}
    assert all(BY_NAME[name].awaits is None for name in built & set(BY_NAME))


# A value that asks for something, for every field that is or was awaited.
REQUESTS: dict[str, Any] = {
    "use_mtp": True,
    "cache_implementation": "paged",
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
    "penalty_alpha": 0.6,
    "dola_layers": "low",
    "prefill_chunk_size": 16,
}


AWAITED = [field.name for field in FIELDS if field.awaits is not None]


@for_each("name", AWAITED)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_unsupported_parameters_are_refused_by_name(name: str) -> None:
    config = GenerationConfig(**{name: REQUESTS[name]})
    with pytest.raises(InvalidRequestError, match="not supported yet") as caught:
        check_supported(config)
    assert caught.value.parameter == name


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
