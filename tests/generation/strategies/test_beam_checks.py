"""Combinations of beam parameters that cannot work are refused by name, through both doors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncgen.engine.requests.params import resolve_params
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.strategies.beam_checks import check_beams
from tests.doubles.models import TableModel

GROUPS: dict[str, Any] = {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"num_beams": 0}, "num_beams"),
    ({"num_beams": 4, "num_beam_groups": 3, "diversity_penalty": 1.0}, "num_beam_groups"),
    ({"num_beams": 2, "num_beam_groups": 4, "diversity_penalty": 1.0}, "num_beam_groups"),
    ({"num_beam_groups": 2}, "num_beam_groups"),
    ({"num_beams": 4, "num_beam_groups": 2}, "diversity_penalty"),
    ({"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": -1.0}, "diversity_penalty"),
    ({"num_beams": 4, "diversity_penalty": 1.0}, "diversity_penalty"),
    (
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0, "do_sample": True},
        "do_sample",
    ),
    ({"force_words_ids": [[1]]}, "num_beams"),
    ({"force_words_ids": [[1]], "num_beams": 2, "do_sample": True}, "do_sample"),
    (
        {
            "force_words_ids": [[1]],
            "num_beams": 4,
            "num_beam_groups": 2,
            "diversity_penalty": 1.0,
        },
        "num_beam_groups",
    ),
    ({"force_words_ids": [], "num_beams": 2}, "force_words_ids"),
    ({"force_words_ids": [[-1]], "num_beams": 2}, "force_words_ids"),
    ({"force_words_ids": [[[1], [1, 2]]], "num_beams": 2}, "force_words_ids"),
    ({"constraints": [7], "num_beams": 2}, "constraints"),
    ({"force_words_ids": [[1]] * 65, "num_beams": 2}, "force_words_ids"),
    ({"num_beams": 2, "length_penalty": "long"}, "length_penalty"),
    ({"num_beams": 2, "length_penalty": 31}, "length_penalty"),
    ({"num_beams": 2, "length_penalty": -(10**400)}, "length_penalty"),
    ({"num_beams": 2, "length_penalty": float("nan")}, "length_penalty"),
    ({**GROUPS, "guidance_scale": 1.5}, "guidance_scale"),
    ({**GROUPS, "watermarking_config": {"keys": [1], "ngram_len": 2}}, "watermarking_config"),
]


@pytest.mark.parametrize(("options", "name"), REFUSED)
def test_refused_by_name_before_any_work(options: dict[str, Any], name: str) -> None:
    config = GenerationConfig()
    for field, value in options.items():
        setattr(config, field, value)
    with pytest.raises(InvalidRequestError) as caught:
        check_beams(config)
    assert caught.value.parameter == name
    model = TableModel()
    with pytest.raises(InvalidRequestError):
        model.generate(torch.tensor([[1, 2]]), max_new_tokens=2, **options)
    with pytest.raises(InvalidRequestError):
        resolve_params(options, GenerationConfig(), prompt_length=2, context_length=99)
    assert model.num_forwards == 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 3, "num_return_sequences": 3},
        GROUPS,
        {**GROUPS, "watermarking_config": {"bias": 1.0}},
        {"num_beams": 2, "force_words_ids": [[1], [[2], [3, 4]]]},
    ],
)
def test_what_works_passes(options: dict[str, Any]) -> None:
    check_beams(GenerationConfig(**options))


@pytest.mark.parametrize("returned", [0, 3])
def test_more_sequences_than_beams(returned: int) -> None:
    with pytest.raises(ValueError, match="num_return_sequences"):
        resolve_params(
            {"num_beams": 2, "num_return_sequences": returned},
            GenerationConfig(),
            prompt_length=2,
            context_length=99,
        )


def test_forms_of_words_are_bounded_by_the_beams() -> None:
    forms = [[number] for number in range(2**12)]
    check_beams(GenerationConfig(num_beams=2, force_words_ids=[forms]))
    for beams, words in ((4, [forms]), (2, [forms, [5000, 5001]])):
        config = GenerationConfig(num_beams=beams, force_words_ids=words)
        with pytest.raises(InvalidRequestError, match=f"for {beams} beams; at most") as caught:
            check_beams(config)
        assert caught.value.parameter == "force_words_ids"
