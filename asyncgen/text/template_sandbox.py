"""Limit the steps, the time and the text of a jinja template from a stranger.

Steps are iterations of loops and calls; calls that count them are inserted into the template before
it is compiled. A value that one operation could make huge (``'x' * 10**9``, ``'%999999999d'``,
``ljust``) is measured before it is made. Each rendering has its own budget.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

T = TypeVar("T")
B = TypeVar("B", nodes.For, nodes.Macro, nodes.CallBlock)

MOST_STEPS = 1_000_000
"""Steps of one rendering. A conversation of a thousand messages takes some ten thousand."""

MOST_CHARACTERS = 32 * 2**20
"""Characters made in one rendering, including parts that are joined later."""

TIMES = 8
"""Further characters for each one that is rendered: templates cut and join their input."""

MOST_SECONDS = 10.0
"""Seconds of one rendering, checked at its steps."""

_MOST_BITS = 2**16
_FOLDED = 2**16  # characters of a constant that is computed when a template is compiled
_CONTAINER = 16  # weight of a container beside its items: it is kept until the rendering ends
_DIGITS = re.compile(r"\d+")
_CONTAINERS = (list, tuple, dict)


class Budget:
    """Remaining steps, characters and time of a rendering."""

    __slots__ = ("_characters", "_deadline", "_most", "_steps", "_weights")

    def __init__(self, characters: int) -> None:
        """Begin with so many characters, and all steps and seconds of a rendering."""
        self._steps = MOST_STEPS
        self._characters = self._most = characters
        self._deadline = time.monotonic() + MOST_SECONDS
        # By identity; the entry keeps the object alive, so its identity stays unique.
        self._weights: dict[int, tuple[object, int]] = {}

    def step(self, characters: int = 0) -> None:
        """Count a step, and the characters of the template that it writes.

        Raises:
            SecurityError: No step is left.
        """
        self._steps -= 1
        if self._steps < 0:
            raise SecurityError(f"it took more than {MOST_STEPS} steps")
        if self._steps % 8 == 0 and time.monotonic() > self._deadline:
            raise SecurityError(f"it took more than {MOST_SECONDS:g} s")
        if characters:
            self.make(characters)

    def make(self, characters: int) -> None:
        """Count so many characters, or other items.

        Raises:
            SecurityError: They are too many.
        """
        self._characters -= characters
        if self._characters < 0:
            self.fit(1)

    def fit(self, characters: int) -> None:
        """Refuse a value of so many characters.

        Raises:
            SecurityError: It is too large.
        """
        if characters > self._characters:
            raise SecurityError(f"it made more than {self._most} characters")

    def grant(self, given: object) -> None:
        """Enlarge the budget in proportion to the input."""
        more = TIMES * self.weigh(given)
        self._characters += more
        self._most += more

    def weigh(self, value: object) -> int:
        """Count the items and characters of a value, repeated ones each time.

        Nothing in the sandbox changes a container, so each is measured once.
        """
        if isinstance(value, str | bytes):
            return len(value)
        if isinstance(value, range):
            return 8 * len(value)
        if not isinstance(value, _CONTAINERS):
            return 8
        known = self._weights.get(id(value))
        if known is not None:
            return known[1]
        weight = 2 + sum(map(self.weigh, value))
        if isinstance(value, dict):
            weight += sum(map(self.weigh, value.values()))
        self._weights[id(value)] = (value, weight)
        return weight


_budget: ContextVar[Budget] = ContextVar("budget")


@contextmanager
def rendering(given: object = None) -> Iterator[None]:
    """Run the block with a new budget.

    Args:
        given: Input of the template; a larger one gets a larger budget.
    """
    budget = Budget(MOST_CHARACTERS)
    budget.grant(given)
    token = _budget.set(budget)
    try:
        yield
    finally:
        _budget.reset(token)


def _left() -> Budget:
    budget = _budget.get(None)
    return Budget(_FOLDED) if budget is None else budget


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Environment for templates of strangers, with a budget for each rendering; see `rendering`."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, **options: Any) -> None:
        """Take the options of jinja's environment."""
        super().__init__(finalize=_written, **options)
        for name, function in self.filters.items():
            self.filters[name] = bounded(name, function)
        self.globals["namespace"] = _Names
        for name in ("lipsum", "cycler"):  # which make texts and containers without calls
            del self.globals[name]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        parsed = super()._parse(source, name, filename)
        _Counting().visit(parsed)  # in place
        parsed.set_environment(self)
        return parsed

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function from a template, if it is safe and its result not too large."""
        if function is _step or function is _join or function is _made:
            return function(*args)
        _left().step()
        # The sandbox wraps the methods that format.
        method = getattr(function, "__wrapped__", function)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | bytes):
            named = {name: one for name, one in kwargs.items() if name[:1] != "_"}
            _measure_method(method.__name__, owner, args, named)
        return _made(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute a product, a power, a sum or a formatted text that is not too large."""
        if operator == "+" and type(left) is str and type(right) is str:
            _left().make(len(left) + len(right))  # before it is made, and by far the most
            return left + right
        _measure_operator(operator, left, right)
        return _made(super().call_binop(context, operator, left, right))


class _Names(Namespace):
    """A namespace with a short repr, since it may contain itself."""

    def __repr__(self) -> str:
        return "<Namespace>"


def _step(characters: int) -> str:
    _left().step(characters)
    return ""


def _made(value: T) -> T:
    """Count a value that was made."""
    if isinstance(value, str | bytes):
        _left().make(len(value))
    elif isinstance(value, _CONTAINERS):
        budget = _left()
        budget.make(_CONTAINER + len(value))
        budget.fit(budget.weigh(value))
    return value


def _join(*parts: object) -> str:
    """Join values, as ``~`` does."""
    _left().make(sum(map(_left().weigh, parts)))
    return "".join(map(str, parts))


def _written(value: T) -> T:
    """Count the text that an expression writes."""
    budget = _left()
    budget.make(len(value) if isinstance(value, str) else budget.weigh(value))
    return value


class _Counting(NodeTransformer):
    """Inserts a step into each body that may run more than once, and measures new containers."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        """Count iterations, including those that a condition leaves out."""
        counted = self._counted(node)
        if counted.test is not None:
            counted.test = nodes.And(nodes.Not(_call(_step, [nodes.Const(0)])), counted.test)
        return counted

    def visit_Macro(self, node: B) -> B:
        """Count calls of macros and blocks."""
        return self._counted(node)

    visit_CallBlock = visit_Macro

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """Measure the result of ``~``."""
        self.generic_visit(node)
        return _call(_join, node.nodes)

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Node:
        """Measure a list or a dictionary, which may contain another one several times."""
        return _call(_made, [self.generic_visit(node)])

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        """Measure a tuple that is no target of an assignment."""
        visited = self.generic_visit(node)
        return _call(_made, [visited]) if node.ctx == "load" else visited

    def _counted(self, node: B) -> B:
        self.generic_visit(node)
        data = (one for part in node.body for one in _data(part))
        step = _call(_step, [nodes.Const(sum(len(one.data) for one in data))])
        node.body.insert(0, nodes.ExprStmt(step))
        return node


def _data(node: nodes.Node) -> Iterable[nodes.TemplateData]:
    """List the template text within a node."""
    return [node] if isinstance(node, nodes.TemplateData) else node.find_all(nodes.TemplateData)


def _call(function: Callable[..., Any], arguments: list[Any]) -> nodes.Call:
    name = nodes.ImportedName(f"{__name__}.{function.__name__}")
    return nodes.Call(name, arguments, [], None, None)


def _measure_operator(operator: str, left: Any, right: Any) -> None:
    budget = _left()
    are_numbers = isinstance(left, int) and isinstance(right, int)
    if operator == "*":
        for one, other in ((left, right), (right, left)):
            if isinstance(one, Sized) and isinstance(other, int):
                budget.fit(budget.weigh(one) * other)
        if are_numbers:
            _measure_bits(left.bit_length() + right.bit_length())
    elif operator == "**" and are_numbers:
        _measure_bits(left.bit_length() * abs(right))
    elif operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
        budget.fit(len(left) + len(right))
    elif operator == "%" and isinstance(left, str | bytes):
        measure_format(left, right)


def _measure_bits(bits: int) -> None:
    if bits > _MOST_BITS:
        raise SecurityError(f"it computed a number of more than {_MOST_BITS} bits")


def measure_format(form: str | bytes, given: object) -> None:
    """Refuse a width, a precision or a repetition that makes too much text.

    Args:
        form: Format with directives of any kind.
        given: The values, or one value.

    Raises:
        SecurityError: It might make more than the rendering has left.
    """
    text = form if isinstance(form, str) else form.decode("latin-1")
    values: list[Any] = list(given.values()) if isinstance(given, Mapping) else [given]
    if isinstance(given, tuple | list):
        values = list(given)
    longest = max([8, *map(_left().weigh, values)])
    widths = [int(digits[:12]) for digits in _DIGITS.findall(text)]
    if "*" in text or text.count("{") > 1:  # a value may be a width
        widths += [abs(value) for value in values if isinstance(value, int)]
    # Each directive may write any of the values in any of the widths.
    directives = text.count("%") + text.count("{")
    _left().fit(len(text) + directives * max([longest, *widths]))


def _measure_method(
    name: str, text: str | bytes, args: Sequence[Any], named: Mapping[str, Any]
) -> None:
    """Measure the result of a method of a text."""
    numbers = [abs(one) for one in (*args, *named.values()) if isinstance(one, int)]
    if name in ("ljust", "rjust", "center", "zfill"):
        _left().fit(max([len(text), *numbers]))
    elif name == "expandtabs":
        _left().fit(len(text) * max([8, *numbers]))
    elif name == "join" and args and isinstance(args[0], Sized):
        _left().fit(len(text) * len(args[0]) + _left().weigh(args[0]))
    elif name == "format":
        measure_format(text, [*args, *named.values()])
    elif name == "format_map":
        measure_format(text, args[0] if args else ())
    elif name in ("replace", "translate") and args:
        _measure_replace(text, args)


def _measure_replace(text: str | bytes, args: Sequence[Any]) -> None:
    if isinstance(args[0], Mapping):
        new = max(map(_left().weigh, args[0].values()), default=0)
        _left().fit(len(text) * new)
    elif len(args) > 1 and isinstance(args[0], type(text)):
        found = text.count(args[0])  # type: ignore[arg-type]  # both are of one kind
        _left().fit(len(text) + found * _left().weigh(args[1]))


def bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a filter measure its arguments and count its result.

    Args:
        name: Its name in templates.
        function: The filter.
    """
    is_measured = name in _MULTIPLIES or name in ("center", "format", "replace", "round")
    first = int(hasattr(function, "jinja_pass_arg"))  # a context comes before the value

    @wraps(function)
    def measured(*args: Any, **kwargs: Any) -> Any:
        _left().step()
        if is_measured and len(args) > first:
            if name in _MULTIPLIES and isinstance(args[first], Iterator):
                args = (*args[:first], list(args[first]), *args[first + 1 :])
            _measure_filter(name, args[first], args[first + 1 :], kwargs)
        return _made(function(*args, **kwargs))

    return measured


_MULTIPLIES = frozenset({"batch", "indent", "join", "pprint", "slice", "sum", "tojson", "wordwrap"})
"""Filters that may repeat an argument, or a number of characters, for each item or line."""


def _measure_filter(name: str, value: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Measure the result of a filter."""
    budget, values = _left(), [*args, *named.values()]
    most = max([0, *(abs(one) for one in values if isinstance(one, int))])
    if name == "format":
        measure_format(str(value), values)
    elif name == "replace":
        _measure_replace(str(value), [str(one) for one in values])
    elif name == "round":
        _measure_bits(4 * most)
    elif name == "center":
        budget.fit(most)
    elif name in _MULTIPLIES:
        weight = budget.weigh(value)
        is_text = isinstance(value, str)
        pieces = value.count("\n") + 1 if is_text and name == "indent" else weight
        longest = max([0, *(budget.weigh(one) for one in values)])
        widest = most if name in ("batch", "slice", "indent", "tojson") else 0
        if name == "sum" and any(isinstance(one, _CONTAINERS) for one in values):
            longest = weight  # lists that are added up are copied each time
        budget.fit(weight + pieces * max(longest, widest))
