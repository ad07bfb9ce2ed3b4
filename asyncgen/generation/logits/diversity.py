"""Diverse beam search: what one group of beams took is worth less to the groups after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.base import (
    Definition,
    LogitsProcessor,
    Stage,
    as_float,
    check_count,
    check_positive,
)

if TYPE_CHECKING:
    from torch import Tensor


class HammingDiversityLogitsProcessor(LogitsProcessor):
    """Subtracts a penalty for every beam of an earlier group that took the token in this step.

    Vijayakumar et al. 2016, arXiv 1610.02424, section 4 (Hamming diversity). Used by group beam
    search only, which calls it for one group after the other.
    """

    definition = Definition(
        Stage.PROCESSOR,
        30,
        "diversity_penalty",
        off=0.0,
        is_on=lambda penalty: penalty > 0.0,
        build=lambda kind, penalty, setting: kind(as_float(penalty), *setting.beams),
    )

    def __init__(self, diversity_penalty: float, num_beams: int, num_beam_groups: int) -> None:
        """Check the parameters.

        Args:
            diversity_penalty: A float above 0.
            num_beams: Beams of a prompt, at least 2.
            num_beam_groups: Groups that they are divided into, at least 2.

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        self._diversity_penalty = check_positive("diversity_penalty", diversity_penalty)
        self._num_beams = check_count("num_beams", num_beams, least=2)
        groups = check_count("num_beam_groups", num_beam_groups, least=2)
        if groups > num_beams:
            raise InvalidRequestError(
                "num_beam_groups", groups, f"must not exceed `num_beams` ({num_beams})"
            )
        self._group_size = num_beams // groups

    def __call__(
        self,
        input_ids: Tensor,
        scores: Tensor,
        current_tokens: Tensor | None = None,
        beam_group_idx: int = 0,
    ) -> Tensor:
        """Penalise what earlier groups took.

        Args:
            input_ids: Not looked at, int64 [B * group size, T].
            scores: Of the beams of one group, [B * group size, V].
            current_tokens: Tokens of this step so far, int64 [B * num_beams], in the order of the
                beams; those of earlier groups count. None: there is no earlier group.
            beam_group_idx: The group, from 0.

        Returns:
            [B * group size, V].
        """
        before = beam_group_idx * self._group_size
        if before == 0 or current_tokens is None:
            return scores
        taken = current_tokens.view(-1, self._num_beams)[:, :before]  # [B, earlier beams]
        counts = scores.new_zeros(len(taken), scores.shape[-1])
        counts.scatter_add_(1, taken, torch.ones_like(taken, dtype=scores.dtype))
        return scores - self._diversity_penalty * counts.repeat_interleave(self._group_size, dim=0)
