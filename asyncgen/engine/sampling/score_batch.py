"""The scores of a step, and the stages that they pass, each of which runs over many rows at once.

What has no form for many rows runs row by row in its place.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.engine.sampling.shortlist import Shortlist
from asyncgen.generation.logits.batched import RowProcessor
from asyncgen.runtime.request_failure import request_failure
from asyncgen.runtime.transfer import to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from asyncgen.engine.batch.sequence import Sequence
    from asyncgen.engine.sampling.shortlist import Placed


class BatchScores:
    """Scores of all rows, and the rows that failed.

    Attributes:
        logits: As the model made them, [R, V].
        rows: Whose they are.
        failures: Row number and error of rows that failed; their scores mean nothing.
        apart: Row number and processed scores [1, V] of rows that left the others on their way.
        size: V.
    """

    def __init__(self, logits: Tensor, rows: list[Sequence], *, own: bool) -> None:
        """Begin a step.

        Args:
            logits: Raw logits, [R, V] of any floating dtype; not modified.
            rows: Whose logits they are, in order.
            own: Whether ``values`` will be written to.
        """
        self.logits = logits
        self.rows = rows
        self._own = own
        self._values: Tensor | None = None
        self.failures: dict[int, Exception] = {}
        self.apart: dict[int, Tensor] = {}
        self.size = logits.shape[1]

    @property
    def values(self) -> Tensor:
        """The scores as far as they are processed, float32 [R, V]: made when they are asked for.

        They are written to in place where they are the step's own.
        """
        if self._values is None:
            values = self.logits.float().contiguous()
            # A change of dtype has made a copy already.
            self._values = values.clone() if self._own and values is self.logits else values
        return self._values

    @values.setter
    def values(self, values: Tensor) -> None:
        self._values = values

    @property
    def flat(self) -> Tensor:
        """The scores as one dimension: token t of row r at ``r * V + t``."""
        return self.values.view(-1)

    def raw(self, row: int) -> Tensor:
        """Raw logits of one row, float32 [1, V]."""
        return self.logits[row : row + 1].float()

    def tensor(self, numbers: list[Any], dtype: torch.dtype = torch.int64) -> Tensor:
        """Lay numbers out where the scores are."""
        made = torch.tensor(numbers, dtype=dtype)
        return made if self.logits.device.type == "cpu" else to_device(made, self.logits.device)

    @contextmanager
    def guarded(self, row: int) -> Iterator[None]:
        """Let an exception be the failure of one row."""
        try:
            yield
        except BaseException as error:
            self.failures.setdefault(row, request_failure(error))


class BatchLayout:
    """The steps of a set of rows, and how each row picks in the end.

    Attributes:
        rows: Whose it is, in their order.
        steps: Run one after the other on the scores.
        greedy: Rows that take the likeliest token.
        drawn: Rows that draw from all tokens.
        listed: Rows that draw from a few of the likeliest.
        ways: The three again, those that have rows: name, numbers, and the numbers as int64 [r];
            None for all rows.
        shortlist: The filters of those that are listed.
        judged: Rows with stopping criteria that look at tensors.
        explained: Rows that ask for log-probabilities.
        needs_host: Whether some row has no token before the host has done something for it: run
            what a user wrote, or describe the token.
    """

    def __init__(self, scores: BatchScores, *, one_by_one: bool = False) -> None:
        """Lay the rows of a step out.

        Args:
            scores: For the rows, the vocabulary and the device.
            one_by_one: Whether every processor runs on its row alone, whatever else it can.
        """
        self.rows = scores.rows
        self.judged: list[int] = []
        self.explained: list[int] = []
        picked: dict[str, list[int]] = {"greedy": [], "drawn": [], "listed": []}
        filters: list[list[Any]] = []
        by_step: dict[tuple[Any, ...], list[tuple[int, Placed]]] = {}
        for number, row in enumerate(self.rows):
            plan = row.plan(scores.logits)
            picked[plan.picks].append(number)
            if plan.picks == "listed":
                filters.append(plan.filters)
            for each in plan.placed:
                if one_by_one:
                    each = each._replace(batched=None)
                # Alone on its row may run anything; over many rows one kind at a time.
                kind = None if each.batched is None else type(each.processor)
                by_step.setdefault((each.rank, kind), []).append((number, each))
            if row.ends.tensor_criteria:
                self.judged.append(number)
            if row.top_logprobs is not None:
                self.explained.append(number)
        self.greedy, self.drawn, self.listed = picked.values()
        self.shortlist = Shortlist(filters)
        self.ways = [
            (way, numbers, None if len(numbers) == len(self.rows) else scores.tensor(numbers))
            for way, numbers in picked.items()
            if numbers
        ]
        self.steps = [
            _step(placed, scores)
            for _, placed in sorted(by_step.items(), key=lambda item: item[0][0])
        ]
        asks_host = any(isinstance(step, _OneByOne) for step in self.steps)
        self.needs_host = bool(self.judged or self.explained or asks_host)


def _step(placed: list[tuple[int, Placed]], scores: BatchScores) -> Callable[[BatchScores], None]:
    batched = placed[0][1].batched
    if batched is None:
        return _OneByOne(placed)
    return batched([RowProcessor(number, each.processor) for number, each in placed], scores)


class _OneByOne:
    """Runs the processors of rows as they are, each on its own row."""

    def __init__(self, placed: list[tuple[int, Placed]]) -> None:
        self._placed = placed

    def __call__(self, scores: BatchScores) -> None:
        """Run them; one that raises or spoils its scores fails its row."""
        for row, each in self._placed:
            if row not in scores.failures and row not in scores.apart:
                with scores.guarded(row):
                    self._run(row, each.number, scores)

    @staticmethod
    def _run(number: int, place: int, scores: BatchScores) -> None:
        row = scores.rows[number]
        ids = row.input_ids(scores.logits.device)
        row.processors.begin(ids, scores.raw(number))
        # What users wrote may keep its scores, or write to them.
        own: Tensor = scores.values[number : number + 1].clone()
        made = row.processors.run_one(place, ids, own)
        if made.dtype == torch.float32:
            scores.values[number] = made[0]
            return
        # The other rows are not of this dtype, so it goes on without them.
        for later in range(place + 1, len(row.processors)):
            made = row.processors.run_one(later, ids, made)
        scores.apart[number] = made
