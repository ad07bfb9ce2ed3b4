"""Answers in a shape, read where there is no engine, by the parameters that asked for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError
from asyncgen.structured.answer_values import NOTHING, PartialValue, read_answer
from asyncgen.structured.output_format import given_output_formats, read_output_format

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from asyncgen.types import Completion, Sample


class AnswerReader:
    """Turns answers into the values that they stand for.

    For who gets texts from afar and knows what was asked for: a client, or an engine elsewhere.
    The streams of the library use it themselves. It knows no model and no tokenizer.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        """Keep what was asked for.

        Args:
            params: Keyword parameters of ``AsyncLLM.stream``; those that ask for no shape, and
                ``None``, count for nothing.
        """
        self._params = params

    def whole(self, completion: Completion) -> Completion:
        """Return a result with the value of each sample, or with the reason why it has none.

        Args:
            completion: Its samples have their texts, calls and finish reasons.

        Returns:
            The same with ``parsed`` and ``parse_error``; itself where no shape was asked for.
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
            What waits for the next value that is valid so far; it ends as ``next_text`` does.

        Raises:
            InvalidRequestError: The answer was not asked for as JSON, or there is no pydantic.
        """
        shape = read_output_format(self._params)
        if shape is None:
            allowed = "a growing value needs a shape: give `json_schema` or `response_model`"
            raise InvalidRequestError("partial", "called", allowed)
        growing = PartialValue(shape)

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
            shape = read_output_format(self._params)
        except InvalidRequestError as error:  # as whoever was asked has said already
            return replace(sample, parse_error=str(error))
        assert shape is not None
        value, told = read_answer(shape, sample.text, sample.finish_reason)
        return replace(sample, parsed=value, parse_error=told)


def _has_begun(given: Any, index: int) -> bool:
    """Whether a sample has ids that were generated before."""
    if given and isinstance(given[0], list | tuple):
        return bool(given[index : index + 1] and given[index])
    return bool(given)
