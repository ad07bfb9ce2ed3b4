"""Tell what a call of a chat template can cost at most, before it runs.

Filters, tests, functions and methods that a template may call stand in
:mod:`asyncgen.text.template_table`, each with a cost of here. A cost is told from the sizes of the
arguments before the call, since one call into Python or jinja cannot be stopped: it spends *work*
for what is read (a unit is about ten nanoseconds), and refuses what would make too much. Knows
nothing of jinja's environment and of the templates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sized
from typing import TYPE_CHECKING, Any, TypeAlias

from jinja2.exceptions import SecurityError

from asyncgen.text.template_budget import TEXT, Counted
from asyncgen.text.template_formats import WRITTEN, measure_fields, measure_percents
from asyncgen.text.template_weights import VIEWS

if TYPE_CHECKING:
    from asyncgen.text.template_budget import Budget

    Cost: TypeAlias = Callable[[Budget, tuple[Any, ...], dict[str, Any]], Any]
    """Spends what a call costs; what it returns but ``None`` takes the first argument's place."""

MOST_BITS = 2**16
"""Bits of an integer that a template computes."""

MOST_KEYS = 1024
"""Entries of a dictionary that a template makes."""

_ESCAPED = 6  # of HTML
_EACH = 32  # work of a step over an item: a test, a filter
_ATTRIBUTE = 160  # of reading one that may not be there
_FORWARD = 30_000  # length from which Python searches texts in linear time
_SPACES = tuple(chr(code) for code in range(0x3001) if chr(code).isspace())
_LINES = ("\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
_MODULUS = 2**61 - 1  # of the hash of integers: smaller ones never collide


def flat(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Cost of what reads little and makes nothing."""


def read(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Cost of what reads its arguments and makes as much at most."""
    weight = _total(budget, args, named)
    budget.work(weight)
    budget.fit(weight)


def compare(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Cost of comparing two values: the smaller one is read."""
    if len(args) > 1:
        left, right = args[0], args[1]
        if type(left) is not str or type(right) is not str or len(left) == len(right):
            budget.work(min(budget.weigh(left), budget.weigh(right)))
        else:
            budget.work(8)


def contained(budget: Budget, item: Any, container: Any) -> Any:
    """Spend what ``item in container`` costs, and return the container, listed if it was none."""
    if isinstance(container, str):
        if isinstance(item, str):
            _search(budget, container, item, backward=False)
        return container
    if isinstance(container, Mapping | range):
        budget.work(8 if type(item) in (str, int) else budget.weigh(item))
        if type(item) is not int and isinstance(container, range):
            budget.work(8 * len(container))
        return container
    if isinstance(container, list | tuple):
        listed = container
    elif hasattr(container, "__iter__"):
        listed = listed_of(budget, container)
    else:
        return container
    size = budget.weigh(item)
    count = len(listed)
    budget.work(8 * count + (min(count * size, budget.weigh(listed)) if size > TEXT else 0))
    return listed


def listed_of(budget: Budget, value: Any) -> Any:
    """Return a value with a length: as it is, or the items of an iterator, each a step."""
    if isinstance(value, str | list | tuple | dict | range) or not hasattr(value, "__iter__"):
        return value
    listed = []
    for item in value:
        budget.step()
        listed.append(item)
    budget.make(8 * len(listed))
    return listed


def operate(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """Refuse a sum, product, power, quotient or formatted text that would be too large.

    Raises:
        SecurityError: It would.
    """
    if isinstance(left, int) and isinstance(right, int):
        bits, others = left.bit_length(), right.bit_length()
        if operator == "**":
            measure_bits(bits * abs(right))
        elif operator == "*":
            measure_bits(bits + others)
        else:
            measure_bits(max(bits, others))
        if bits > 64 and others > 64:
            budget.work(bits * others // 2**10)
    elif isinstance(left, int | float) and isinstance(right, int | float):
        return
    elif operator == "%" and isinstance(left, str):
        several = [*right.values(), right] if isinstance(right, Mapping) else [right]
        measure_percents(budget, left, list(right) if isinstance(right, tuple) else several)
    elif operator == "*":
        for one, other in ((left, right), (right, left)):
            if isinstance(one, Sized) and isinstance(other, int):
                budget.fit(budget.weigh(one) * max(other, 1))
    elif operator == "+" and isinstance(left, list | tuple) and isinstance(right, list | tuple):
        budget.fit(8 * (len(left) + len(right)))
    elif isinstance(left, VIEWS) or isinstance(right, VIEWS):  # a set of what may collide
        view = left if isinstance(left, VIEWS) else right
        raise SecurityError(f"it computes with a `{type(view).__name__}`, which is no number")
    else:
        weight = budget.weigh(left) + budget.weigh(right)
        budget.work(weight)
        budget.fit(weight * (1 if type(left) is type(right) else _ESCAPED))


def measure_bits(bits: int) -> None:
    """Refuse an integer of too many bits.

    Raises:
        SecurityError: It is too large.
    """
    if bits > MOST_BITS:
        raise SecurityError(f"it computed a number of more than {MOST_BITS} bits")


def make_dictionary(budget: Budget, keys: Any) -> None:
    """Spend what a dictionary of these keys costs, which do not collide.

    Raises:
        SecurityError: They are too many, or of a kind that collides or whose hash may cost much.
    """
    count = len(keys)
    if count > MOST_KEYS:
        raise SecurityError(f"it made a dictionary of {count} entries, more than {MOST_KEYS}")
    for key in keys:
        if type(key) is int and abs(key) < _MODULUS:
            continue
        if not isinstance(key, str | bool | None):
            raise SecurityError(
                "it made a dictionary whose keys are neither texts nor numbers of at most 61 bits"
            )
    budget.make(2 * TEXT * count)


def _total(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> int:
    return sum(map(budget.weigh, args)) + sum(map(budget.weigh, named.values()))


def _values(args: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """All arguments but the first, which is the value."""
    return [*args[1:], *named.values()]


def _number(values: list[Any]) -> int:
    """The largest number among arguments."""
    return max([0, *(abs(one) for one in values if isinstance(one, int))])


def _text(budget: Budget, value: Any) -> str:
    """The text of a value, of which jinja's filters make one."""
    if isinstance(value, str):
        return value
    most = WRITTEN * budget.weigh(value)
    budget.work(most)
    budget.fit(most)
    return str(value)


def _search(budget: Budget, text: str, found: str, *, backward: bool) -> None:
    """Spend what a search costs; it is not linear backwards, nor in short texts."""
    size, length = len(text), len(found)
    most = size
    if length > 1 and (backward or size < _FORWARD):
        most += max(0, size - length) * length // 8
    budget.work(8 + most)


def arguments(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    budget.work(8 + sum(map(budget.weigh, args[1:])))


def letters(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Cost of changed letters: Python holds three of four bytes for one that is not ASCII."""
    text = _text(budget, args[0]) if args else ""
    budget.work(2 * len(text))
    budget.fit(len(text) if text.isascii() else 12 * len(text))


def words(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Cost of a list of words that is made by a pattern, then changed one by one."""
    text = _text(budget, args[0]) if args else ""
    budget.work(64 * len(text))
    budget.fit(2 * TEXT * len(text))


def strip(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    text = _text(budget, args[0]) if args else ""
    stripped = next((one for one in _values(args, named) if isinstance(one, str)), "")
    budget.work(len(text) * (1 + len(stripped) // 32))


def find(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    if len(args) > 1 and isinstance(args[1], str):
        _search(budget, args[0], args[1], backward=False)


def find_backward(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    if len(args) > 1 and isinstance(args[1], str):
        _search(budget, args[0], args[1], backward=True)


def split(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    text, values = args[0], _values(args, named)
    found = next((one for one in values if isinstance(one, str)), None)
    most = next((one for one in values if isinstance(one, int) and one >= 0), None)
    if found is None:
        budget.work(4 * len(text))
        pieces = sum(map(text.count, _SPACES[:10] if text.isascii() else _SPACES)) + 1
    elif found:
        _search(budget, text, found, backward=True)
        pieces = text.count(found) + 1
    else:
        return  # Python refuses
    _pieces(budget, text, pieces if most is None else min(pieces, most + 1))


def split_lines(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    budget.work(len(args[0]))
    _pieces(budget, args[0], sum(map(args[0].count, _LINES)) + 1)


def _pieces(budget: Budget, text: str, pieces: int) -> None:
    budget.make(budget.weigh(text) + TEXT * pieces)


def wide(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Cost of a text that is filled up to a width."""
    text = _text(budget, args[0]) if args else ""
    values = _values(args, named)
    width = 1 if all(isinstance(one, int) or one.isascii() for one in values) else 4
    budget.fit(max(budget.weigh(text), 4 * len(text), width * _number(values)))


def replace(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    text = _text(budget, args[0]) if args else ""
    texts = [_text(budget, one) for one in _values(args, named)]
    if len(texts) > 1:
        _search(budget, text, texts[0], backward=False)
        count = text.count(texts[0])
        budget.work(count * 8)
        most = len(text) + count * len(texts[1])
        is_plain = type(text) is str and text.isascii() and texts[1].isascii()
        budget.fit(most * (1 if is_plain else 4 * _ESCAPED if type(text) is not str else 4))


def join(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> list[Any] | None:
    """Cost of the filter ``join``, which writes what is no text."""
    if not args:
        return None
    listed = listed_of(budget, args[0])
    between = budget.weigh(_text(budget, named.get("d", args[1] if len(args) > 1 else "")))
    _spend_joined(budget, listed, between, is_text=False)
    if isinstance(named.get("attribute", *args[2:3]), str):
        _attributes(budget, _ATTRIBUTE, (listed, *args[1:]), named)
    return listed if listed is not args[0] else None


def join_method(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Cost of the method ``join``, whose items are listed already."""
    if len(args) > 1 and isinstance(args[1], Sized):
        _spend_joined(budget, args[1], budget.weigh(args[0]), is_text=type(args[0]) is str)


def _spend_joined(budget: Budget, listed: Any, between: int, *, is_text: bool) -> None:
    if not isinstance(listed, Sized):
        return
    # A mark of HTML escapes all; the filter writes items that are no texts as Python does.
    is_plain = isinstance(listed, list | tuple) and (is_text or {*map(type, listed)} <= {str})
    weight = budget.weigh(listed) * (1 if is_plain else WRITTEN) + between * len(listed)
    budget.work((8 if is_plain else _EACH) * len(listed) + weight)
    budget.fit(weight)


def formatted(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Cost of the filter ``format``, which is ``%``."""
    values = _values(args, named)
    measure_percents(budget, _text(budget, args[0]) if args else "", [*values, named])


def formatted_fields(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    measure_fields(budget, args[0], _values(args, named))


def items(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Cost of a step for each item, as it comes: a filter, a test, an attribute."""
    if not args or not isinstance(args[0], str | list | tuple | dict | range):
        return None
    _attributes(budget, _EACH, args, named)
    return budget.timed(args[0]) if len(args[0]) > _EACH else None


def pairs(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Cost of ``items``, whose pairs are counted as they come."""


def _attributes(budget: Budget, each: int, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Spend what a path of attributes costs for each item."""
    paths = [one for one in _values(args, named) if isinstance(one, str)]
    parts = 1 + sum(one.count(".") + one.count(",") for one in paths)
    budget.work(each * len(args[0]) * parts)


def listing(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> list[Any] | None:
    if not args:
        return None
    value = args[0]
    if isinstance(value, str):
        budget.work(8 * len(value))
        budget.make((8 if value.isascii() else TEXT + 16) * len(value))
        return None
    listed = listed_of(budget, value)
    if isinstance(listed, Sized):
        budget.work(8 * len(listed))
        budget.make(32 * len(listed) if isinstance(listed, range) else 0)
    return listed if listed is not value else None


def sorted_items(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> list[Any] | None:
    """Cost of sorting: each item is compared with the logarithm of their number."""
    if not args:
        return None
    listed = listed_of(budget, args[0])
    if isinstance(listed, Sized):
        count, weight = len(listed), budget.weigh(listed)
        budget.work((_EACH * count + weight) * count.bit_length())
        budget.fit(2 * weight + TEXT * count)
        _attributes(budget, _ATTRIBUTE, (listed, *args[1:]), named)
    return listed if listed is not args[0] else None


def unique(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> list[Any] | None:
    """Cost of a set: all items that collide are compared; texts do not."""
    if not args:
        return None
    listed = listed_of(budget, args[0])
    if isinstance(listed, Collection):
        count = len(listed)
        weight = budget.weigh(listed)
        is_plain = len(args) < 3 and "attribute" not in named and {*map(type, listed)} <= {str}
        budget.work(weight + _EACH * count if is_plain else count * (weight + 4 * count))
        budget.fit(weight + 2 * TEXT * count)
        _attributes(budget, _ATTRIBUTE, (listed, *args[1:]), named)
    return listed if listed is not args[0] else None


def summed(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> list[Any] | None:
    if not args:
        return None
    listed = listed_of(budget, args[0])
    if isinstance(listed, Sized):
        weight = budget.weigh(listed)
        budget.work(weight)
        if any(isinstance(one, list | tuple) for one in _values(args, named)):
            budget.fit(weight * weight)  # lists that are added up are copied each time
        _attributes(budget, _ATTRIBUTE, (listed, *args[1:]), named)
    return listed if listed is not args[0] else None


def rows(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> list[Any] | None:
    """Cost of ``batch`` and ``slice``, which make rows of a length or of a number."""
    if not args:
        return None
    listed = listed_of(budget, args[0])
    if isinstance(listed, Sized):
        weight = budget.weigh(listed)
        budget.work(_EACH * len(listed))
        budget.make(TEXT * (len(listed) + 1))
        budget.fit(weight + TEXT * (len(listed) + 1) * max(1, _number(_values(args, named))))
    return listed if listed is not args[0] else None


def indent(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    text = _text(budget, args[0]) if args else ""
    values = _values(args, named)
    width = max([4, _number(values), *(budget.weigh(one) for one in values)])
    budget.work(8 * len(text))
    lines = sum(map(text.count, _LINES)) + 1
    budget.fit(budget.weigh(text) + lines * (width + 2 * TEXT))


def wrap(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Cost of ``wordwrap``: it takes the square of the length for long words."""
    text = _text(budget, args[0]) if args else ""
    longest = max([1, *(budget.weigh(one) for one in _values(args, named))])
    budget.work(len(text) * len(text))
    budget.fit(len(text) * (longest + TEXT))


def as_json(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Cost of JSON: six characters for one at most, and an indentation for each item.

    What an iterator gives is written as a list, as other engines of templates do.
    """
    is_iterator = bool(args) and isinstance(args[0], Counted)
    if is_iterator:
        args = (listed_of(budget, args[0]), *args[1:])
        budget.check_depth(args[0])
    weight = budget.weigh(args[0]) if args else 0
    values = _values(args, named)
    indent = named.get("indent", args[2] if len(args) > 2 else None)
    width = sum(budget.weigh(one) for one in values if not isinstance(one, int))
    if indent is not None:
        one = max(0, indent) if isinstance(indent, int) else budget.weigh(indent)
        width += TEXT + (1 + budget.depth(args[0])) * one
    items = budget.count_items(args[0]) if args else 0
    most = _ESCAPED * weight + items * width
    budget.work(most + (_EACH if indent is None else 4 * _EACH) * items)
    budget.fit(most)
    return args[0] if is_iterator else None


def escape(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    text = _text(budget, args[0]) if args else ""
    budget.work(_ESCAPED * len(text))
    budget.fit(_ESCAPED * budget.weigh(text))


def string(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    if args and not isinstance(args[0], str):
        most = WRITTEN * budget.weigh(args[0])
        budget.work(most)
        budget.fit(most)


def parse_number(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Cost of a number that is read from a text: the square of its length."""
    if args and isinstance(args[0], str):
        budget.work(len(args[0]) * (1 + len(args[0]) // 16))


def rounded(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    measure_bits(4 * _number(_values(args, named)))


def modulo(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Cost of ``odd``, ``even`` and ``divisibleby``: of ``%``, which also formats texts."""
    if args:
        operate(budget, "%", args[0], next(iter(_values(args, named)), 2))


def small(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    budget.make(TEXT)


def dictionary(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> list[Any] | None:
    """Cost of ``dict()`` and ``namespace()``."""
    budget.make(8 * TEXT)
    keys: list[Any] = list(named)
    listed = listed_of(budget, args[0]) if args else ()
    if isinstance(listed, Mapping):
        keys += listed
    elif isinstance(listed, Collection):
        if len(listed) <= MOST_KEYS:
            budget.work(_EACH * len(listed))
            rows = [one for one in listed if isinstance(one, list | tuple | str) and len(one) == 2]
            keys += [row[0] for row in rows] if len(rows) == len(listed) else listed
        else:
            keys += listed
    make_dictionary(budget, keys)
    return listed if isinstance(listed, list) and listed is not args[0] else None


def copied(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    budget.make(2 * TEXT * (1 + len(args[0])))


def viewed(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Cost of a view, which is kept until the rendering ends once it is weighed."""
    budget.make(2 * TEXT)


def got(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    if len(args) > 1 and type(args[1]) is not str:
        budget.work(budget.weigh(args[1]))


def in_list(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    if len(args) > 1:
        contained(budget, args[1], args[0])


def named_attribute(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Refuse a name that is no text: jinja writes it as one."""
    if not all(isinstance(name, str) for name in _values(args, named)):
        raise SecurityError("it reads an attribute whose name is no text")


def numbers(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Refuse a range of large integers, each of which takes as many bytes."""
    if any(isinstance(one, int) and one.bit_length() > 64 for one in args):
        raise SecurityError("it made a range of numbers of more than 64 bits")
    budget.make(TEXT)  # jinja allows 100,000 numbers


def said(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    for value in (*args, *named.values()):
        string(budget, (value,), {})
