"""Collect the tool calls of one answer: names at once, arguments as they grow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from asyncgen.text.tool_calls.text_scanner import MalformedCallError
from asyncgen.types import ToolCallDelta

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from asyncgen.text.tool_calls.text_scanner import TextScanner


class EnoughCallsError(Exception):
    """A second call begins, and only one is wanted."""


class CallCollector:
    """Turns the parts of calls that parsers find into deltas.

    Attributes:
        count: Number of complete calls.
        is_open: A call has begun, and is not complete.
        is_single: One call is enough.
        needs_known: The next name must be that of a tool.
        is_sought: Calls are parsed at all.
        parameters: Schema of the arguments of each tool, by its name.
    """

    def __init__(
        self,
        parameters: Mapping[str, Mapping[str, Any]] | None,
        name_of: Callable[[int], str],
        *,
        is_single: bool = False,
    ) -> None:
        """Begin without calls.

        Args:
            parameters: Schema of the arguments of each tool; ``None``: calls are not parsed.
            name_of: Function from the number of a call to its id.
            is_single: One call is enough.
        """
        self.is_sought = parameters is not None
        self.is_single = is_single
        self.parameters = parameters or {}
        self.needs_known = self.is_open = False
        self.count = 0
        self._name_of = name_of
        self._index = -1
        self._name: str | None = None
        self._scanner: TextScanner | None = None
        self._held: list[str] = []
        self._arguments: list[str] = []
        self._deltas: list[ToolCallDelta] = []

    def begin(self, scanner: TextScanner) -> None:
        """Begin a call, whose text begins at the mark of the scanner.

        Raises:
            EnoughCallsError: There is one already, and only one is wanted.
        """
        if self.is_single and self.count:
            raise EnoughCallsError
        self._scanner = scanner
        self._index += 1
        self._name = None
        self.is_open = True
        self._held, self._arguments = [], []

    def name(self, name: str) -> None:
        """Set the name of the call.

        Raises:
            MalformedCallError: The name is not valid or unknown.
        """
        if not name or name != name.strip() or "\n" in name:
            raise MalformedCallError(f"{name!r} is no name of a tool")
        if self._name is not None:
            raise MalformedCallError(f"{name!r} is the second name of a call")
        if self.needs_known and name not in self.parameters:
            raise MalformedCallError(f"there is no tool {name!r}")
        self._name = name
        self._deltas.append(ToolCallDelta(self._index, self._name_of(self._index), name))
        held, self._held = self._held, []
        for text in held:
            self.arguments(text)

    def arguments(self, text: str) -> None:
        """Add text to the arguments, which are JSON."""
        if self._name is None:
            self._held.append(text)
            return
        self._arguments.append(text)
        last = self._deltas[-1] if self._deltas else None
        if last is not None and last.index == self._index and last.error is None:
            joined = last.arguments + text
            self._deltas[-1] = ToolCallDelta(self._index, last.id, last.name, joined)
        else:
            self._deltas.append(ToolCallDelta(self._index, arguments=text))

    def end(self) -> None:
        """Complete the call.

        Raises:
            MalformedCallError: It has no name, or its arguments are no JSON object.
        """
        if self._name is None:
            raise MalformedCallError("a call has no name")
        text = "".join(self._arguments)
        if not text:
            self.arguments("{}")
        elif not isinstance(_parsed(text), dict):
            raise MalformedCallError(f"the arguments of {self._name!r} are no JSON object")
        self.count += 1
        self.is_open = False
        if self._scanner is not None:
            self._scanner.mark()  # text that is read from here on is no part of this call

    def is_string(self, argument: str) -> bool:
        """Tell whether the tool declares an argument of this call as a text."""
        schema, _ = self.schema_of(argument)
        return schema is None or not isinstance(schema, dict) or is_text(schema)

    def schema_of(self, argument: str) -> tuple[Any, Mapping[str, Any]]:
        """Return the schema of an argument of this call, and that of all its arguments."""
        whole = self.parameters.get(self._name or "", {})
        properties = whole.get("properties", {})
        return (properties.get(argument) if isinstance(properties, dict) else None), whole

    def fail(self, reason: str) -> None:
        """End the call as malformed; without an open one, that of text which is no call."""
        self._index += not self.is_open
        self.is_open = False
        self._deltas.append(ToolCallDelta(self._index, error=reason))

    def undo(self) -> bool:
        """Drop the call if no delta of it exists yet; return whether it was dropped."""
        if self._name is not None or not self.is_open:
            return False
        self._index -= 1
        self.is_open = False
        return True

    def take(self) -> Sequence[ToolCallDelta]:
        """Return the deltas that are new since the last time."""
        if not self._deltas:
            return ()
        taken, self._deltas = tuple(self._deltas), []
        return taken


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object; of two values of a key, a reader would lose one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise MalformedCallError(f"the arguments have {twice!r} twice")
    return found


def _parsed(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise MalformedCallError(f"the arguments are no JSON: {error}") from None


def is_text(schema: Mapping[str, Any]) -> bool:
    """Tell whether a schema allows texts only; without a type, any value is one."""
    kinds = schema.get("type")
    if kinds is None:
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        if values:
            return all(isinstance(value, str) for value in values)
        return not any(word in schema for word in ("anyOf", "oneOf", "allOf", "$ref"))
    return kinds == "string" or kinds == ["string"]
