"""From the text of an answer in a shape to the value that it stands for, whole or as far as it is.

Pydantic, where it is needed, is imported late: an answer that nobody parses does not need it.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError
from asyncgen.structured.response_model import NEEDS_PYDANTIC, adapter_of

if TYPE_CHECKING:
    from asyncgen.structured.output_format import OutputFormat

NOTHING = object()
"""What stands for no value, since ``None`` is one."""


def parse(shape: OutputFormat, text: str) -> Any:
    """Turn a whole answer into the value that it stands for.

    Args:
        shape: What it looks like.
        text: The answer, complete.

    Returns:
        An object of the class that was asked for, a plain value of JSON, or the text.

    Raises:
        ValueError: The class refuses the value, by a rule that no schema can say.
    """
    text = _behind(shape, text)
    if shape.model is not None:
        return adapter_of(shape.model).validate_json(text)
    return json.loads(text, parse_float=_finite) if shape.is_json else text


def _finite(digits: str) -> float:
    """JSON has numbers of any size, and a float has not.

    Raises:
        ValueError: It is too large.
    """
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:40]} is beyond the range of a float")
    return value


def read_answer(shape: OutputFormat, text: str, reason: str) -> tuple[Any, str | None]:
    """What a result says of an answer that has ended.

    Args:
        shape: What it was to look like.
        text: All of it.
        reason: Its finish reason.

    Returns:
        The value and ``None``; or ``None`` and why there is no value.
    """
    if reason != "stop":
        return None, f"the answer ended before its shape was complete: {reason}"
    if shape.after and shape.after not in text:
        return None, f"the answer ended before its shape began, behind {shape.after!r}"
    try:
        return parse(shape, text), None
    except (ValueError, RecursionError) as error:
        return None, str(error)


class PartialValue:
    """A value of JSON that is read while it is written: what is there of it is valid so far.

    Strings grow; a number, a key or a word is there when it is complete.
    """

    def __init__(self, shape: OutputFormat) -> None:
        """Begin.

        Args:
            shape: Of the answer.

        Raises:
            InvalidRequestError: It is no JSON, or there is no pydantic.
        """
        if not shape.is_json:
            allowed = "only an answer in JSON grows as a value; read the text"
            raise InvalidRequestError(shape.parameter, shape.source[:80], allowed)
        try:
            import pydantic_core
        except ImportError as error:
            raise InvalidRequestError("partial", "called", NEEDS_PYDANTIC) from error
        self._from_json = pydantic_core.from_json
        self._shape = shape
        self._text = ""
        self._value: Any = NOTHING
        self._seen = 0
        self._is_in_string = self._is_escaped = False

    def add(self, text: str) -> Any:
        """Take in text; return the value as it is now, ``NOTHING`` where it is what it was."""
        self._text += text
        written = _behind(self._shape, self._text)
        self._follow(written)
        # A number at the end may go on, and so is no number yet.
        return self._read(written if self._is_in_string else written.rstrip("0123456789+-.eE"))

    def finish(self) -> Any:
        """As `add`, where nothing follows: a number at the end is one."""
        return self._read(_behind(self._shape, self._text))

    def _follow(self, written: str) -> None:
        """Find out whether the text ends inside of a string."""
        for character in written[self._seen :]:
            if self._is_escaped:
                self._is_escaped = False
            elif character == '"':
                self._is_in_string = not self._is_in_string
            else:
                self._is_escaped = character == "\\" and self._is_in_string
        self._seen = len(written)

    def _read(self, written: str) -> Any:
        try:
            value = self._from_json(written, allow_partial="trailing-strings")
        except ValueError:
            return NOTHING
        if self._value is not NOTHING and _same(value, self._value):
            return NOTHING
        self._value = value
        return value


def _same(left: Any, right: Any) -> bool:
    """Whether two values are the same, of one type at every place."""
    return bool(left == right) and json.dumps(left) == json.dumps(right)


def _behind(shape: OutputFormat, text: str) -> str:
    """The part of an answer that has the shape."""
    return text.partition(shape.after)[2].lstrip() if shape.after else text
