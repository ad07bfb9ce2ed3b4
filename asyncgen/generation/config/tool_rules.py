"""Rules for the values of a request about tools and reasoning, as in `rules`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from asyncgen.generation.config.rules import must_be

MOST_TOOLS = 128
MOST_TOOL_CHARACTERS = 2**18
"""Of all tools of a request, as JSON: a template writes them into the prompt."""

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
CHOICES = ("auto", "none", "required")

_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")
_TOOL_KEYS = frozenset({"type", "function"})
_FUNCTION_KEYS = frozenset({"name", "description", "parameters", "strict"})


def tools(value: Any) -> str | None:
    """Take functions with JSON schemas of their arguments, as the API of OpenAI has them."""
    if not isinstance(value, list | tuple):
        return must_be('a list of tools, each like {"type": "function", "function": {"name": …}}')
    if len(value) > MOST_TOOLS:
        return f"at most {MOST_TOOLS} tools, and there are {len(value)}"
    for index, tool in enumerate(value):
        wrong = _tool(tool)
        if wrong is not None:
            return f"entry {index}: {wrong}"
    names = [tool["function"]["name"] for tool in value]
    if len(set(names)) < len(names):
        return "every tool a name of its own"
    return _small(value)


def _tool(tool: Any) -> str | None:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        return 'only tools of type "function"'
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return "`function` is a mapping with `name` and `parameters`"
    for given, known, what in ((tool, _TOOL_KEYS, "tool"), (function, _FUNCTION_KEYS, "function")):
        for key, each in given.items():
            if key not in known and each is not None:
                return f"`{key}` is no field of a {what}: {', '.join(sorted(known))}"
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return "`function.name` has 1 to 128 letters, digits, underscores, dots and dashes"
    if not isinstance(function.get("description") or "", str):
        return "`function.description` is a text"
    if not isinstance(function.get("parameters") or {}, Mapping):
        return "`function.parameters` is the JSON schema of an object"
    if not isinstance(function.get("strict") or False, bool):
        return "`function.strict` is True or False"
    return None


def _small(value: Any) -> str | None:
    try:
        length = len(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):
        return "tools that are JSON"
    if length > MOST_TOOL_CHARACTERS:
        return f"{length} characters as JSON; at most {MOST_TOOL_CHARACTERS}"
    return None


def tool_choice(value: Any) -> str | None:
    """Take one of three words, or the name of a tool as the API of OpenAI has it."""
    if isinstance(value, str) and value in CHOICES:
        return None
    if isinstance(value, Mapping) and value.get("type") == "function":
        function = value.get("function")
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            return None
    words = ", ".join(f'"{choice}"' for choice in CHOICES)
    return must_be(f'{words}, or {{"type": "function", "function": {{"name": …}}}}')


def effort(value: object) -> str | None:
    """Take the words of the API of OpenAI."""
    return None if value in EFFORTS else must_be(f"one of {', '.join(EFFORTS)}")


def stop_ids(value: Any) -> str | None:
    """Take a list of token ids."""
    good = isinstance(value, list | tuple) and all(
        isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in value
    )
    return None if good else must_be("a list of token ids")
