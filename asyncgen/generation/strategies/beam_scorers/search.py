"""The scorer of standard and diverse beam search.

Diverse beam search (Vijayakumar et al. 2016, arXiv 1610.02424) runs several groups of beams for
each prompt, one after the other in every step; each group has its own n-best list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen.generation.strategies.beam_scorers.base import first_id, id_list
from asyncgen.generation.strategies.beam_scorers.ranked import RankedScorer, StepOfGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["BeamSearchScorer"]


class BeamSearchScorer(RankedScorer):
    """Ranks candidates by their sums of log-probabilities."""

    def process(
        self,
        input_ids: Tensor,
        next_scores: Tensor,
        next_tokens: Tensor,
        next_indices: Tensor,
        pad_token_id: Any = None,
        eos_token_id: Any = None,
        beam_indices: Sequence[Sequence[int]] | None = None,
        group_index: int | None = 0,
        decoder_prompt_len: int | None = 0,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        """Take the candidates of one step of one group (see `BeamScorer`).

        Args:
            input_ids: Beams of the group, int64 ``[B * group_size, T]``.
            next_scores: float32 ``[B, K]``, best first.
            next_tokens: int64 ``[B, K]``.
            next_indices: int64 ``[B, K]``, 0 to ``group_size - 1``.
            pad_token_id: What prompts that are done go on with.
            eos_token_id: Id or ids that end a sequence.
            beam_indices: Rows of the generated tokens of each beam, if they are wanted; counted
                over the beams of all groups.
            group_index: The group.
            decoder_prompt_len: Length of the prompt, which the length penalty does not count.
            kwargs: Not used.

        Returns:
            See `BeamScorer`.

        Raises:
            InvalidRequestError: The number of rows does not fit.
            ValueError: Fewer candidates than beams go on.
        """
        step = StepOfGroup(
            input_ids,
            frozenset(id_list(eos_token_id)),
            first_id(pad_token_id),
            beam_indices,
            group_index or 0,
            decoder_prompt_len or 0,
        )
        return self._process(step, next_scores, next_tokens, next_indices, lambda _, beams: beams)
