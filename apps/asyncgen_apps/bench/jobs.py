"""Define the job of a side and the figures of a run, for both ends of a worker's pipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Job:
    """Answers to generate.

    Attributes:
        prompts: Token ids of each prompt.
        options: Keyword arguments of the generation; ``max_new_tokens`` is among them.
    """

    prompts: list[list[int]]
    options: dict[str, Any]

    @property
    def new_tokens(self) -> int:
        """Tokens of each answer."""
        found: int = self.options["max_new_tokens"]
        return found


@dataclass(frozen=True, slots=True)
class Run:
    """Figures of one job, in seconds.

    Attributes:
        total: From the first request to the last token.
        first: To the first token or text of each stream, as its reader saw it.
        gaps: Between the tokens of each stream, as its reader saw them.
        text: Text of a single answer, if the side reads text.
        token_ids: New tokens of a single answer, if the side returns them.
        others: Cores that other processes used meanwhile; ``None`` if not known.
    """

    total: float
    first: Sequence[float] = ()
    gaps: Sequence[float] = ()
    text: str = ""
    token_ids: Sequence[int] = ()
    others: float | None = None

    @property
    def is_disturbed(self) -> bool:
        """True if other processes used more of the cores than a desktop at rest does."""
        return self.others is not None and self.others > DISTURBING

    def data(self) -> dict[str, object]:
        """Return what JSON files keep of a run."""
        return {"total": self.total, "others": self.others}


DISTURBING = 0.15
"""Cores of other processes that make a run doubtful."""
