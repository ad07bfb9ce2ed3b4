"""Every documented name, parameter and default is here, compared with the reference, and listed."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import transformers

import asyncgen
from asyncgen.errors import InvalidRequestError, MissingRequirementsError
from asyncgen.generation.config.parameters import FIELDS
from tests.cases import for_each
from tests.documented import registry
from tests.documented.comparisons import comparing
from tests.documented.differences import ABSENT, DIFFERENT, REFUSED, differences

PRESENT = sorted(set(registry.classes()) - registry.missing())
METHODS = [(name, method) for name in PRESENT for method in registry.methods(name)]

RESOLVED_LATER = {
    "GenerationConfig.save_pretrained": {"config_file_name"},
    "MaxTimeCriteria": {"initial_time"},
}
"""Defaults that are None in the signature, here and there, and stand for the documented value."""

NEVER_CALLABLE = {"CompileConfig", "WatermarkingConfig"}
"""The page lists a `__call__` that these never had."""

TAKEN_WITH_OTHERS = {"input_ids", "recipe", "assistant_tokenizer", "tokenizer"}
"""Keywords of `generate` that are neither fields nor in its signature, in the reference as here."""


def check(place: str, documented: list[Any], value: Any) -> None:
    found = registry.signature(value)
    explained = {
        name
        for name in (one["name"] for one in documented)
        if differences().keys() & {f"{place}.{name}", f"{place}({name})"}
    }
    missing = {one["name"] for one in documented} - found.keys()
    assert missing <= explained
    for one in documented:
        if one["name"] in missing:
            continue
        parameter = found[one["name"]]
        if one["default"] is None or parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        expected = registry.default_of(one["default"])
        if one["name"] in RESOLVED_LATER.get(place, ()):
            expected = None
        assert parameter.default == expected, one["name"]


def check_order(documented: list[Any], value: Any) -> None:
    """Check that positional parameters come in the documented order."""
    names = [one["name"] for one in documented]
    found = [
        name
        for name, parameter in registry.signature(value).items()
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and name in names
    ]
    assert found == [name for name in names if name in found]


@for_each("name", PRESENT)
def test_a_documented_class_has_its_parameters(name: str) -> None:
    documented = registry.classes()[name]["parameters"]
    value = getattr(asyncgen, name)
    check(name, documented, value)
    check_order(documented, value)


@for_each(("name", "method"), METHODS)
def test_a_documented_method_has_its_parameters(name: str, method: str) -> None:
    value = getattr(asyncgen, name)
    if method == "__call__" and name in NEVER_CALLABLE:
        assert not callable(getattr(transformers, name)())
        return
    # A plain class is callable itself; what counts is what its objects can do.
    found = inspect.getattr_static(value, method)
    assert found is not None
    documented = registry.methods(name)[method]
    check(f"{name}.{method}", documented, getattr(value, method))
    check_order(documented, getattr(value, method))


@for_each("name", registry.imports())
def test_names_imported_by_examples_exist(name: str) -> None:
    assert name in asyncgen.__all__
    assert getattr(asyncgen, name) is not None


def test_keywords_in_examples_are_accepted_by_generate() -> None:
    fields = {field.name for field in FIELDS}
    arguments = set(inspect.signature(asyncgen.GenerationMixin.generate).parameters)
    assert set(registry.keywords()) <= fields | arguments | TAKEN_WITH_OTHERS


def test_every_field_of_the_reference_has_its_default() -> None:
    theirs = {
        name: value
        for name, value in vars(transformers.GenerationConfig()).items()
        if not name.startswith("_") and name != "transformers_version"
    }
    ours = vars(asyncgen.GenerationConfig())
    assert {name: ours.get(name, "missing") for name in theirs} == theirs


@pytest.mark.parametrize("place", sorted(registry.missing()))
def test_names_listed_as_missing_are_missing(place: str) -> None:
    name, _, method = place.partition(".")
    assert name in registry.classes()
    if method:
        assert not hasattr(getattr(asyncgen, name), method), "it has come: take it off the list"
    else:
        assert name not in asyncgen.__all__, "it has come: take it off the list"


@for_each("name", [*PRESENT, *registry.imports()])
def test_a_documented_name_is_compared_with_the_reference(name: str) -> None:
    assert comparing(name)


@for_each("name", [field.name for field in FIELDS if field.awaits is None])
def test_a_field_that_is_served_is_compared_with_the_reference(name: str) -> None:
    assert comparing(name)


@for_each("row", registry.STRATEGIES, ids=lambda row: row.name)
def test_a_strategy_is_where_the_table_says(row: registry.StrategyRow) -> None:
    assert importlib.import_module(row.module)
    fields = {field.name for field in FIELDS}
    arguments = set(inspect.signature(asyncgen.GenerationMixin.generate).parameters)
    assert set(row.asks) <= fields | arguments | TAKEN_WITH_OTHERS
    for name in row.asks:
        assert comparing(name)


@for_each(("name", "method"), [pair for pair in METHODS if registry.methods(pair[0])[pair[1]]])
def test_a_documented_method_is_compared_with_the_reference(name: str, method: str) -> None:
    assert comparing(method, owner=name)


def test_the_search_for_comparisons_can_fail() -> None:
    assert comparing("NoSuchLogitsProcessor") == []
    # Named in tests, but in none that uses the reference.
    assert comparing("EngineDiedError") == []
    # Named in a file that uses the reference, but by no test that does.
    assert comparing("FrequencyPenaltyLogitsProcessor") == []
    # A method of many classes, never called of this one.
    assert comparing("join")
    assert comparing("join", owner="BayesianDetectorModel") == []


def test_the_page_is_up_to_date() -> None:
    text = registry.PAGE.read_text(encoding="utf-8")
    begin, end = text.index(registry.BEGIN), text.index(registry.END) + len(registry.END)
    current = text[begin:end] == registry.section()
    assert current, "run `python -m tests.documented.registry --write`"


def test_every_difference_is_of_something_documented() -> None:
    places = {*registry.imports(), *ABSENT}
    for name, entry in registry.classes().items():
        places |= {name, *(f"{name}.{one['name']}" for one in entry["parameters"])}
        for method, parameters in entry["methods"].items():
            place = f"{name}.{method}"
            places |= {place, *(f"{place}({one['name']})" for one in parameters)}
    places |= {f"GenerationConfig.{field.name}" for field in FIELDS}
    assert differences().keys() <= places
    assert not DIFFERENT.keys() & (ABSENT.keys() | REFUSED.keys())


@pytest.mark.parametrize("name", ABSENT)
def test_names_listed_as_absent_are_absent(name: str) -> None:
    assert name in registry.documented_imports()
    assert name not in asyncgen.__all__, "it has come: take it off the list"


@pytest.mark.parametrize("name", REFUSED)
def test_names_listed_as_refused_are_refused(name: str) -> None:
    _, use = REFUSED[name]
    with pytest.raises((InvalidRequestError, MissingRequirementsError)):
        use()


def test_unexplained_parameter_fails_the_check() -> None:
    with pytest.raises(AssertionError):
        check("TopKLogitsWarper", [{"name": "no_such", "default": None}], asyncgen.TopKLogitsWarper)
