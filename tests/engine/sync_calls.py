"""Helpers for tests of the synchronous methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen.engine.scheduling.scheduler import Scheduler
from asyncgen.reference.continuous_batching.manager import ContinuousBatchingManager
from asyncgen.reference.continuous_batching.mixin import ContinuousMixin
from tests.doubles.models import PATIENCE, TableModel

if TYPE_CHECKING:
    import torch

    from asyncgen.engine.scheduling.state import GenerationOutput, ScheduledRow

PROMPTS = [[1, 2, 3], [7], list(range(40)), [5, 6]]


class BatchModel(ContinuousMixin, TableModel):
    """A table model with both doors."""


class Breaks:
    """A processor that raises for one prompt."""

    def __init__(self, first: int) -> None:
        self.first = first

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if int(input_ids[0, 0]) == self.first:
            raise ZeroDivisionError("by the processor")
        return scores


class Idle(Scheduler):
    """Schedules nobody."""

    def schedule_batch(self, token_budget: int, cache_budget: int) -> list[ScheduledRow]:
        return []


def running(model: Any = None, **options: Any) -> ContinuousBatchingManager:
    """A manager that was started; drops of it end its thread."""
    manager = ContinuousBatchingManager(model or TableModel(), **options)
    manager.start()
    return manager


def finished(manager: ContinuousBatchingManager, count: int) -> dict[str, GenerationOutput]:
    """So many last results."""
    found: dict[str, GenerationOutput] = {}
    while len(found) < count:
        output = manager.get_result(timeout=PATIENCE)
        assert output is not None
        if output.is_finished():
            found[output.request_id] = output
    return found
