"""The table is in order: every row names a parameter that exists and a strategy that is known."""

from __future__ import annotations

from asyncgen.generation.config.parameters import BY_NAME
from asyncgen_apps.gradio_chat.fields import AIDED, FIELDS, GROUPS, STRATEGIES, draws


def test_every_field_is_a_parameter_of_a_stream() -> None:
    for each in FIELDS:
        name = each.name if each.parameter is None else each.parameter
        assert not name or not BY_NAME[name].elsewhere


def test_every_value_that_can_be_chosen_is_one_that_the_table_takes() -> None:
    types = {"slider": "float", "integer": "int", "number": "float", "flag": "bool"}
    for each in FIELDS:
        name = each.name if each.parameter is None else each.parameter
        if not name or each.kind not in types:
            continue
        row = BY_NAME[name]
        assert row.type == types[each.kind], name
        for value in (each.low, each.high, each.neutral):
            assert value is None or row.rule is None or row.rule(value) is None, name


def test_what_is_shown_is_what_applies() -> None:
    making = {"num_beams", "num_beam_groups", "diversity_penalty", "penalty_alpha"}
    for each in FIELDS:
        row = BY_NAME.get(each.name) if each.parameter is None else None
        if row is not None and row.default is not None and each.kind in ("slider", "integer"):
            assert each.neutral == row.default or each.name in making, each.name


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
