"""Check laws of every strategy that settles late: streams, cancels and prefixes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from asyncgen.generation.stopping.cancel import CancelCriteria
from streamers import BaseStreamer

if TYPE_CHECKING:
    import torch

    from tests.doubles.models import TableModel


@dataclass
class Recorder(BaseStreamer):
    """Keeps what a call puts, and cancels it after so many puts."""

    cancel_after: int | None = None
    values: list[list[Any]] = field(default_factory=list)
    cancelled: CancelCriteria = field(default_factory=CancelCriteria)
    ended: bool = False

    def put(self, value: torch.Tensor) -> None:
        """Keep ids."""
        self.values.append(value.tolist())
        if self.cancel_after is not None and len(self.values) > self.cancel_after:
            self.cancelled.set()

    def end(self) -> None:
        """Keep the end."""
        self.ended = True

    @property
    def ids(self) -> list[int]:
        """Generated ids of a single row."""
        return [token for value in self.values[1:] for token in value]


def check_stream(model: TableModel, prompt: torch.Tensor, options: dict[str, Any]) -> Recorder:
    """A stream joins to the returned sequence; one that is cancelled is a prefix of it.

    Returns:
        The uncancelled stream.
    """
    whole = Recorder()
    returned = model.generate(prompt, streamer=whole, **options)
    assert whole.ended
    assert whole.values[0] == prompt.tolist()
    assert whole.ids == returned[0, prompt.shape[1] :].tolist()  # type: ignore[index]
    for puts in range(1, len(whole.values)):
        part = Recorder(cancel_after=puts)
        kept = model.generate(prompt, streamer=part, **options)
        assert part.ids == whole.ids[: len(part.ids)]
        assert kept[0, prompt.shape[1] :].tolist()[: len(part.ids)] == part.ids  # type: ignore[index]
    return whole


def check_interrupted(model: TableModel, prompt: torch.Tensor, options: dict[str, Any]) -> None:
    """Cancelled after any number of forward passes, what was streamed is a prefix."""
    whole = Recorder()
    model.generate(prompt, streamer=whole, **options)
    before = model.num_forwards
    model.generate(prompt, **options)
    for passes in range(1, model.num_forwards - before):
        part, seen = Recorder(), [0]

        def count(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            part.cancelled.set() if seen[0] == passes else None  # noqa: B023
            seen[0] += 1  # noqa: B023
            return scores

        model.generate(prompt, streamer=part, logits_processor=[count], **options)  # type: ignore[arg-type]
        assert part.ids == whole.ids[: len(part.ids)]
        assert part.ended
