"""The scores of one step of the batch, on their way through the processors."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.transfer import to_device

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from asyncgen.engine.sample import Sample

__all__ = ["BatchScores"]


class BatchScores:
    """Scores of all rows, and the rows that failed.

    Attributes:
        logits: As the model made them, [R, V].
        values: As far as they are processed, float32 [R, V]; written to in place where ``own``
            is true.
        rows: Whose they are.
        failures: Row number and error of rows that failed; their scores mean nothing.
        apart: Row number and processed scores [1, V] of rows that left the others on their way.
        size: V.
    """

    def __init__(self, logits: Tensor, rows: list[Sample], *, own: bool) -> None:
        """Begin a step.

        Args:
            logits: Raw logits, [R, V] of any floating dtype; not modified.
            rows: Whose logits they are, in order.
            own: Whether ``values`` will be written to.
        """
        self.logits = logits
        values = logits.float().contiguous()
        # A change of dtype has made a copy already.
        self.values = values.clone() if own and values is logits else values
        self.rows = rows
        self.failures: dict[int, Exception] = {}
        self.apart: dict[int, Tensor] = {}
        self.size = logits.shape[1]

    @property
    def flat(self) -> Tensor:
        """The scores as one dimension: token t of row r at ``r * V + t``."""
        return self.values.view(-1)

    def raw(self, row: int) -> Tensor:
        """Raw logits of one row, float32 [1, V]."""
        return self.logits[row : row + 1].float()

    def tensor(self, numbers: list[Any], dtype: torch.dtype = torch.int64) -> Tensor:
        """Lay numbers out where the scores are."""
        return to_device(torch.tensor(numbers, dtype=dtype), self.logits.device)

    @contextmanager
    def guarded(self, row: int) -> Iterator[None]:
        """Let an exception be the failure of one row."""
        try:
            yield
        except Exception as error:
            self.failures.setdefault(row, error)
