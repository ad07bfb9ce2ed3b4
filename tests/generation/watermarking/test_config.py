"""Watermarking configurations: the same forms and refusals as in transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

import asyncgen
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.watermarking.config import watermark_from
from asyncgen.generation.watermarking.greenlist import WatermarkingConfig, WatermarkLogitsProcessor
from asyncgen.generation.watermarking.synthid import (
    SynthIDTextWatermarkingConfig,
    SynthIDTextWatermarkLogitsProcessor,
)
from tests.cases import for_each

PAIRS: list[tuple[Any, Any, dict[str, Any]]] = [
    (WatermarkingConfig, transformers.WatermarkingConfig, {"bias": 1.5, "context_width": 2}),
    (
        SynthIDTextWatermarkingConfig,
        transformers.SynthIDTextWatermarkingConfig,
        {"ngram_len": 4, "keys": [3, 1, 2]},
    ),
]


@pytest.mark.parametrize(("kind", "reference", "values"), PAIRS)
def test_forms(kind: Any, reference: Any, values: dict[str, Any], tmp_path: Path) -> None:
    ours, theirs = kind(**values), reference(**values)
    assert ours.to_dict() == theirs.to_dict()
    assert sorted(ours, key=str) == sorted(theirs, key=str)
    assert json.loads(ours.to_json_string()) == json.loads(theirs.to_json_string())
    assert kind.from_dict(values) == ours == kind.from_dict(ours.to_dict())
    name, value = next(iter(values.items()))
    assert kind.from_dict(values, **{name: value + 1, "other": 2}).to_dict() == (
        reference.from_dict(values, **{name: value + 1, "other": 2}).to_dict()
    )
    ours.update(**{name: value + 1, "other": 2})
    theirs.update(**{name: value + 1, "other": 2})
    assert ours.to_dict() == theirs.to_dict()
    ours.to_json_file(tmp_path / "watermark.json")
    assert json.loads((tmp_path / "watermark.json").read_text()) == ours.to_dict()


@pytest.mark.parametrize(
    "values",
    [
        {"greenlist_ratio": 1.5},
        {"greenlist_ratio": -0.1},
        {"seeding_scheme": "x"},
        {"context_width": 0},
    ],
)
def test_refused_by_both(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        transformers.WatermarkingConfig(**values).validate()
    with pytest.raises(InvalidRequestError, match=next(iter(values))):
        WatermarkingConfig(**values).validate()
    with pytest.raises(InvalidRequestError, match=next(iter(values))):
        GenerationConfig(watermarking_config=values)


@for_each(
    ("config", "name"),
    [
        (WatermarkingConfig(greenlist_ratio=0.0), "greenlist_ratio"),
        (WatermarkingConfig(bias="a"), "bias"),  # type: ignore[arg-type]
        (WatermarkingConfig(hashing_key=1.5), "hashing_key"),  # type: ignore[arg-type]
        (WatermarkingConfig(hashing_key=-1), "hashing_key"),
        (SynthIDTextWatermarkingConfig(5, [1], sampling_table_size=2**25), "sampling_table_size"),
        (SynthIDTextWatermarkingConfig(0, [1]), "ngram_len"),
        (SynthIDTextWatermarkingConfig(5, []), "keys"),
        (SynthIDTextWatermarkingConfig(5, ["a"]), "keys"),  # type: ignore[list-item]
        (SynthIDTextWatermarkingConfig(5, [1], context_history_size=-1), "context_history_size"),
        (WatermarkingConfig(bias=float("nan")), "bias"),
        (WatermarkingConfig(bias=10**400), "bias"),
        (WatermarkingConfig(hashing_key=2**64), "hashing_key"),
        (SynthIDTextWatermarkingConfig(65, [1]), "ngram_len"),
        (SynthIDTextWatermarkingConfig(5, [1] * 65), "keys"),
        (SynthIDTextWatermarkingConfig(5, [2**63]), "keys"),
        (SynthIDTextWatermarkingConfig(5, [1], sampling_table_seed=2**64), "sampling_table_seed"),
        (
            SynthIDTextWatermarkingConfig(5, [1], context_history_size=2**16 + 1),
            "context_history_size",
        ),
    ],
)
def test_refused(config: WatermarkingConfig, name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        config.validate()
    assert caught.value.parameter == f"watermarking_config.{name}"
    with pytest.raises(InvalidRequestError):
        config.construct_processor(50, "cpu")


def test_processors() -> None:
    first = WatermarkingConfig(bias=1.0).construct_processor(50, "cpu")
    assert isinstance(first, WatermarkLogitsProcessor)
    second = SynthIDTextWatermarkingConfig(4, [1, 2]).construct_processor(50, "cpu")
    assert isinstance(second, SynthIDTextWatermarkLogitsProcessor)


def test_any_form_will_do() -> None:
    config = WatermarkingConfig(bias=1.0)
    assert watermark_from(config) is config
    assert watermark_from({"bias": 1.0}) == config
    assert watermark_from(transformers.WatermarkingConfig(bias=1.0)) == config
    assert watermark_from({"ngram_len": 4, "keys": [1]}) == SynthIDTextWatermarkingConfig(4, [1])
    wrong: list[Any] = [3, {"bias": 1.0, "foo": 2}, {"ngram_len": 4}]
    for value in wrong:
        with pytest.raises(InvalidRequestError, match="watermarking_config"):
            watermark_from(value)


@pytest.mark.parametrize(("kind", "reference", "values"), PAIRS)
def test_in_a_generation_config(
    kind: Any, reference: Any, values: dict[str, Any], tmp_path: Path
) -> None:
    config = GenerationConfig(watermarking_config=values)
    assert config.watermarking_config == kind(**values)
    config.save_pretrained(tmp_path)
    loaded = GenerationConfig.from_pretrained(tmp_path)
    assert loaded == config
    assert loaded.watermarking_config == kind(**values)
    assert GenerationConfig.from_dict(config.to_dict()) == config


def test_a_generation_config_without_a_watermark_needs_no_torch() -> None:
    script = (
        "import sys, asyncgen; asyncgen.GenerationConfig(top_k=3); print('torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(asyncgen.__file__).parent.parent,
    )
    assert result.stdout.strip() == "False"
