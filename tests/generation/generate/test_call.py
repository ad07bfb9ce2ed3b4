"""A call is laid out before anything is computed."""

from __future__ import annotations

from typing import Any

import torch

from asyncgen.generation.generate.call import GenerateArguments, prepare_call
from asyncgen.generation.strategies import STRATEGIES
from tests.doubles.models import EOS, PAD, TableModel

PROMPT = torch.tensor([[5, 6, 7]])


def _call(model: TableModel, **kwargs: Any) -> Any:
    inputs = kwargs.pop("inputs", PROMPT)
    return prepare_call(model, GenerateArguments(inputs, kwargs=kwargs))


def test_mask_is_inferred_from_padding() -> None:
    padded = torch.tensor([[PAD, 5], [6, 7]])
    plan = _call(TableModel(), inputs=padded).plan
    assert plan.attention_mask.tolist() == [[False, True], [True, True]]
    assert _call(TableModel()).plan.attention_mask is None
    # Where padding is also an end of sequence nothing can be told.
    assert _call(TableModel(pad_token_id=EOS), inputs=padded).plan.attention_mask is None


def test_the_configuration_names_the_strategy_and_nothing_runs() -> None:
    model = TableModel()
    for options in ({}, {"do_sample": True}, {"num_beams": 2}):
        call = _call(model, **options)
        assert call.strategy is STRATEGIES[call.plan.config.get_generation_mode()]
    assert model.num_forwards == 0


def test_beams_are_rows_of_the_cache_and_not_of_the_plan() -> None:
    plan = _call(
        TableModel(), num_beams=4, num_return_sequences=3, cache_implementation="static"
    ).plan
    assert len(plan.input_ids) == 1
    assert (plan.copies, plan.cache.max_batch_size) == (3, 4)
