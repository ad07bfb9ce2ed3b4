"""What every beam scorer does, and the two shapes of its answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BeamScorer", "first_id", "id_list"]


class BeamScorer(ABC):
    """Decides which candidates live on as beams, and what is returned in the end."""

    @abstractmethod
    def process(
        self,
        input_ids: Tensor,
        next_scores: Tensor,
        next_tokens: Tensor,
        next_indices: Tensor,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        """Take the candidates of one step.

        Args:
            input_ids: The beams, int64 ``[B * N, T]``, N next to each other for each prompt.
            next_scores: Sums of log-probabilities of the best candidates, best first,
                float32 ``[B, K]``.
            next_tokens: Their tokens, int64 ``[B, K]``.
            next_indices: The beam that each continues, 0 to N - 1, int64 ``[B, K]``.
            kwargs: What a scorer needs beside.

        Returns:
            ``next_beam_scores``, ``next_beam_tokens`` and ``next_beam_indices``, each
            ``[B * N]``: the beams to go on with, the last as rows of ``input_ids``.
        """

    @abstractmethod
    def finalize(
        self,
        input_ids: Tensor,
        next_scores: Tensor,
        next_tokens: Tensor,
        next_indices: Tensor,
        max_length: int,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Rank what lives beside what is complete.

        Args:
            input_ids: The beams, int64 ``[B * N, T]``.
            next_scores: Their scores, float32 ``[B * N]``.
            next_tokens: Their last tokens; not used.
            next_indices: Rows that these continued; not used.
            max_length: Longest sequence to return.
            kwargs: What a scorer needs beside.

        Returns:
            ``sequences`` int64 ``[B * R, T']``, ``sequence_scores`` float32 ``[B * R]``, and
            ``beam_indices`` (int64 ``[B * R, T']``, -1 behind the end, or ``None``).
        """


def id_list(ids: Any) -> list[int]:
    """Token ids in any of their forms: one, a list, a tensor, none."""
    if ids is None:
        return []
    if hasattr(ids, "tolist"):
        ids = ids.tolist()
    return [ids] if isinstance(ids, int) else list(ids)


def first_id(ids: Any) -> int | None:
    """The first of them."""
    return next(iter(id_list(ids)), None)
