"""Convert message contents that are lists of parts to the form that a template expects.

Some templates loop over the parts of a content; others expect a text, and would write the list as
Python prints it. The syntax tree of the template shows which kind it is, as in vLLM. Knows nothing
of tokens, and renders nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jinja2 import nodes

from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from asyncgen.types import Message


_FILTERS = frozenset({"list", "map", "reject", "rejectattr", "select", "selectattr"})
"""Filters that loop over their value, or return it as a list."""


def only_texts(messages: Sequence[Message]) -> list[Message]:
    """Refuse parts other than text.

    Args:
        messages: Checked by :func:`~asyncgen.text.chat_template.check_messages`.

    Returns:
        The messages; a part that is a plain string becomes one of type ``text``.

    Raises:
        InvalidRequestError: Names the part of another type.
    """
    return [_only_texts(message, f"messages[{i}]") for i, message in enumerate(messages)]


def joined_texts(messages: Sequence[Message]) -> list[Message]:
    """Join the parts of each content that has only texts, one part a line.

    Args:
        messages: Checked messages; a content with other parts stays as it is.
    """
    return [
        {**message, "content": "\n".join(part["text"] for part in message["content"])}
        if has_parts(message) and all(map(is_text, message["content"]))
        else message
        for message in messages
    ]


def has_parts(message: Message) -> bool:
    """Tell whether the content of a checked message is a list of parts."""
    content = message.get("content")
    return content is not None and not isinstance(content, str)


def is_text(part: object) -> bool:
    """Tell whether a part of a content holds a text."""
    return isinstance(part, Mapping) and isinstance(part.get("text"), str)


def reads_parts(program: nodes.Template) -> bool:
    """Tell whether a template loops over the parts of a content.

    Args:
        program: The template, parsed.
    """
    names = _names_of_contents(program)
    read: list[nodes.Node] = [loop.iter for loop in program.find_all(nodes.For)]
    read += [each for each in program.find_all(nodes.Filter) if each.name != "list"]
    return any(_is_content(each, names) for each in read)


def _names_of_contents(program: nodes.Template) -> set[str]:
    """Find the variables and the arguments of macros that are a content."""
    named = list(_named(program))
    readers: dict[str, list[tuple[str, nodes.Node]]] = {}
    for each in named:
        for read in (each[1], *each[1].find_all(nodes.Name)):
            if isinstance(read, nodes.Name):
                readers.setdefault(read.name, []).append(each)
    names = {"content"}
    tried = named
    while tried:
        found = {name for name, value in tried if name not in names and _is_content(value, names)}
        names |= found
        tried = [each for name in found for each in readers.get(name, ())]
    return names


def _named(program: nodes.Template) -> Iterable[tuple[str, nodes.Node]]:
    """Yield the variables and the arguments of macros, each with a value that it is given."""
    for assignment in program.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name):
            yield assignment.target.name, assignment.node
    macros = {macro.name: macro for macro in program.find_all(nodes.Macro)}
    for call in program.find_all(nodes.Call):
        macro = macros.get(call.node.name) if isinstance(call.node, nodes.Name) else None
        for argument, given in zip(macro.args if macro else (), call.args, strict=False):
            yield argument.name, given


def _is_content(expression: nodes.Node | None, names: set[str]) -> bool:
    """Tell whether an expression is a content, or a selection of its parts."""
    match expression:
        case nodes.Name():
            return expression.name in names
        case nodes.Getattr():
            return expression.attr == "content"
        case nodes.Getitem(arg=nodes.Const(value="content")):
            return True
        case nodes.Getitem(arg=nodes.Slice()):
            return _is_content(expression.node, names)
        case nodes.Filter():
            return expression.name in _FILTERS and _is_content(expression.node, names)
        case nodes.CondExpr():
            return any(_is_content(each, names) for each in (expression.expr1, expression.expr2))
    return False


def _only_texts(message: Message, name: str) -> Message:
    if not has_parts(message):
        return message
    content: Sequence[Any] = message["content"]
    parts = [_text_part(part, f"{name}.content[{j}]") for j, part in enumerate(content)]
    return {**message, "content": parts}


def _text_part(part: Any, name: str) -> Mapping[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if part.get("type") != "text":
        allowed = 'only parts of type "text" are read; leave out the others'
        raise InvalidRequestError(f"{name}.type", part.get("type"), allowed)
    if not isinstance(part.get("text"), str):
        raise InvalidRequestError(f"{name}.text", part.get("text"), "give a text")
    return part
