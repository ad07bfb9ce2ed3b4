"""Rewrite a parsed template so that what costs beside calls is measured when it is rendered.

Sums, comparisons, slices, literals and unpacked arguments become filters of the sandbox, whose
names begin with a space so that no template can call them. Knows nothing of budgets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.visitor import NodeTransformer

from asyncgen.text.template_budget import TEXT
from asyncgen.text.template_costs import MOST_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable

B = TypeVar("B", nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)

MOST_NODES = 12_000
"""Parts of a template that is compiled; the largest of 226 real ones has 8,800."""

_BODY = 30  # parts as which a function counts that a macro, a block or a loop becomes
_OTHER = 18  # likewise, for the code that an include or an import becomes
_OTHERS = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)
_BODIES = (nodes.Block, nodes.CallBlock, nodes.For, nodes.Macro)
_AROUND = 8  # statements around a part that count as another part
_NODE = 4  # work of a part of an expression


def rewrite(program: nodes.Template) -> None:
    """Rewrite a template in place.

    Raises:
        SecurityError: It is too large, or escapes its texts.
    """
    check_size(program)
    _Measuring().visit(program)


def check_size(program: nodes.Template) -> None:
    """Refuse a parsed template of too many parts, which take long to compile.

    A part counts more for each statement around it, since jinja looks for names in all of it, and
    an expression that is written counts twice.

    Raises:
        SecurityError: It has too many.
    """
    size = 0.0
    parts: list[tuple[nodes.Node, int]] = [(program, 0)]
    while parts:
        part, level = parts.pop()
        size += 1 + level / _AROUND
        if isinstance(part, _BODIES):
            size += _BODY
        elif isinstance(part, nodes.Output):
            size += len(part.nodes)
        elif isinstance(part, _OTHERS):
            size += _OTHER
        if size > MOST_NODES:
            raise SecurityError(f"it has more than the {MOST_NODES} parts of a template")
        level += isinstance(part, nodes.Stmt)
        parts += [(each, level) for each in part.iter_child_nodes()]


class _Measuring(NodeTransformer):
    """Rewrites what has a cost beside calls, and inserts a step into each body that may repeat."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        """Count iterations, including those that a condition leaves out."""
        counted = self._counted(node)
        if counted.test is not None:
            step = _inserted(" step", nodes.Const(0), nodes.Const(_weight([counted.test])))
            counted.test = nodes.And(nodes.Not(step), counted.test)
        return counted

    def visit_Macro(self, node: B) -> B:
        """Count calls of macros and blocks."""
        return self._counted(node)

    visit_CallBlock = visit_Macro
    visit_Block = visit_Macro

    def visit_Output(self, node: nodes.Output) -> nodes.Output:
        """Write a text that the template has in quotes like the text around it."""
        self.generic_visit(node)
        node.nodes = [
            nodes.TemplateData(each.value, lineno=each.lineno)
            if isinstance(each, nodes.Const) and type(each.value) is str
            else each
            for each in node.nodes
        ]
        return node

    def visit_Neg(self, node: nodes.Neg) -> nodes.Node:
        """Write a negative number as one."""
        self.generic_visit(node)
        value = node.node.value if isinstance(node.node, nodes.Const) else None
        return (
            nodes.Const(-value) if isinstance(value, int) and value.bit_length() <= TEXT else node
        )

    def visit_Add(self, node: nodes.Add) -> nodes.Node:
        """Add all values of a sum at once."""
        values: list[nodes.Expr] = []
        first: nodes.Expr = node
        while isinstance(first, nodes.Add):
            values.append(first.right)
            first = first.left
        return _inserted(" add", *map(self.visit, [first, *reversed(values)]))

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """Measure the result of ``~``."""
        return _inserted(" join", *map(self.visit, node.nodes))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        """Measure what is compared, unless one side is a short constant."""
        if len(node.ops) == 1:
            operator, right = node.ops[0].op, node.ops[0].expr
            if _is_cheap(operator, node.expr, right):
                if operator in ("in", "notin"):
                    node.expr = self.visit(node.expr)
                    return node
                return self.generic_visit(node)
            if operator in ("in", "notin"):
                found = _inserted(" contains", self.visit(right), self.visit(node.expr))
                return found if operator == "in" else nodes.Not(found)
        pairs = [(nodes.Const(each.op), self.visit(each.expr)) for each in node.ops]
        return _inserted(
            " compared", self.visit(node.expr), *(one for pair in pairs for one in pair)
        )

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        """Measure a slice."""
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        return _inserted(" slice", node.node, *(each or nodes.Const(None) for each in bounds))

    def visit_Call(self, node: nodes.Call | nodes.Filter | nodes.Test) -> nodes.Node:
        """Measure arguments that are unpacked."""
        self.generic_visit(node)
        if node.dyn_args is not None:
            node.dyn_args = _inserted(" unpacked", node.dyn_args)
        if node.dyn_kwargs is not None:
            node.dyn_kwargs = _inserted(" unpacked", node.dyn_kwargs)
        return node

    visit_Filter = visit_Call
    visit_Test = visit_Call

    def visit_List(self, node: nodes.List) -> nodes.Node:
        """Measure a list, which may contain another one several times."""
        self.generic_visit(node)
        return _inserted(" made", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        """Measure a dictionary, before it is made unless its keys are texts."""
        keys = [pair.key for pair in node.items]
        if len(keys) > MOST_KEYS:
            raise SecurityError(
                f"it made a dictionary of {len(keys)} entries, more than {MOST_KEYS}"
            )
        self.generic_visit(node)
        if all(isinstance(key, nodes.Const) and isinstance(key.value, str) for key in keys):
            return _inserted(" made", node)
        pairs = [nodes.Tuple([pair.key, pair.value], "load") for pair in node.items]
        return _inserted(" dictionary", nodes.Tuple(pairs, "load"))

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        """Measure a tuple that is no target of an assignment."""
        self.generic_visit(node)
        return _inserted(" made", node) if node.ctx == "load" else node

    def visit_ScopedEvalContextModifier(self, node: nodes.EvalContextModifier) -> nodes.Node:
        """Refuse to escape each text for HTML, which no prompt needs."""
        raise SecurityError("the template calls `autoescape`, which templates may not call here")

    visit_EvalContextModifier = visit_ScopedEvalContextModifier

    def _counted(self, node: B) -> B:
        self.generic_visit(node)
        data = (one for part in node.body for one in _data(part))
        characters = sum(len(one.data) for one in data)
        work = _NODE * _weight(node.body)
        step = _inserted(" step", nodes.Const(characters), nodes.Const(work))
        node.body.insert(0, nodes.ExprStmt(step))
        return node


def _is_cheap(operator: str, left: nodes.Expr, right: nodes.Expr) -> bool:
    """Tell whether a comparison takes no time, whatever the values are."""
    if operator in ("in", "notin"):
        return isinstance(right, nodes.List | nodes.Tuple) and all(map(_is_short, right.items))
    if operator in ("eq", "ne"):
        return any(map(_is_short, (left, right))) or any(
            isinstance(each, nodes.Compare | nodes.Not | nodes.Test) for each in (left, right)
        )
    return any(isinstance(one, nodes.Const) and isinstance(one.value, int) for one in (left, right))


def _is_short(node: nodes.Expr) -> bool:
    return isinstance(node, nodes.Const) and (
        len(node.value) <= TEXT
        if isinstance(node.value, str)
        else not isinstance(node.value, int) or node.value.bit_length() <= TEXT
    )


def _weight(parts: Iterable[nodes.Node]) -> int:
    """Count the parts of expressions and statements."""
    return sum(1 + sum(1 for _ in part.find_all(nodes.Node)) for part in parts)


def _data(node: nodes.Node) -> Iterable[nodes.TemplateData]:
    """List the template text within a node."""
    return [node] if isinstance(node, nodes.TemplateData) else node.find_all(nodes.TemplateData)


def _inserted(name: str, value: nodes.Expr, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, list(arguments), [], None, None, lineno=value.lineno)
