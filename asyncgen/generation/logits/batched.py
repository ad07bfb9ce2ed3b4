"""Forms in which processors of one kind run over many rows at once, each with its own parameters.

A form is laid out for the rows that have the processor, and again only when the rows change. It
then changes the scores of each step, and only those that it means: all others stay as they are,
bit for bit. The arithmetic is that of the processors' own functions. It knows processors by their
rules, and nothing of who runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from asyncgen.runtime.request_failure import request_failure
from asyncgen.runtime.transfer import to_device

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class _Row(Protocol):
    @property
    def tokens(self) -> list[int]:
        """Prompt and generated tokens; the list only ever grows at its end."""

    @property
    def processors(self) -> Sequence[Any]:
        """All of its processors, in their order."""

    def input_ids(self, device: torch.device) -> Tensor:
        """The same on a device, int64 [1, T]."""


class BatchScores(Protocol):
    """The scores of one step.

    Attributes:
        values: float32 [R, V]; may be written to, or replaced.
        size: V.
        failures: Row number and error of the rows that failed.
    """

    values: Tensor
    size: int
    failures: dict[int, Exception]

    @property
    def rows(self) -> Sequence[_Row]:
        """Whose they are."""

    @property
    def flat(self) -> Tensor:
        """The scores as one dimension: token t of row r at ``r * V + t``."""

    def tensor(self, numbers: list[Any], dtype: torch.dtype = ...) -> Tensor:
        """Lay numbers out where the scores are; int64 unless another type is named."""

    def guarded(self, row: int) -> AbstractContextManager[None]:
        """Let an exception be the failure of one row."""


class RowProcessor(NamedTuple):
    """A processor of one row, named by its number in the batch."""

    row: int
    processor: Any


Step: TypeAlias = Callable[[BatchScores], None]
"""Changes the scores of one step."""

Batched: TypeAlias = Callable[[list[RowProcessor], BatchScores], Step]
"""Lays out processors of one kind; of the scores only size and device count."""


class Ban:
    """Sets scores to -inf: those that ``banned(token_ids, size)`` of the processor lists.

    One that ``is_constant`` lists the same at every step, and is asked once.
    """

    def __init__(self, parts: list[RowProcessor], scores: BatchScores) -> None:
        """Begin with nothing known of any row."""
        self._parts = parts
        self._is_constant = all(getattr(part.processor, "is_constant", False) for part in parts)
        self._banned: list[Sequence[int]] | None = None
        self._places: Tensor | None = None

    def __call__(self, scores: BatchScores) -> None:
        """Ban what each row bans at this step."""
        if self._banned is None or not self._is_constant:
            self._look(scores)
        if self._places is not None:
            # An assignment would send the number, and wait for the device.
            scores.flat.index_fill_(0, self._places, -torch.inf)

    def _look(self, scores: BatchScores) -> None:
        """Ask the processors, and lay out what is banned if it is something else than before."""
        banned: list[Sequence[int]] = [()] * len(self._parts)
        for number, (row, processor) in enumerate(self._parts):
            try:
                banned[number] = processor.banned(scores.rows[row].tokens, scores.size)
            except BaseException as error:
                scores.failures.setdefault(row, request_failure(error))
        if banned != self._banned:
            self._banned = banned
            places = [
                part.row * scores.size + token
                for part, tokens in zip(self._parts, banned, strict=True)
                for token in tokens
            ]
            self._places = scores.tensor(places) if places else None


class Force:
    """Leaves only the tokens that ``forced(length)`` of the processor lists, where it does."""

    def __init__(self, parts: list[RowProcessor], scores: BatchScores) -> None:
        """Keep the processors."""
        self._parts = parts

    def __call__(self, scores: BatchScores) -> None:
        """Force the tokens of rows that are where it is due."""
        for row, processor in self._parts:
            tokens = processor.forced(len(scores.rows[row].tokens))
            if tokens is not None:
                own = scores.values[row].fill_(-torch.inf)
                own.index_fill_(0, scores.tensor(tokens), 0.0)


def column(values: list[Any], device: torch.device) -> Tensor:
    """Lay one number a row out as float64 [R, 1], which rounds as the number alone does."""
    return to_device(torch.tensor(values, dtype=torch.float64, device="cpu"), device)[:, None]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Runs a function over whole rows, its parameter a column with one value a row.

    Attributes:
        function: Of scores [R, V], out of place.
        parameter: Attribute of the processor that is its second argument; None where it has none.
        lay_out: Makes the arguments of the values of some rows on a device; by default the
            column alone.
    """

    function: Callable[..., Tensor]
    parameter: str | None = None
    lay_out: Callable[[list[Any], torch.device], dict[str, Any]] | None = None

    def alone(self, processor: Any, scores: Tensor) -> Tensor:
        """Apply the function with the parameters of one processor to all rows."""
        if self.parameter is None:
            return self.function(scores)
        return self.function(scores, getattr(processor, self.parameter), **_shared(processor))

    def __call__(self, parts: list[RowProcessor], scores: BatchScores) -> Step:
        """Lay the parameters out, one column for the rows that agree in all else."""
        groups: dict[tuple[Any, ...], list[RowProcessor]] = {}
        for part in parts:
            groups.setdefault(tuple(_shared(part.processor).items()), []).append(part)
        bound = []
        for group in groups.values():
            rows = [part.row for part in group]
            everyone = len(rows) == len(scores.rows)
            function = self.bind([part.processor for part in group], scores.values.device)
            bound.append((None if everyone else scores.tensor(rows), function))
        return _Filter(bound)

    def bind(self, processors: Sequence[Any], device: torch.device) -> Callable[[Tensor], Tensor]:
        """Bind the parameters of some rows.

        Args:
            processors: One a row, which differ in the parameter alone.
            device: Where the scores are.

        Returns:
            A function of the scores of these rows, [r, V].
        """
        if self.parameter is None:
            return self.function
        function, arguments = self.function, _shared(processors[0])
        values = [getattr(each, self.parameter) for each in processors]
        if self.lay_out is None:
            arguments[self.parameter] = column(values, device)
        else:
            arguments |= self.lay_out(values, device)
        return lambda some: function(some, **arguments)


class _Filter:
    """A function for each group of rows."""

    def __init__(self, bound: list[tuple[Tensor | None, Callable[[Tensor], Tensor]]]) -> None:
        self._bound = bound

    def __call__(self, scores: BatchScores) -> None:
        """Filter the scores of one step."""
        for numbers, function in self._bound:
            if numbers is None:
                scores.values = function(scores.values)
            else:
                some = function(scores.values.index_select(0, numbers))
                scores.values.index_copy_(0, numbers, some)


def _shared(processor: Any) -> dict[str, Any]:
    """Properties that rows of one batched call share."""
    names = ("filter_value", "min_tokens_to_keep")
    return {name: getattr(processor, name) for name in names if hasattr(processor, name)}
