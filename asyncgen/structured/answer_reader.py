"""Turn the text of structured answers into values, whole or as far as it goes.

Pydantic is imported only when it is needed: an answer that nobody parses does not need it.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError, InWords
from asyncgen.structured.output_format import given_output_formats, read_output_format
from asyncgen.structured.response_model import NEEDS_PYDANTIC, adapter_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from asyncgen.structured.output_format import OutputFormat
    from asyncgen.types import Completion, Sample

NOTHING = object()
"""Marks a missing value, since ``None`` is a value."""


def parse(output_format: OutputFormat, text: str) -> Any:
    """Turn a whole answer into its value.

    Args:
        output_format: Format of the answer.
        text: The complete answer.

    Returns:
        An object of the requested class, a plain value of JSON, or the text.

    Raises:
        ValueError: The class refuses the value, by a rule that a schema cannot express.
    """
    text = _structured_part(output_format, text)
    if output_format.model is not None:
        return adapter_of(output_format.model).validate_json(text)
    return json.loads(text, parse_float=_finite) if output_format.is_json else text


def _finite(digits: str) -> float:
    """Parse a number of JSON as a finite float.

    Raises:
        ValueError: It is too large for a float.
    """
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:40]} is beyond the range of a float")
    return value


def read_answer(output_format: OutputFormat, text: str, reason: str) -> tuple[Any, str | None]:
    """Parse an answer that has ended.

    Args:
        output_format: Format of the answer.
        text: All of its text.
        reason: Its finish reason.

    Returns:
        The value and ``None``; or ``None`` and the reason why there is no value.
    """
    if reason != "stop":
        return None, f"the answer ended before its format was complete: {reason}"
    if output_format.after and output_format.after not in text:
        return None, f"the answer ended before its format began, after {output_format.after!r}"
    try:
        return parse(output_format, text), None
    except (ValueError, RecursionError) as error:
        return None, str(error)


class PartialValue:
    """A JSON value that is parsed while its text grows.

    Strings grow; a number, a key or a word appears when it is complete.
    """

    def __init__(self, output_format: OutputFormat) -> None:
        """Begin without text.

        Args:
            output_format: Format of the answer.

        Raises:
            InvalidRequestError: The format is no JSON, or pydantic is not installed.
        """
        if not output_format.is_json:
            allowed = "only an answer in JSON grows as a value; read the text"
            raise InvalidRequestError(output_format.parameter, output_format.source[:80], allowed)
        try:
            import pydantic_core
        except ImportError as error:
            raise InvalidRequestError("partial", InWords("called"), NEEDS_PYDANTIC) from error
        self._from_json = pydantic_core.from_json
        self._format = output_format
        self._text = ""
        self._value: Any = NOTHING
        self._seen = 0
        self._is_in_string = self._is_escaped = False

    def add(self, text: str) -> Any:
        """Add text; return the present value, or ``NOTHING`` if it did not change."""
        self._text += text
        written = _structured_part(self._format, self._text)
        self._follow(written)
        # A number at the end may go on, so it is not complete yet.
        return self._read(written if self._is_in_string else written.rstrip("0123456789+-.eE"))

    def finish(self) -> Any:
        """Return the final value as `add` does; a number at the end is complete."""
        return self._read(_structured_part(self._format, self._text))

    def _follow(self, written: str) -> None:
        """Track whether the text ends inside a string."""
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
        if self._value is not NOTHING and _is_same_value(value, self._value):
            return NOTHING
        self._value = value
        return value


def _is_same_value(left: Any, right: Any) -> bool:
    """Tell whether two values are equal, with the same type at every place."""
    return bool(left == right) and json.dumps(left) == json.dumps(right)


def _structured_part(output_format: OutputFormat, text: str) -> str:
    """Return the part of an answer that has the format."""
    return text.partition(output_format.after)[2].lstrip() if output_format.after else text


class AnswerReader:
    """Turns answers into values, by the parameters of the request.

    For programs that receive texts and know the parameters: a client, or a remote engine. The
    streams of the library use it, too. It needs no model and no tokenizer.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        """Keep the parameters of a request.

        Args:
            params: Keyword parameters of ``AsyncLLM.stream``; those without a structured output,
                and ``None``, are ignored.
        """
        self._params = params

    def whole(self, completion: Completion) -> Completion:
        """Return a result with the value of each sample, or the reason why it has none.

        Args:
            completion: Result whose samples have texts, calls and finish reasons.

        Returns:
            The same with ``parsed`` and ``parse_error``; itself without structured output.
        """
        if not given_output_formats(self._params):
            return completion
        return replace(completion, samples=tuple(map(self._read, completion.samples)))

    def partial(
        self, next_text: Callable[[], Awaitable[str]]
    ) -> Callable[[], Coroutine[Any, Any, Any]]:
        """Read the value of a JSON answer while it grows.

        Args:
            next_text: Waits for more of the text; raises ``StopAsyncIteration`` at its end.

        Returns:
            A function that waits for the next partial value; it ends as ``next_text`` does.

        Raises:
            InvalidRequestError: The request asks for no JSON, or pydantic is not installed.
        """
        output_format = read_output_format(self._params)
        if output_format is None:
            allowed = "a growing value needs a format: give `json_schema` or `response_model`"
            raise InvalidRequestError("partial", InWords("called"), allowed)
        growing = PartialValue(output_format)

        async def next_partial() -> Any:
            while True:
                try:
                    value = growing.add(await next_text())
                except StopAsyncIteration:
                    value = growing.finish()
                    if value is NOTHING:
                        raise
                if value is not NOTHING:
                    return value

        return next_partial

    def _read(self, sample: Sample) -> Sample:
        if sample.tool_calls:
            return replace(sample, parse_error="the answer calls tools")
        if _has_begun(self._params.get("generated_ids"), sample.index):
            problem = "the answer began elsewhere, with `generated_ids`: read all of its text"
            return replace(sample, parse_error=problem)
        try:
            output_format = read_output_format(self._params)
        except InvalidRequestError as error:  # the engine has raised it already
            return replace(sample, parse_error=str(error))
        assert output_format is not None
        value, told = read_answer(output_format, sample.text, sample.finish_reason)
        return replace(sample, parsed=value, parse_error=told)


def _has_begun(given: Any, index: int) -> bool:
    """Tell whether a sample has ids that were generated before."""
    if given and isinstance(given[0], list | tuple):
        return bool(given[index : index + 1] and given[index])
    return bool(given)
