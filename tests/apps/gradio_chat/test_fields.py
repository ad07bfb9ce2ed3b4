"""The table is in order: every row names a parameter that exists and a strategy that is known."""

from __future__ import annotations

from asyncgen import StreamParams
from asyncgen_apps.gradio_chat.fields import AIDED, FIELDS, GROUPS, STRATEGIES, draws


def test_every_field_is_a_parameter_of_a_stream() -> None:
    names = {each.name if each.parameter is None else each.parameter for each in FIELDS}
    assert names - {""} <= set(StreamParams.__annotations__)


def test_names_groups_and_strategies_are_known() -> None:
    assert len({each.name for each in FIELDS}) == len(FIELDS)
    assert {each.group for each in FIELDS} == set(GROUPS)
    for each in FIELDS:
        assert each.only is None or each.only <= set(STRATEGIES)
        assert bool(each.choices) == (each.kind == "choice")
        assert each.neutral is None or each.kind != "choice" or each.neutral in each.choices
    assert set(STRATEGIES) >= AIDED


def test_who_draws() -> None:
    drawing = {name for name in STRATEGIES if draws({"strategy": name, "draw": True})}
    assert drawing == {"sampling", "beam_sample", *AIDED}
    always = {name for name in STRATEGIES if draws({"strategy": name, "draw": False})}
    assert always == {"sampling", "beam_sample"}
