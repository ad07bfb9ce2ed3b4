"""List the names of the reference documents, where each lives here, and its test.

Derived from ``documented.json``, from the package itself and from the tests; a page of the
documentation is printed from it. ``python -m tests.documented.registry --write`` renews that page.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncgen
from asyncgen.generation.config.parameters import FIELDS
from tests.documented.comparisons import comparing
from tests.documented.differences import ABSENT, differences
from tests.documented.extract import DOCUMENTED, Entry, Parameter

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "BEGIN",
    "COMING",
    "END",
    "PAGE",
    "STRATEGIES",
    "Row",
    "StrategyRow",
    "classes",
    "default_of",
    "documented_imports",
    "frameworks",
    "imports",
    "keywords",
    "methods",
    "missing",
    "paths",
    "rows",
    "section",
    "signature",
]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "asyncgen" / "docs" / "names.md"
BEGIN = "<!-- reference: python -m tests.documented.registry --write -->"
END = "<!-- /reference -->"

FIELDS_FAMILY = "Parameters of generation"
"""The heading of the table of `GenerationConfig`'s fields, which are its parameters."""

COMING: set[str] = set()
"""Documented names that are not there yet. One that comes leaves this set, or a test fails."""


@dataclass(frozen=True, slots=True)
class StrategyRow:
    """One decoding strategy of the documents.

    Attributes:
        name: As the documents call it.
        asks: The parameters that ask for it.
        module: Where its generator of steps lives.
    """

    name: str
    asks: tuple[str, ...]
    module: str


_HOME = "asyncgen.generation.strategies"
STRATEGIES = (
    StrategyRow("Greedy search", ("max_new_tokens",), f"{_HOME}.token_by_token"),
    StrategyRow(
        "Sampling",
        ("do_sample", "temperature", "top_k", "top_p", "min_p"),
        f"{_HOME}.token_by_token",
    ),
    StrategyRow(
        "Beam search",
        ("num_beams", "early_stopping", "length_penalty", "num_return_sequences"),
        f"{_HOME}.beam",
    ),
    StrategyRow("Beam-search sampling", ("num_beams", "do_sample"), f"{_HOME}.beam"),
    StrategyRow(
        "Diverse beam search",
        ("num_beams", "num_beam_groups", "diversity_penalty"),
        f"{_HOME}.scored_beams",
    ),
    StrategyRow(
        "Constrained beam search",
        ("num_beams", "constraints", "force_words_ids"),
        f"{_HOME}.scored_beams",
    ),
    StrategyRow(
        "Speculative decoding",
        ("assistant_model", "num_assistant_tokens", "assistant_confidence_threshold"),
        f"{_HOME}.drafters.assistant",
    ),
    StrategyRow(
        "Prompt lookup",
        ("prompt_lookup_num_tokens", "max_matching_ngram_size"),
        f"{_HOME}.drafters.lookup",
    ),
    StrategyRow(
        "Early exit", ("assistant_early_exit",), "asyncgen.generation.strategies.drafters.drafting"
    ),
    StrategyRow(
        "Universal assisted decoding",
        ("assistant_tokenizer", "tokenizer", "target_lookbehind", "assistant_lookbehind"),
        f"{_HOME}.drafters.universal",
    ),
    StrategyRow(
        "Contrastive search", ("penalty_alpha", "top_k", "low_memory"), f"{_HOME}.contrastive"
    ),
    StrategyRow("DoLa", ("dola_layers",), f"{_HOME}.dola"),
    StrategyRow(
        "Custom decoding", ("custom_generate", "recipe"), "asyncgen.generation.generate.custom"
    ),
    StrategyRow(
        "Token healing", ("token_healing",), "asyncgen.generation.strategies.token_healing"
    ),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table.

    Attributes:
        family: The heading it stands under.
        name: A class, a method, a function or a strategy.
        parameters: Its documented parameters, with defaults.
        module: Where it is defined; empty while it is not there.
        test: A test file that compares it with the reference; empty while it is not there.
        here: How it differs, and why; empty where it is as documented.
    """

    family: str
    name: str
    parameters: str
    module: str
    test: str
    here: str = ""


@functools.cache
def _documented() -> dict[str, Any]:
    return json.loads(DOCUMENTED.read_text(encoding="utf-8"))


def classes() -> dict[str, Entry]:
    """The documented classes by name."""
    return _documented()["classes"]


def documented_imports() -> list[str]:
    """Further names that the examples import."""
    return _documented()["imports"]


def imports() -> list[str]:
    """Further names that the examples import, and that are here."""
    return [name for name in documented_imports() if name not in ABSENT]


def paths() -> list[str]:
    """List the dotted names in modules of the reference, such as ``generation.Scheduler``."""
    return _documented()["paths"]


def frameworks() -> list[str]:
    """List the names of the documents for models of TensorFlow and JAX."""
    return _documented()["frameworks"]


def keywords() -> list[str]:
    """Keywords that the examples give to `generate`."""
    return _documented()["keywords"]


def missing() -> set[str]:
    """Documented names and methods that are not there."""
    return set(COMING)


def methods(name: str) -> dict[str, list[Parameter]]:
    """The documented methods of a class that are there."""
    found = classes()[name]["methods"]
    return {key: value for key, value in found.items() if f"{name}.{key}" not in missing()}


def signature(value: Any) -> dict[str, inspect.Parameter]:
    """Parameters of a class or function by name, without ``self``."""
    function = value.__init__ if inspect.isclass(value) else value
    found = dict(inspect.signature(function).parameters)
    found.pop("self", None)
    return found


def default_of(text: str) -> object:
    """Read a default as the documents write it."""
    import torch

    named = {
        "-inf": -math.inf,
        "torch.float16": torch.float16,
        "torch.float32": torch.float32,
        "time.time()": None,
        "cpu": "cpu",
    }
    return named[text] if text in named else ast.literal_eval(text)


def rows() -> Iterator[Row]:
    """The rows of the table, families together."""
    for family in dict.fromkeys(entry["family"] for entry in classes().values()):
        for name, entry in classes().items():
            if entry["family"] == family:
                yield from _class_rows(name, entry)
    for name in imports():
        home = getattr(asyncgen, name).__module__
        yield Row("Loading", f"`{name}`", "", home, comparing(name, home)[0], _here(name))
    for name, why in ABSENT.items():
        yield Row("Loading", f"`{name}`", "", "", "", why)
    yield from _fields()
    for strategy in STRATEGIES:
        listed = ", ".join(f"`{parameter}`" for parameter in strategy.asks)
        test = comparing(strategy.asks[0], strategy.module)[0]
        yield Row("Strategies", strategy.name, listed, strategy.module, test)


def _class_rows(name: str, entry: Entry) -> Iterator[Row]:
    """The rows of a class: its constructor, and its methods that have parameters."""
    if name in missing():
        yield Row(entry["family"], f"`{name}`", _listed(entry["parameters"]), "", "")
        return
    value = getattr(asyncgen, name)
    home = value.__module__
    listed = _listed(entry["parameters"])
    if entry["family"] in ("Outputs", "Logits processors") and not entry["parameters"]:
        listed = _own(value)
    if name == "GenerationConfig":
        listed = "see below"
    own = [name, *(f"{name}.{one['name']}" for one in entry["parameters"])]
    test = comparing(name, home)[0]
    yield Row(entry["family"], f"`{name}`", listed, home, test, _here(*own))
    for method, parameters in methods(name).items():
        if parameters:
            place, listed = f"{name}.{method}", _listed(parameters)
            here = _here(place, *(f"{place}({one['name']})" for one in parameters))
            test = comparing(method, home, name)[0]
            yield Row(entry["family"], f"`{place}`", listed, home, test, here)


def _fields() -> Iterator[Row]:
    """A row for each parameter of generation."""
    for field in FIELDS:
        default = f"`{field.default!r}`".replace("'", '"')
        here = _here(f"GenerationConfig.{field.name}")
        home = asyncgen.GenerationConfig.__module__
        tests = comparing(field.name, home)
        yield Row(FIELDS_FAMILY, f"`{field.name}`", default, home, tests[0], here)


def _here(*places: str) -> str:
    """Name the differences; a parameter stands before its reason."""
    found = differences()
    parts = []
    for place in places:
        if place in found:
            parameter = place.partition("(")[2].rstrip(")")
            parts.append(f"`{parameter}`: {found[place]}" if parameter else found[place])
    return "; ".join(parts)


def _listed(parameters: list[Parameter]) -> str:
    return ", ".join(
        f"`{one['name']}`" if one["default"] is None else f"`{one['name']}={one['default']}`"
        for one in parameters
    )


def _own(value: Any) -> str:
    """List the parameters of a class whose page names none."""
    return ", ".join(
        f"`{name}`"
        for name, kind in signature(value).items()
        if kind.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    )


def section() -> str:
    """Render the tables as they stand on the page, markers included."""
    found = list(rows())
    lines = [BEGIN, ""]
    for family in dict.fromkeys(row.family for row in found):
        shown = "Default" if family == FIELDS_FAMILY else "Parameters"
        lines += [f"## {family}", "", f"| Name | {shown} | Module | Compared in | Here |"]
        lines.append("|---|---|---|---|---|")
        for row in found:
            if row.family == family:
                module = f"`{row.module}`" if row.module else ""
                here = row.here or "as documented"
                if not row.module:
                    here = f"not here: {row.here}" if row.here else "not yet"
                test = f"`{row.test.removeprefix('tests/')}`" if row.test else ""
                lines.append(f"| {row.name} | {row.parameters} | {module} | {test} | {here} |")
        lines.append("")
    return "\n".join([*lines, END])


def write() -> None:
    """Renew the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + section() + after, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.documented.registry --write")
    write()
