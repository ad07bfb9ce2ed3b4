"""Only tokens that a function of the text so far allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.base import Definition, LogitsProcessor, Stage, check_count
from asyncgen.runtime.user_code import run_user_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from asyncgen.generation.logits.batched import BatchScores, RowProcessor


def allow(scores: Tensor, allowed: Tensor, num_beams: int = 1) -> Tensor:
    """Ban all tokens but some.

    Args:
        scores: [B * num_beams, V].
        allowed: 0 for allowed tokens and -inf for all others, of the same shape.
        num_beams: Rows that belong to one prompt.

    Returns:
        [B * num_beams, V]. Where the scores ban all that a prompt's beams may take, ``allowed``.
    """
    masked = scores + allowed
    best = masked.amax(-1).view(-1, num_beams).amax(-1)  # NaN where there is any
    stuck = best.isneginf().repeat_interleave(num_beams)
    return torch.where(stuck[:, None], allowed, masked)


class _Allow:
    """Bans what the functions of several rows do not allow, in place.

    Row by row: scores of one row stay in the processor's cache, and the functions are Python.
    """

    def __init__(self, parts: list[RowProcessor], scores: BatchScores) -> None:
        self._parts = parts

    def __call__(self, scores: BatchScores) -> None:
        """Ask the function of each row."""
        for row, processor in self._parts:
            own = scores.values[row : row + 1]
            with scores.guarded(row):
                ids = scores.rows[row].input_ids(own.device)[0]
                listed = scores.tensor(processor.listed(0, ids, scores.size))
                allowed = torch.full_like(own, -torch.inf).index_fill_(1, listed, 0.0)
                own.copy_(allow(own, allowed))


class PrefixConstrainedLogitsProcessor(LogitsProcessor):
    """Bans every token that the user's function does not list (de Cao et al. 2020, 2010.00904)."""

    definition = Definition(
        Stage.PROCESSOR,
        110,
        "prefix_allowed_tokens_fn",
        build=lambda kind, function, setting: kind(function, setting.beams[0] // setting.beams[1]),
        batched=_Allow,
        fits=lambda own, _: own.num_beams == 1,
    )

    def __init__(
        self, prefix_allowed_tokens_fn: Callable[[int, Tensor], list[int]], num_beams: int
    ) -> None:
        """Keep the function.

        Args:
            prefix_allowed_tokens_fn: Called with the index of the prompt and the ids of one beam,
                int64 [T]; returns the ids that may follow.
            num_beams: Rows that belong to one prompt.

        Raises:
            InvalidRequestError: The first is no function, or ``num_beams`` no positive integer.
        """
        if not callable(prefix_allowed_tokens_fn):
            allowed = "must be a function of the prompt's number and the ids so far"
            raise InvalidRequestError("prefix_allowed_tokens_fn", prefix_allowed_tokens_fn, allowed)
        self._allowed = prefix_allowed_tokens_fn
        self.num_beams = check_count("num_beams", num_beams)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply `allow`; ids are int64 [B * num_beams, T], scores [B * num_beams, V].

        Raises:
            ValueError: The function allows nothing.
            IndexError: It allows a token that there is not.
        """
        allowed = torch.full_like(scores, -torch.inf)
        for row, ids in enumerate(input_ids):
            allowed[row, self.listed(row // self.num_beams, ids, scores.shape[-1])] = 0.0
        return allow(scores, allowed, self.num_beams)

    def listed(self, prompt: int, ids: Tensor, size: int) -> list[int]:
        """Return what the function allows after ids [T], of so many tokens.

        Raises:
            ValueError: That is nothing.
            IndexError: It is a token that there is not.
        """
        listed = run_user_code(lambda: list(map(int, self._allowed(prompt, ids))))
        if not listed:
            raise ValueError(
                f"`prefix_allowed_tokens_fn` returned an empty list for batch_id {prompt}: "
                "some token has to be allowed at every step"
            )
        if not -size <= min(listed) <= max(listed) < size:
            raise IndexError(
                f"`prefix_allowed_tokens_fn` returned {min(listed)} to {max(listed)} for batch_id"
                f" {prompt}: tokens must be below {size}; negative ones count from the end"
            )
        return [token % size for token in listed] if min(listed) < 0 else listed
