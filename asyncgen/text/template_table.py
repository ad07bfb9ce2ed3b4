"""List what a chat template may call, with what each call costs.

These are the only lists: what stands in none of them is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext

from asyncgen.text import template_costs as costs
from asyncgen.text import template_formats as formats

if TYPE_CHECKING:
    from asyncgen.text.template_costs import Cost

FILTERS: dict[str, Cost] = {
    "abs": costs.read,
    "attr": costs.named_attribute,
    "batch": costs.rows,
    "capitalize": costs.letters,
    "center": costs.wide,
    "count": costs.flat,
    "d": costs.flat,
    "default": costs.flat,
    "dictsort": costs.sorted_items,
    "e": costs.escape,
    "escape": costs.escape,
    "first": costs.flat,
    "float": costs.parse_number,
    "format": costs.formatted,
    "groupby": costs.sorted_items,
    "indent": costs.indent,
    "int": costs.parse_number,
    "items": costs.pairs,
    "join": costs.join,
    "last": costs.flat,
    "length": costs.flat,
    "list": costs.listing,
    "lower": costs.letters,
    "map": costs.items,
    "max": costs.sorted_items,
    "min": costs.sorted_items,
    "reject": costs.items,
    "rejectattr": costs.items,
    "replace": costs.replace,
    "reverse": costs.read,
    "round": costs.rounded,
    "safe": costs.string,
    "select": costs.items,
    "selectattr": costs.items,
    "slice": costs.rows,
    "sort": costs.sorted_items,
    "string": costs.string,
    "sum": costs.summed,
    "title": costs.words,
    "tojson": costs.as_json,
    "trim": costs.strip,
    "truncate": costs.read,
    "unique": costs.unique,
    "upper": costs.letters,
    "wordcount": costs.words,
    "wordwrap": costs.wrap,
}
"""Filters that a template may call."""

TESTS: dict[str, Cost] = {
    **dict.fromkeys(
        "boolean callable defined escaped false float integer iterable mapping none number sameas"
        " sequence string true undefined".split(),
        costs.flat,
    ),
    **dict.fromkeys(
        "== eq equalto != ne > gt greaterthan >= ge < lt lessthan <= le".split(), costs.compare
    ),
    **dict.fromkeys(("divisibleby", "even", "odd"), costs.modulo),
    **dict.fromkeys(("lower", "upper"), costs.letters),
    "in": costs.flat,  # the sandbox's own measures the operator and the test alike
}
"""Tests that a template may call."""

FUNCTIONS: dict[str, Cost] = {
    "dict": costs.dictionary,
    "joiner": costs.small,
    "namespace": costs.dictionary,
    "raise_exception": costs.said,
    "range": costs.numbers,
    "strftime_now": formats.date,
}
"""Functions that a template may call, beside its macros."""

METHODS: dict[type, dict[str, Cost]] = {
    str: {
        **dict.fromkeys("capitalize casefold lower swapcase upper title".split(), costs.letters),
        **dict.fromkeys("lstrip rstrip strip".split(), costs.strip),
        **dict.fromkeys("endswith removeprefix removesuffix startswith".split(), costs.arguments),
        **dict.fromkeys("count find index partition".split(), costs.find),
        **dict.fromkeys("rfind rindex rpartition".split(), costs.find_backward),
        **dict.fromkeys("split rsplit".split(), costs.split),
        **dict.fromkeys("center ljust rjust zfill".split(), costs.wide),
        **dict.fromkeys(
            "isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable"
            " isspace istitle isupper".split(),
            costs.read,
        ),
        "format": costs.formatted_fields,
        "join": costs.join_method,
        "replace": costs.replace,
        "splitlines": costs.split_lines,
    },
    dict: {
        "copy": costs.copied,
        "get": costs.got,
        **dict.fromkeys("items keys values".split(), costs.viewed),
    },
    list: {"copy": costs.copied, "count": costs.in_list},  # `index` writes what it does not find
    tuple: {"count": costs.in_list},
    int: {},
    float: {"is_integer": costs.flat},
    LoopContext: {"changed": costs.read, "cycle": costs.flat},
}
"""Methods that a template may call, by the type of the value."""

_NAMED: dict[type | None, str] = {
    str: "a text",
    dict: "a mapping",
    list: "a list",
    tuple: "a tuple",
    int: "a number",
}


def methods_of(owner: Any) -> tuple[type | None, dict[str, Cost]]:
    """Return the methods of a value, and the type that has them."""
    if isinstance(owner, Mapping):
        return dict, METHODS[dict]
    for kind, methods in METHODS.items():
        if isinstance(owner, kind):
            return kind, methods
    return None, {}


def refuse(what: str, name: str, allowed: Any) -> SecurityError:
    """Make the error of a call that stands in no table.

    Args:
        what: ``filter``, ``test``, ``function`` or a method of something.
        name: The name in the template.
        allowed: Names in the table.
    """
    names = ", ".join(sorted(allowed)) or "none"
    return SecurityError(
        f"the template calls `{name[:80]}`, which templates may not call here; allowed are, of "
        f"{what}: {names}"
    )


def refuse_method(owner: Any, name: str) -> SecurityError:
    """Make the error of a method that stands in no table."""
    kind, methods = methods_of(owner)
    called = _NAMED.get(kind, type(owner).__name__)
    return refuse(f"the methods of {called}", name, methods)
