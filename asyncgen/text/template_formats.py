"""Tell what formatting a text costs at most: by ``%``, by fields, and as a date.

A width is a promise of as many characters, whatever is written in it. So it is read in the form,
and a width that is a value, or a field that reads into one, is refused.
"""

from __future__ import annotations

import re
from string import Formatter
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import SecurityError

from asyncgen.errors import clip
from asyncgen.text.template_weights import EACH

if TYPE_CHECKING:
    from asyncgen.text.template_budget import Budget

WRITTEN = 10
"""Characters that Python's or JSON's form has for one of a text, at most."""

_FORMATTED = 112  # work of a directive of a format
_LONGEST_DATE = 1000  # characters of a form
_WIDEST = 999  # width or precision of a formatted text
_FLOAT = 400  # characters of a formatted number
_DIGITS = re.compile(r"\d+")
_DIRECTIVE = re.compile(
    r"%(?P<key>\([^()]*\))?[-+ #0]*(?P<width>[0-9*]*)(?:\.(?P<precision>[0-9*]*))?"
    r"[hlL]?(?P<kind>.|$)",
    re.DOTALL,
)
_DATE = re.compile(r"%([^A-Za-z%]*)")


def measure_percents(budget: Budget, form: str, values: list[Any]) -> None:
    """Refuse widths, precisions and repetitions of ``%`` that make too much text.

    Args:
        budget: Of the rendering.
        form: Text with directives such as ``%5d``.
        values: The values; each directive may write any.

    Raises:
        SecurityError: It might make more than the rendering has left.
    """
    budget.work(16 * len(form) + _FORMATTED * form.count("%"))
    found = list(_DIRECTIVE.finditer(form))
    if "(" in form and any(one["kind"] == "(" for one in found):
        raise SecurityError("it formats with a key that contains a bracket")
    widths = [one[part] or "" for one in found for part in ("width", "precision")]
    is_plain = not any(one["kind"] in "ra" for one in found)
    _measure_written(budget, form, len(found), widths, values, is_plain=is_plain)


def measure_fields(budget: Budget, form: str, values: list[Any]) -> None:
    """Refuse widths, precisions and repetitions of ``format`` that make too much text.

    Args:
        budget: Of the rendering.
        form: Text with fields such as ``{:>5}``.
        values: The values; each field may write any.

    Raises:
        SecurityError: It might make more than the rendering has left, or a field reads an
            attribute or an entry, or its width is a value.
    """
    budget.work(16 * len(form) + _FORMATTED * form.count("{"))
    widths, count, is_plain = [], 0, True
    for _, name, spec, conversion in Formatter().parse(form):
        if name is None:
            continue
        if "." in name or "[" in name or "{" in (spec or ""):
            raise SecurityError(
                f"it formats with the field `{clip(name, 80)}:{clip(spec or '', 80)}`: templates "
                "may give the name of a value and a width in characters, no more"
            )
        count += 1
        widths += _DIGITS.findall(spec or "")
        is_plain = is_plain and not conversion
    _measure_written(budget, form, count, widths, values, is_plain=is_plain)


def _measure_written(
    budget: Budget,
    form: str,
    count: int,
    widths: list[str],
    values: list[Any],
    *,
    is_plain: bool,
) -> None:
    """Spend what a format costs whose directives each write any of the values in any width."""
    if any("*" in width or len(width) > len(str(_WIDEST)) for width in widths):
        raise SecurityError(f"it formats with a width of more than {_WIDEST} characters")
    is_plain = is_plain and type(form) is str and all(type(value) is str for value in values)
    longest = max([0, *(budget.weigh(value) * (1 if is_plain else WRITTEN) for value in values)])
    if any(isinstance(value, float | complex) for value in values):
        longest = max(longest, _FLOAT)
    widest = max([0, *(int(width or 0) for width in widths)])  # of a number, beside its digits
    most = len(form) + count * (EACH + longest + widest)
    budget.work(most)
    budget.fit(most * (1 if form.isascii() else 4))


def date(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Cost of a form of a date, each of whose directives may ask the system for its names.

    Raises:
        SecurityError: It is longer than any of a date.
    """
    if args and isinstance(args[0], str):
        if len(args[0]) > _LONGEST_DATE:
            raise SecurityError(
                f"it wrote a date with a form of {len(args[0])} characters, more than "
                f"{_LONGEST_DATE}"
            )
        widths = [number for one in _DATE.findall(args[0]) for number in _DIGITS.findall(one)]
        _measure_written(budget, args[0], args[0].count("%"), widths, [""] * 4, is_plain=False)
