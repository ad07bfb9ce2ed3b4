"""The modules of the reference's documents are here under their names, imported late."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest

import asyncgen
from asyncgen.errors import UnsupportedFrameworkError
from tests.cases import for_each
from tests.documented import registry
from tests.test_architecture import PATHS, _modules

MODULES = sorted(
    {each.replace(PATHS, "asyncgen") for each in _modules() if each.startswith(f"{PATHS}.")}
    | {"asyncgen.generation.watermarking"}
)

GONE = {"asyncgen.generation.beam_constraints", "asyncgen.generation.beam_search"}
"""Modules that the reference has removed since."""

PACKAGES = {"asyncgen.generation", "asyncgen.generation.continuous_batching"}
"""Packages of the reference, which have names of their modules."""


def resolve(package: Any, path: str) -> Any:
    """Follow a dotted name by attributes alone."""
    for part in path.split("."):
        package = getattr(package, part)
    return package


@for_each("path", registry.paths())
def test_a_documented_path_is_an_attribute(path: str) -> None:
    assert resolve(asyncgen, path) is not None


@for_each("path", registry.paths())
def test_a_documented_path_can_be_imported_from(path: str) -> None:
    """A class is imported from its module, and is the one of the front."""
    parts = path.split(".")
    while parts[-2][0].isupper():
        parts.pop()  # a method
    found: dict[str, Any] = {}
    exec(f"from asyncgen.{'.'.join(parts[:-1])} import {parts[-1]}", found)
    assert found[parts[-1]] is getattr(asyncgen, parts[-1])


@pytest.mark.gate
def test_documented_paths_need_no_import_but_the_first() -> None:
    paths = " ".join(f"asyncgen.{path}," for path in registry.paths())
    subprocess.run([sys.executable, "-c", f"import asyncgen; {paths}"], check=True)


def public(module: str) -> dict[str, Any]:
    """Names of a module of names."""
    found = importlib.import_module(module)
    names = [*dir(found)] if module == "asyncgen.generation" else [*vars(found)]
    return {name: getattr(found, name) for name in names if name[0].isupper()}


@for_each("module", MODULES)
def test_a_module_has_what_the_reference_has_in_it(module: str) -> None:
    """What is public here and defined there, or exported by the package, is in the module."""
    if module in GONE:
        return
    theirs = importlib.import_module(module.replace("asyncgen", "transformers", 1))
    expected = {
        name
        for name in {*asyncgen.__all__} & {*dir(theirs)}
        if getattr(getattr(theirs, name), "__module__", "") == theirs.__name__ or module in PACKAGES
    }
    assert expected - {"Any"} <= public(module).keys()


@for_each("module", MODULES)
def test_names_of_a_module_are_those_of_the_front(module: str) -> None:
    found = public(module)
    assert found
    for name, value in found.items():
        assert value is getattr(asyncgen, name, value)


def test_a_package_has_no_other_names() -> None:
    from asyncgen import generation

    assert not hasattr(generation, "AutoTokenizer")
    with pytest.raises(AttributeError, match="'asyncgen.generation' has no attribute 'Nothing'"):
        generation.Nothing  # type: ignore[attr-defined]  # noqa: B018


UNDOCUMENTED = ["TFGPT2LMHeadModel", "TFGenerationMixin", "FlaxT5ForConditionalGeneration"]


@for_each("name", [*registry.frameworks(), *UNDOCUMENTED])
def test_a_name_of_another_framework_says_what_to_use(name: str) -> None:
    for package in ("asyncgen", "asyncgen.generation"):
        with pytest.raises(UnsupportedFrameworkError) as found:
            getattr(importlib.import_module(package), name)
        instead = found.value.replacement.removeprefix("asyncgen.")
        assert getattr(asyncgen, instead) is not None
        assert f"use `asyncgen.{instead}`" in str(found.value)
        with pytest.raises(ImportError, match=f"`{name}` is for models of .* use `asyncgen"):
            exec(f"from {package} import {name}")


def test_a_name_that_nothing_replaces_is_unknown() -> None:
    with pytest.raises(AttributeError, match="no attribute 'TFBertModel'"):
        asyncgen.TFBertModel  # type: ignore[attr-defined]  # noqa: B018
