"""A call is laid out before anything is computed, also that of a user's function."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from asyncgen.generation.generate.call import Arguments, prepare_call
from asyncgen.generation.generate.signatures import acceptable, own_parameters, parameter_names
from asyncgen.generation.strategies import STRATEGIES
from tests.doubles.models import EOS, PAD, TableModel

PROMPT = torch.tensor([[5, 6, 7]])


def _call(model: TableModel, **kwargs: Any) -> Any:
    inputs = kwargs.pop("inputs", PROMPT)
    return prepare_call(model, Arguments(inputs, kwargs=kwargs))


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
        assert call.strategy is STRATEGIES[call.config.get_generation_mode()]
    assert model.num_forwards == 0


def test_beams_are_rows_of_the_cache_and_not_of_the_plan() -> None:
    plan = _call(
        TableModel(), num_beams=4, num_return_sequences=3, cache_implementation="static"
    ).plan
    assert len(plan.input_ids) == 1
    assert (plan.copies, plan.cache.max_batch_size) == (3, 4)


def plain(model: Any, input_ids: Any, left_padding: int = 0) -> None:
    """A function without keywords of any name."""


def open_ended(model: Any, *args: Any, **kwargs: Any) -> None:
    """A function that takes everything."""


class Callable:
    def __call__(self, model: Any, draw: Any, own: int) -> None:
        """A method counts as well."""


def test_names_of_its_own() -> None:
    assert parameter_names(plain) == {"model", "input_ids", "left_padding"}
    assert own_parameters(plain) == {"left_padding"}
    assert own_parameters(open_ended) == frozenset()
    assert own_parameters(Callable()) == {"own"}
    assert own_parameters(partial(plain, left_padding=3)) == {"left_padding"}


def test_only_what_it_takes() -> None:
    given = {"left_padding": 1, "use_cache": True}
    assert acceptable(plain, given) == {"left_padding": 1}
    assert acceptable(open_ended, given) == given
    assert acceptable(print, given) is not None
