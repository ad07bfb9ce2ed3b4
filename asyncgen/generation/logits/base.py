"""What a logits processor is, and the list that runs them in order.

Knows nothing of any particular processor.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from torch import Tensor

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.batched import Columns
from asyncgen.generation.logits.definition import Definition, register

Parameter: TypeAlias = "float | Tensor"
"""One value for all rows, or a column of one value per row, [B, 1].

A float64 column gives every row bit for bit what its value alone would give as a number.
"""


class LogitsProcessor(ABC):
    """Changes the scores of the next token.

    The built-in ones wrap a pure function and never modify their input; where they have nothing
    to change they may return the very tensor they were given.

    Attributes:
        definition: What the class says of itself; it holds for the class alone, and not for those
            that are derived from it.
    """

    definition: ClassVar[Definition | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make a class known that has a definition."""
        super().__init_subclass__(**kwargs)
        if vars(cls).get("definition") is not None:
            register(cls)

    @abstractmethod
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores to go on with.

        Args:
            input_ids: Token ids so far, prompt included, int64 [B, T].
            scores: Scores of the next token, [B, V]; -inf is banned.

        Returns:
            Scores of the same shape and dtype.
        """


class ColumnsProcessor(LogitsProcessor):
    """Applies the function of its definition's `Columns`, which does the same for many rows."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply the function; scores are [B, V]."""
        assert self.definition is not None and isinstance(self.definition.batched, Columns)
        return self.definition.batched.alone(self, scores)


class LogitsProcessorList(list[Callable[..., Any]]):
    """Processors that run one after the other.

    A processor with further parameters beside the two documented ones gets them from the keyword
    arguments of the call.
    """

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        """Run all processors.

        Args:
            input_ids: Token ids so far, int64 [B, T].
            scores: Scores of the next token, [B, V].
            kwargs: Arguments for processors that ask for more.

        Returns:
            Processed scores, [B, V].

        Raises:
            ValueError: A processor needs an argument that ``kwargs`` does not have.
        """
        for processor in self:
            scores = self._run(processor, input_ids, scores, kwargs)
        return scores

    @staticmethod
    def _run(
        processor: Callable[..., Any], input_ids: Tensor, scores: Tensor, kwargs: dict[str, Any]
    ) -> Any:
        """Run one processor with the arguments that it asks for."""
        owner: Any = processor if inspect.isroutine(processor) else type(processor)
        wanted = _wanted(owner)
        if wanted is None:
            return processor(input_ids, scores)
        return processor(input_ids, scores, **wanted.pick(processor, kwargs))


class _Wanted:
    """The parameters of a processor beyond the two documented ones."""

    def __init__(self, parameters: list[inspect.Parameter]) -> None:
        kinds = inspect.Parameter
        named = [each for each in parameters if each.kind not in (kinds.VAR_KEYWORD,)]
        self.names = [each.name for each in named]
        self.required = [each.name for each in named if each.default is kinds.empty]
        self.takes_all = any(each.kind is kinds.VAR_KEYWORD for each in parameters)

    def pick(self, processor: object, kwargs: dict[str, Any]) -> dict[str, Any]:
        missing = [name for name in self.required if name not in kwargs]
        if missing:
            raise ValueError(
                f"{type(processor).__name__} needs the arguments {missing}; pass them to the list"
            )
        if self.takes_all:
            return kwargs
        return {name: kwargs[name] for name in self.names if name in kwargs}


@functools.lru_cache(maxsize=1024)
def _wanted(owner: Any) -> _Wanted | None:
    """Inspect a function, or the calls of a class, once for all; None if nothing is wanted."""
    is_class = isinstance(owner, type)
    # The first parameter of a method is the instance.
    skip = 3 if is_class else 2
    signature = inspect.signature(owner.__call__ if is_class else owner)
    extra = [
        parameter
        for parameter in list(signature.parameters.values())[skip:]
        if parameter.kind is not inspect.Parameter.VAR_POSITIONAL
    ]
    return _Wanted(extra) if extra else None


def rounded(parameter: Parameter, scores: Tensor) -> Parameter:
    """Round a column to the dtype of the scores, as torch does with a number by itself."""
    return parameter.to(scores.dtype) if isinstance(parameter, Tensor) else parameter


def divide(scores: Tensor, parameter: Parameter) -> Tensor:
    """Divide by a number, or by a column or tensor of numbers, with the same rounding."""
    if isinstance(parameter, Tensor):
        parameter = parameter.to(scores.dtype)
        # CUDA divides by a number as a multiplication with its reciprocal.
        return scores * parameter.reciprocal() if scores.is_cuda else scores / parameter
    return scores / parameter


def check_count(name: str, value: object, least: int = 1) -> int:
    """Check a count that a processor is built with.

    Args:
        name: Name of the parameter.
        value: What was given.
        least: Smallest value allowed.

    Returns:
        The value.

    Raises:
        InvalidRequestError: It is no integer, or too small.
    """
    if not isinstance(value, int) or value < least:
        raise InvalidRequestError(name, value, f"must be an integer of at least {least}")
    return value
