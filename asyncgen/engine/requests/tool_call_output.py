"""Derive the output format of an answer from the tools that it may call.

``tool_choice`` asks for a call, of any tool or of one: then the whole answer is calls, behind the
reasoning where there is any. Otherwise an answer is free up to the marker of its first call, and a
grammar from there on where a tool is ``strict``. Where the answer has a shape of its own as well,
it is calls or that.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError
from asyncgen.structured.grammar_compiler import is_special
from asyncgen.structured.output_format import OutputFormat
from asyncgen.structured.schema_narrowing import narrow_schema
from asyncgen.structured.schema_support import UnsupportedSchemaError, check_schema
from asyncgen.text.tool_calls.argument_schema import UnwritableError
from asyncgen.text.tool_calls.call_grammar import CallGrammar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from asyncgen.text.tokenizer import Tokenizer
    from asyncgen.text.tool_calls.format_detection import ChatFormats
    from asyncgen.text.tool_calls.formats import ReasoningFormat, ToolFormat


def call_shape(
    tokenizer: Tokenizer, formats: ChatFormats, given: Mapping[str, Any], *, in_reasoning: bool
) -> OutputFormat | None:
    """The shape that tools ask for.

    Args:
        tokenizer: Of the model.
        formats: Of the model, with one of calls.
        given: Parameters of the request; tools may be called.
        in_reasoning: Whether the prompt ends within reasoning.

    Returns:
        The shape; ``None`` where calls are free as well.

    Raises:
        InvalidRequestError: The calls of this format cannot be enforced.
    """
    choice = given.get("tool_choice", "auto")
    functions = [tool["function"] for tool in given["tools"]]
    if choice == "auto" and not any(each.get("strict") for each in functions):
        return None
    name = "tools" if choice == "auto" else "tool_choice"
    _check_writable(formats, name, choice)
    writer = _writer(tokenizer, formats, given)
    assert formats.tools is not None
    with _refused(name, choice, formats.tools):
        if choice == "auto":
            tools = formats.tools
            return OutputFormat(
                name,
                "lark",
                writer.rest(tools.begin),
                after=tools.begin,
                may_never_begin=True,
                others=tools.others,
                at_start=tools.at_start,
                bare="{" if tools.bare and formats.reasoning is None else "",
            )
        reasoning = formats.reasoning
        if in_reasoning and reasoning is not None:
            return OutputFormat(name, "lark", writer.calls(), after=reasoning.end)
        return OutputFormat(name, "lark", writer.calls(_optional(reasoning)))


def told_shape(
    own: OutputFormat | None, formats: ChatFormats, *, in_reasoning: bool, is_told_apart: bool
) -> OutputFormat | None:
    """The shape of the text that the reader gets: reasoning stands before it where it is told.

    Args:
        own: What was asked for.
        formats: Of the model.
        in_reasoning: Whether the prompt ends within reasoning.
        is_told_apart: Whether the reader gets reasoning beside the text.
    """
    reasoning = formats.reasoning
    if own is None or reasoning is None or not in_reasoning or is_told_apart:
        return own
    return replace(own, after=reasoning.end)


def shape_beside_calls(
    own: OutputFormat, tokenizer: Tokenizer | None, formats: ChatFormats, given: Mapping[str, Any]
) -> OutputFormat:
    """The one shape of an answer that was asked for, or of calls instead of it.

    Args:
        own: What was asked for.
        tokenizer: Of the model.
        formats: Of the model, with one of calls.
        given: Parameters of the request; tools may be called.

    Raises:
        InvalidRequestError: The two cannot be had together.
    """
    choice = given.get("tool_choice", "auto")
    if choice != "auto" or not own.is_json or tokenizer is None:
        allowed = (
            f"`{own.parameter}` gives the answer another shape; leave one out"
            if own.is_json
            else f"only a JSON shape can stand beside calls, and `{own.parameter}` gives another"
        )
        raise InvalidRequestError("tool_choice" if choice != "auto" else "tools", choice, allowed)
    _check_writable(formats, "tools", choice)
    writer = _writer(tokenizer, formats, given)
    assert formats.tools is not None
    with _refused("tools", choice, formats.tools):
        source = writer.calls_or(json.loads(own.source))
    return replace(own, kind="lark", source=source)


def _check_writable(formats: ChatFormats, parameter: str, choice: object) -> None:
    """Refuse to enforce calls that only a declaration of answers describes.

    Raises:
        InvalidRequestError: No format says how calls are written.
    """
    if formats.tools is None:
        allowed = (
            "calls of this model are read by its `response_template`, and no known `tool_format`"
            " says how to write them; leave `strict` and `tool_choice` out"
        )
        raise InvalidRequestError(parameter, choice, allowed)


@contextmanager
def _refused(parameter: str, choice: object, tools: ToolFormat) -> Iterator[None]:
    """Refuse what a format cannot keep to, in the words of the request."""
    try:
        yield
    except UnwritableError as error:
        allowed = f"calls in the format {tools.name!r} cannot keep to all of its schema: {error}"
        raise InvalidRequestError(parameter, choice, allowed) from None


def _writer(tokenizer: Tokenizer, formats: ChatFormats, given: Mapping[str, Any]) -> CallGrammar:
    """Make the writer of the grammar of a request's calls."""
    assert formats.tools is not None
    choice = given.get("tool_choice", "auto")
    functions = [tool["function"] for tool in given["tools"]]
    if not isinstance(choice, str):
        functions = [each for each in functions if each["name"] == choice["function"]["name"]]
    is_free = choice == "auto"
    parameter = "tools" if is_free else "tool_choice"
    schemas = {
        each["name"]: {} if is_free and not each.get("strict") else _kept(each, parameter)
        for each in functions
    }
    is_single = given.get("parallel_tool_calls") is False or not isinstance(choice, str)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    added = {} if backend is None else backend.get_added_tokens_decoder()
    special = {
        token.content: number
        for number, token in added.items()
        if is_special(token.content, special=token.special)
    }
    return CallGrammar(formats.tools.syntax, schemas, special, is_single=is_single)


def _kept(function: Mapping[str, Any], parameter: str) -> dict[str, Any]:
    """The schema of a tool, as a grammar keeps to it.

    Raises:
        InvalidRequestError: No grammar does, or it is no schema.
    """
    schema = function.get("parameters") or {}
    try:
        check_schema(schema)
        kept: dict[str, Any] = narrow_schema(schema)
        return kept
    except UnsupportedSchemaError as error:
        raise InvalidRequestError(parameter, function["name"], str(error)) from None
    except (AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        allowed = f"its `parameters` are no JSON schema: {error}"
        raise InvalidRequestError(parameter, function["name"], allowed) from error


def _optional(reasoning: ReasoningFormat | None) -> ReasoningFormat | None:
    """The format of reasoning that an answer may begin with."""
    if reasoning is None or not reasoning.forced:
        return reasoning
    # What ends it is also what the answer goes on with.
    return replace(reasoning, end=f"{reasoning.end}<|start|>assistant")
