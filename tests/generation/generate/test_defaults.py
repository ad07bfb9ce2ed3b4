"""Test which default wins, and the counting of lengths."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest
import torch

import asyncgen
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.generate.defaults import (
    resolve_config,
    resolve_length,
    resolve_pad,
    take_length,
)
from tests.doubles.models import EOS, PAD, TableModel


def _length(context: int | None = None, **fields: Any) -> GenerationConfig:
    config = GenerationConfig(**fields)
    resolve_length(config, 3, TableModel(context_length=context or 100).config)
    return config


def test_twenty_new_tokens_by_default_as_documented() -> None:
    assert _length().max_length == 23
    assert _length(context=10).max_length == 10


def test_a_criterion_gives_the_length_where_nothing_else_does() -> None:
    other = asyncgen.MaxTimeCriteria(60)
    config = GenerationConfig()
    left = take_length(
        config, [other, asyncgen.MaxLengthCriteria(9), asyncgen.MaxLengthCriteria(7)]
    )
    assert config.max_length == 7 and left == [other]
    for given in ({"max_length": 5}, {"max_new_tokens": 5}):
        config = GenerationConfig(**given)
        both = [other, asyncgen.MaxLengthCriteria(9)]
        assert take_length(config, both) == both and config.max_length == given.get("max_length")
    assert take_length(config, None) is None

    ids = torch.tensor([[1, 2, 3]])
    criteria = asyncgen.StoppingCriteriaList([asyncgen.MaxLengthCriteria(max_length=9)])
    call: dict[str, Any] = {"stopping_criteria": criteria, "eos_token_id": None}
    found: Any = TableModel().generate(ids, pad_token_id=PAD, **call)
    assert found.shape == (1, 9) and len(criteria) == 1
    with pytest.raises(InvalidRequestError, match="`stopping_criteria` is 'MaxLengthCriteria'"):
        TableModel().generate(ids, max_new_tokens=4, **call)


def test_default_length_warns_once_with_the_remedy() -> None:
    ids = torch.tensor([[1, 2, 3]])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for _ in range(3):
            assert TableModel().generate(ids, pad_token_id=PAD).shape[1] <= 23  # type: ignore[union-attr]
    (one,) = said
    assert one.category is asyncgen.DefaultLengthWarning and issubclass(one.category, UserWarning)
    assert "20 new tokens; pass `max_new_tokens`" in str(one.message)
    assert one.filename == __file__


@pytest.mark.parametrize("fields", [{"max_new_tokens": 2}, {"max_length": 5}])
def test_no_warning_with_a_given_length(fields: dict[str, Any]) -> None:
    ids, model = torch.tensor([[1, 2, 3]]), TableModel()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.generate(ids, pad_token_id=PAD, **fields)
        config = GenerationConfig(pad_token_id=PAD, **fields)
        model.generate(ids, generation_config=config)
        model.generation_config = config
        model.generate(ids)
        warnings.filterwarnings("ignore", category=asyncgen.DefaultLengthWarning)
        TableModel().generate(ids, pad_token_id=PAD)


def test_new_tokens_win_over_the_whole_length(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "asyncgen.generation"):
        config = _length(max_length=40, max_new_tokens=2, min_new_tokens=1)
    assert (config.min_length, config.max_length) == (4, 5)
    assert "max_new_tokens" in caplog.text


def test_no_room_for_a_token() -> None:
    with pytest.raises(ValueError, match="3 tokens already"):
        _length(max_length=3)


def test_keywords_win_over_the_config_and_that_over_the_model() -> None:
    model = TableModel(top_k=11, top_p=0.5, temperature=0.5)
    given = GenerationConfig(top_k=22, do_sample=True)
    config, rest = resolve_config(model, given, {"temperature": 0.25, "tokenizer": 1})
    assert (config.top_k, config.top_p, config.temperature) == (22, 0.5, 0.25)
    assert rest == {"tokenizer": 1}
    assert given.temperature is None
    assert model.generation_config.temperature == 0.5


def test_unknown_keyword_is_refused() -> None:
    wrong = {"temprature": "temperature", "max_new_token": "max_new_tokens"}
    for name, meant in wrong.items():
        with pytest.raises(ValueError, match=f"{name}.*; did you mean `{meant}`"):
            resolve_config(TableModel(), None, {name: 1.0})
    _, rest = resolve_config(TableModel(), None, {"temprature": 1.0}, frozenset({"temprature"}))
    assert rest == {"temprature": 1.0}


def test_missing_padding_becomes_the_end_of_sequence(caplog: pytest.LogCaptureFixture) -> None:
    config = GenerationConfig(eos_token_id=[EOS, 5])
    with caplog.at_level(logging.WARNING, "asyncgen.generation"):
        resolve_pad(config)
    assert config.pad_token_id == EOS
    assert "pad_token_id" in caplog.text
