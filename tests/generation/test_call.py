"""The reference's rules for arguments: defaults, lengths, masks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.generation.call import prepare_call
from asyncgen.generation.config import GenerationConfig
from tests.doubles.models import EOS, PAD, TableModel

if TYPE_CHECKING:
    import pytest

PROMPT = torch.tensor([[5, 6, 7]])


def _call(model: TableModel, config: GenerationConfig | None = None, **kwargs: Any) -> Any:
    inputs = kwargs.pop("inputs", PROMPT)
    return prepare_call(
        model,
        inputs,
        config,
        kwargs,
        logits_processor=None,
        stopping_criteria=None,
        streamer=None,
        unsupported={},
    )


def test_twenty_new_tokens_by_default_as_documented() -> None:
    assert _call(TableModel()).plan.ends.max_length == 23
    assert _call(TableModel(context_length=10)).plan.ends.max_length == 10


def test_new_tokens_win_over_the_whole_length(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "asyncgen.generation"):
        call = _call(TableModel(), max_length=40, max_new_tokens=2)
    assert call.plan.ends.max_length == 5
    assert "max_new_tokens" in caplog.text


def test_keywords_win_over_the_config_and_that_over_the_model() -> None:
    model = TableModel(top_k=11, top_p=0.5, temperature=0.5)
    config = GenerationConfig(top_k=22, do_sample=True)
    call = _call(model, config, temperature=0.25)
    assert (call.config.top_k, call.config.top_p, call.config.temperature) == (22, 0.5, 0.25)
    assert config.temperature is None
    assert model.generation_config.temperature == 0.5


def test_mask_is_inferred_from_padding() -> None:
    padded = torch.tensor([[PAD, 5], [6, 7]])
    plan = _call(TableModel(), inputs=padded).plan
    assert plan.attention_mask.tolist() == [[False, True], [True, True]]
    assert _call(TableModel()).plan.attention_mask is None
    # Where padding is also an end of sequence nothing can be told.
    assert _call(TableModel(pad_token_id=EOS), inputs=padded).plan.attention_mask is None


def test_samples_are_rows() -> None:
    plan = _call(TableModel(), do_sample=True, num_return_sequences=3).plan
    assert plan.input_ids.tolist() == PROMPT.tolist() * 3


def test_missing_padding_becomes_the_end_of_sequence(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "asyncgen.generation"):
        call = _call(TableModel(pad_token_id=None))
    assert call.plan.pad_token_id == EOS
    assert "pad_token_id" in caplog.text
