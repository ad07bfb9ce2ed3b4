"""Only tokens that a function of the text so far allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.generation.logits.base import LogitsProcessor, check_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["PrefixConstrainedLogitsProcessor"]


class PrefixConstrainedLogitsProcessor(LogitsProcessor):
    """Bans every token that the user's function does not list (de Cao et al. 2020, 2010.00904)."""

    def __init__(
        self, prefix_allowed_tokens_fn: Callable[[int, Tensor], list[int]], num_beams: int
    ) -> None:
        """Keep the function.

        Args:
            prefix_allowed_tokens_fn: Called with the index of the prompt and the ids of one beam,
                int64 [T]; returns the ids that may follow.
            num_beams: Rows that belong to one prompt.

        Raises:
            InvalidRequestError: ``num_beams`` is no positive integer.
        """
        self._allowed = prefix_allowed_tokens_fn
        self._num_beams = check_count("num_beams", num_beams)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Ban what is not allowed; ids are int64 [B * num_beams, T], scores [B * num_beams, V].

        Raises:
            ValueError: The function allows nothing.
        """
        allowed = torch.full_like(scores, -torch.inf)
        for row, ids in enumerate(input_ids):
            prompt = row // self._num_beams
            listed = list(self._allowed(prompt, ids))
            if not listed:
                raise ValueError(
                    f"`prefix_allowed_tokens_fn` returned an empty list for batch_id {prompt}: "
                    "some token has to be allowed at every step"
                )
            allowed[row, listed] = 0.0
        masked = scores + allowed
        # Where other processors banned all that a prompt's beams may take, this one wins.
        by_prompt = masked.view(-1, self._num_beams, masked.shape[-1])
        stuck = by_prompt.isneginf().all(dim=2).all(dim=1).repeat_interleave(self._num_beams)
        return torch.where(stuck[:, None], allowed, masked)
