"""Run the jinja template of a stranger within limits of steps, work, text and time.

Steps are iterations of loops and calls. What a call may cost at most is told before it runs
(:mod:`asyncgen.text.template_costs`); what stands in no table is refused
(:mod:`asyncgen.text.template_table`). Operators, literals, slices and the bodies of loops are
rewritten before the template is compiled (:mod:`asyncgen.text.template_rewriting`), so that they
are measured as well. Each rendering has its own budget (:mod:`asyncgen.text.template_budget`).
"""

from __future__ import annotations

from functools import wraps
from types import BuiltinMethodType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from jinja2 import pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import BlockReference, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, modifies_known_mutable
from jinja2.utils import Joiner, Namespace

from asyncgen.errors import clip
from asyncgen.text.template_budget import TEXT, Budget, Counted, current_budget
from asyncgen.text.template_costs import (
    compare,
    contained,
    flat,
    join_method,
    listed_of,
    make_dictionary,
    operate,
)
from asyncgen.text.template_formats import WRITTEN
from asyncgen.text.template_rewriting import rewrite
from asyncgen.text.template_table import (
    FILTERS,
    FUNCTIONS,
    METHODS,
    TESTS,
    methods_of,
    refuse,
    refuse_method,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn

    from jinja2 import nodes
    from jinja2.runtime import Context

    from asyncgen.text.template_costs import Cost

_PIECE = 16  # of a text in the list of those that are written
_SMALL = 2**32  # of integers whose sums and products are small
_LARGE = 2**16  # characters of a text from which its width is measured before it is made
_MOST_NAME = 120  # characters of a name that an error repeats
_TEXTS = {str}


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Environment for templates of strangers, with a budget for each rendering; see `rendering`."""

    intercepted_binops = frozenset({"*", "/", "//", "**", "%", "-"})  # + is rewritten
    intercepted_unops = frozenset({"+", "-"})

    def __init__(
        self,
        *,
        filters: Mapping[str, Callable[..., Any]],
        functions: Mapping[str, Callable[..., Any]],
        tests: Mapping[str, Callable[..., Any]],
        **options: Any,
    ) -> None:
        """Take the options of jinja's environment.

        Args:
            filters: Replaced filters; each stands in the table of costs, as do the others.
            functions: Further functions.
            tests: Replaced tests.
            **options: Of jinja.
        """
        super().__init__(finalize=_written, undefined=_Undefined, optimized=False, **options)
        replaced: dict[str, Callable[..., Any]] = {**self.filters, **filters}
        for name, function in replaced.items():
            cost = FILTERS.get(name)
            if cost is None:
                self.filters[name] = _refused("filters", name)
            else:
                self.filters[name] = bounded(function, cost)
        own: Any = self.tests
        asked: dict[str, Callable[..., Any]] = {**own, **tests, "in": _is_in}
        for name, function in asked.items():
            cost = TESTS.get(name)
            if cost is None:
                self.tests[name] = _refused("tests", name)
            else:
                self.tests[name] = function if cost is flat else bounded(function, cost)
        self.filters |= _INSERTED
        self.globals |= {"namespace": _Names, **functions}
        for name in ("lipsum", "cycler"):  # which make texts and containers without calls
            del self.globals[name]
        self._functions = {self.globals[name]: cost for name, cost in FUNCTIONS.items()}

    def handle_exception(self, source: str | None = None) -> NoReturn:
        """Raise the error that is handled, as it is where a template was rendered.

        Jinja writes a traceback with lines of the template: a ring of thousands of objects for a
        deep one, over which the collector stops the process for a sixth of a second.
        """
        if source is None:
            raise
        super().handle_exception(source)

    def _generate(self, source: nodes.Template, *args: Any, **options: Any) -> str:
        rewrite(source)
        source.set_environment(self)
        return super()._generate(source, *args, **options)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Read an attribute or an entry, of a dictionary without a detour."""
        if type(obj) is dict and attribute not in _OF_PLAIN[dict]:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Read an entry or an attribute; a tuple that is a key is measured."""
        if isinstance(argument, tuple):
            current_budget().work(current_budget().weigh(argument))
        try:
            return obj[argument]
        except (TypeError, LookupError):
            names = _OF_PLAIN.get(type(obj))
            if names is None or type(argument) is not str or argument in names:
                return super().getitem(obj, argument)
            return self.undefined(obj=obj, name=argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Tell as jinja does, of what most templates read without its many questions."""
        if type(obj) in _ASKED and not attr.startswith("_") and attr not in _CHANGING:
            return True
        return super().is_safe_attribute(obj, attr, value)

    def call_filter(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a filter by its name, as ``map`` does."""
        if name in _INSERTED:
            raise refuse("the filters", name, FILTERS)
        return super().call_filter(name, *args, **kwargs)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function or a method from a template, if it stands in a table."""
        budget = current_budget()
        budget.step()
        kind = type(function)
        if kind in _OF_TEMPLATES or isinstance(function, Undefined):
            if args or kwargs:
                budget.work(16 * (len(args) + len(kwargs)))
            return super().call(context, function, *args, **kwargs)
        kwargs.pop("_loop_vars", None)
        kwargs.pop("_block_vars", None)
        # The sandbox wraps the methods that format.
        method = getattr(function, "__wrapped__", function) if kind is FunctionType else function
        if type(method) is BuiltinMethodType or type(method) is MethodType:
            owner, name = method.__self__, method.__name__
            methods = METHODS.get(type(owner)) or methods_of(owner)[1]
            cost = methods.get(name)
            if cost is None:
                raise refuse_method(owner, name)
            if cost is join_method and args:
                args = (listed_of(budget, args[0]), *args[1:])
            if cost is not flat:
                _check_depth(budget, (owner, *args), kwargs)
            cost(budget, (owner, *args), kwargs)
        else:
            cost = self._functions.get(function) if kind in _HASHABLE else None
            if cost is None:
                name = getattr(function, "__name__", kind.__name__)
                raise refuse("the functions", str(name), FUNCTIONS)
            _check_depth(budget, args, kwargs)
            changed = cost(budget, args, kwargs)
            if changed is not None:
                args = (changed, *args[1:])
        result = function(*args, **kwargs)
        return result if cost is flat else budget.count(result)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute a product, a power, a difference or a formatted text that is not too large."""
        if type(left) is int and type(right) is int and operator != "**":
            if -_SMALL < left < _SMALL and -_SMALL < right < _SMALL:
                return self.binop_table[operator](left, right)
        return _operated(current_budget(), self.binop_table[operator], operator, left, right)

    def call_unop(self, context: Context, operator: str, arg: Any) -> Any:
        """Compute a number with another sign, and count it."""
        if type(arg) is int and -_SMALL < arg < _SMALL:
            return self.unop_table[operator](arg)
        return current_budget().count(self.unop_table[operator](arg))


class _Names(Namespace):
    """A namespace with a short repr, since it may contain itself."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Undefined(Undefined):
    """An undefined value whose message repeats no long name."""

    __slots__ = ()

    def __init__(self, hint: Any = None, obj: Any = None, name: Any = None, **more: Any) -> None:
        if isinstance(name, str):
            name = name if len(name) <= _MOST_NAME else clip(name, _MOST_NAME)
        elif not isinstance(name, int | None):
            name = type(name).__name__
        if obj is None:
            super().__init__(hint, name=name, **more)
        else:
            super().__init__(hint, obj, name, **more)


_FLAT = frozenset({str, int, bool, type(None), Counted, LoopContext})
_OF_PLAIN = {kind: frozenset(dir(kind)) for kind in (dict, list, str, int, float, bool)}
_ASKED = {*_OF_PLAIN, LoopContext, _Names}
_MUTABLE: tuple[list[Any], dict[str, Any]] = ([], {})
_CHANGING = frozenset(
    name for one in _MUTABLE for name in dir(one) if modifies_known_mutable(one, name)
)
_OF_TEMPLATES = (Macro, BlockReference, LoopContext, Joiner)
_HASHABLE = (FunctionType, type)


def _check_depth(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Refuse arguments that are nested too deeply, whatever a call does with them."""
    for value in args:
        if type(value) not in _FLAT:
            budget.check_depth(value)
    for value in named.values():
        if type(value) not in _FLAT:
            budget.check_depth(value)


def _spend_arguments(budget: Budget, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Spend what arguments cost beside the value: jinja may hash, compare or write each."""
    for value in (*args, *named.values()) if named else args:
        if type(value) not in _FLAT:
            budget.work(WRITTEN * budget.weigh(value))


def _step(characters: int, work: int) -> str:
    """Count a step, the characters of the template that it writes, and its work."""
    current_budget().step(characters, work)
    return ""


def _made(value: Any) -> Any:
    """Count a list, a tuple or a dictionary that is a literal."""
    return current_budget().count(value)


def _dictionary(pairs: tuple[tuple[Any, Any], ...]) -> dict[Any, Any]:
    """Make a dictionary of measured keys."""
    budget = current_budget()
    make_dictionary(budget, [key for key, _ in pairs])
    made: dict[Any, Any] = budget.count(dict(pairs))
    return made


def _add(*values: Any) -> Any:
    """Add values, as ``+`` does."""
    budget = current_budget()
    if {*map(type, values)} == _TEXTS:
        return _joined(budget, values)
    total, *others = values
    for value in others:
        total = _operated(budget, _plus, "+", total, value)
    return total


def _plus(left: Any, right: Any) -> Any:
    return left + right


def _operated(
    budget: Budget, function: Callable[[Any, Any], Any], operator: str, left: Any, right: Any
) -> Any:
    if type(left) is str and type(right) is str and operator == "+":
        return _joined(budget, (left, right))
    operate(budget, operator, left, right)
    return budget.count(function(left, right))


def _join(*parts: Any) -> str:
    """Join values, as ``~`` does."""
    budget = current_budget()
    if {*map(type, parts)} != _TEXTS:
        most = 10 * sum(budget.weigh(part) for part in parts if not isinstance(part, str))
        budget.work(most)
        budget.fit(most)
        parts = tuple(map(str, parts))
    return _joined(budget, parts)


def _joined(budget: Budget, texts: tuple[str, ...]) -> str:
    size = sum(map(len, texts))
    if size > _LARGE:
        budget.fit(size if all(map(str.isascii, texts)) else 4 * size)
    joined = "".join(texts)
    budget.make(TEXT + (size if joined.isascii() else 4 * size))
    return joined


def _is_in(item: Any, container: Any) -> bool:
    return item in contained(current_budget(), item, container)


def _contains(container: Any, item: Any) -> bool:
    return item in contained(current_budget(), item, container)


def _compared(left: Any, *others: Any) -> bool:
    """Compare values one after the other: an operator, a value, and so on."""
    budget = current_budget()
    for operator, right in zip(others[::2], others[1::2], strict=True):
        if operator in ("in", "notin"):
            holds = (left in contained(budget, left, right)) is (operator == "in")
        else:
            compare(budget, (left, right), {})
            holds = _COMPARISONS[operator](left, right)
        if not holds:
            return holds
        left = right
    return holds


def _slice(value: Any, start: Any, stop: Any, step: Any) -> Any:
    """Cut out a part, as ``[start:stop:step]`` does.

    Raises:
        SecurityError: A bound is no integer: a mapping hashes it, however deep it is.
    """
    for bound in (start, stop, step):
        if not isinstance(bound, int | Undefined | None):
            raise SecurityError(
                f"it cut out a part with a bound of the type `{clip(type(bound).__name__, 80)}`, "
                "which is no integer"
            )
    part = slice(start, stop, step)
    if not isinstance(value, str | list | tuple):
        return value[part]
    budget = current_budget()
    size = len(range(*part.indices(len(value))))
    if isinstance(value, str):
        budget.fit(size if value.isascii() else 4 * size)
        return budget.count(value[part])
    budget.fit(8 * size)
    return budget.count(value[part])


def _unpacked(value: Any) -> Any:
    """Measure what is unpacked into arguments."""
    budget = current_budget()
    if isinstance(value, str):
        budget.make(TEXT * len(value))
    listed = listed_of(budget, value)
    if isinstance(listed, list | tuple | dict):
        budget.make(8 * len(listed))
        budget.work(16 * len(listed))
    return listed


@pass_context
def _written(context: Context, value: Any) -> Any:
    """Count the text that an expression writes."""
    budget = current_budget()
    if type(value) is str:
        budget.make(_PIECE + (len(value) if value.isascii() else 4 * len(value)))
    elif isinstance(value, str):
        budget.make(_PIECE + budget.weigh(value))
    else:
        most = 10 * budget.weigh(value)
        budget.work(most)
        budget.make(_PIECE + most)
    return value


_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda left, right: left == right,
    "ne": lambda left, right: left != right,
    "lt": lambda left, right: left < right,
    "lteq": lambda left, right: left <= right,
    "gt": lambda left, right: left > right,
    "gteq": lambda left, right: left >= right,
}

# Named so that no template can call them: see `BoundedEnvironment.call_filter`.
_INSERTED: dict[str, Callable[..., Any]] = {
    " add": _add,
    " compared": _compared,
    " contains": _contains,
    " dictionary": _dictionary,
    " join": _join,
    " made": _made,
    " slice": _slice,
    " step": _step,
    " unpacked": _unpacked,
}


def bounded(function: Callable[..., Any], cost: Cost) -> Callable[..., Any]:
    """Make a filter or a test spend its cost first, and count its result.

    Args:
        function: The filter.
        cost: Of one call.
    """
    first = int(hasattr(function, "jinja_pass_arg"))  # a context comes before the value

    @wraps(function)
    def measured(*args: Any, **kwargs: Any) -> Any:
        budget = current_budget()
        budget.step()
        given = args[first:] if first else args
        if cost is not flat:
            _check_depth(budget, given[:1], {})
            _spend_arguments(budget, given[1:], kwargs)
        changed = cost(budget, given, kwargs)
        if changed is not None:
            args = (*args[:first], changed, *args[first + 1 :])
        result = function(*args, **kwargs)
        return result if cost is flat else budget.count(result, given[0] if given else None)

    return measured


def _refused(what: str, name: str) -> Callable[..., Any]:
    """Make a filter or a test that stands in no table."""

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise refuse(f"the {what}", name, FILTERS if what == "filters" else TESTS)

    return refused
