"""Give every item the device, the sizes that suit it, and the results of earlier items."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CPU", "CUDA", "Context", "Finding", "Skipped", "Sizes"]


class Skipped(Exception):
    """An item that cannot be found out here; says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one item.

    Attributes:
        holds: Whether what it claims is so; ``None`` for figures, which claim nothing.
        says: One line.
        figures: The same as numbers, for JSON.
    """

    holds: bool | None
    says: str
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that suffice for a kind of device.

    Attributes:
        hidden: Width of the networks that are compared.
        lengths: Of texts; some beyond 1,024 tokens, where kernels split rows.
        long: Tokens of the long text.
        requests: Of a busy engine.
        new_tokens: Of each of them.
        vocabulary: Of the logits that tokens are drawn from.
        draws: Steps of drawing.
        streams: Numbers of streams whose speed is measured.
        prompts: Lengths of their prompts.
        answers: Tokens of each stream.
        megabytes: Of the block that is copied to measure the memory.
        product: Rows of the square matrices that are multiplied.
        dtype: In which speed is measured.
    """

    hidden: int
    lengths: tuple[int, ...]
    long: int
    requests: int
    new_tokens: int
    vocabulary: int
    draws: int
    streams: tuple[int, ...]
    prompts: tuple[int, ...]
    answers: int
    megabytes: int
    product: int
    dtype: str


CUDA = Sizes(
    hidden=512,
    lengths=(300, 40, 520, 1300, 80),
    long=8192,
    requests=24,
    new_tokens=40,
    vocabulary=128256,
    draws=8,
    streams=(1, 32, 256),
    prompts=(128, 2048),
    answers=64,
    megabytes=2048,
    product=8192,
    dtype="bfloat16",
)

CPU = Sizes(
    hidden=64,
    lengths=(30, 4, 52, 1100, 8),
    long=1100,
    requests=8,
    new_tokens=10,
    vocabulary=2048,
    draws=2,
    streams=(1, 4),
    prompts=(16, 48),
    answers=6,
    megabytes=64,
    product=512,
    dtype="bfloat16",
)


@dataclass(slots=True)
class Context:
    """The device and what a process keeps from item to item.

    Attributes:
        device: Its name, ``cuda`` or ``cpu``.
        folder: For files that go with the process.
        deadline: When the item is ended, on the clock of this process; its caller's may be a
            little ahead.
        kept: What items of a group leave for the next.
    """

    device: str
    folder: Path
    deadline: float = 0.0
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds_left(self) -> float:
        """That the item may still take."""
        return self.deadline - perf_counter()

    @property
    def sizes(self) -> Sizes:
        """Return the sizes that suit the device."""
        return CPU if self.device == "cpu" else CUDA
