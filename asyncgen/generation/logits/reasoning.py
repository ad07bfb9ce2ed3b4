"""Ends reasoning that has used up its budget."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from asyncgen.generation.logits.base import Definition, LogitsProcessor, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

_MOST_BEGINNING = 16
"""Tokens that the marker in front of the reasoning has at most, white space before it included."""


class ReasoningBudget(LogitsProcessor):
    """Allows only the end marker's tokens, one after the other, where the budget is used up.

    What it allows is a function of the tokens so far, so that a request which is preempted, or
    goes on elsewhere behind its tokens, gets the same. It comes last: nothing filters its token.
    """

    definition = Definition(Stage.LAST, 1000)

    def __init__(
        self,
        budget: int,
        *,
        prompt_length: int,
        begin: str,
        end: str,
        ending: Sequence[int],
        is_open: bool,
        decode: Callable[[list[int]], str],
    ) -> None:
        """Keep what it needs.

        Args:
            budget: Tokens of reasoning, at least 0, without its markers.
            prompt_length: Tokens of the prompt.
            begin: The marker in front of the reasoning.
            end: The marker behind it.
            ending: Ids of what is written where the budget is used up, at least one.
            is_open: Whether the prompt ends with the marker in front.
            decode: Text of ids, special tokens included.
        """
        self._budget, self._prompt_length = budget, prompt_length
        self._begin, self._end, self._ending = begin, end, list(ending)
        self._is_open = is_open
        self._decode = decode
        self._start = lru_cache(maxsize=64)(self._find_start)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Leave one token where the reasoning must end; ids are int64 [B, T], scores [B, V]."""
        written = input_ids.shape[1] - self._prompt_length
        if not self._budget <= written < self._budget + len(self._ending) + _MOST_BEGINNING:
            return scores
        forced = [self._forced(row[self._prompt_length :].tolist()) for row in input_ids]
        if all(token is None for token in forced):
            return scores
        scores = scores.clone()
        for row, token in enumerate(forced):
            if token is not None:
                scores[row] = torch.full_like(scores[row], -torch.inf)
                scores[row, token] = 0.0
        return scores

    def _forced(self, ids: list[int]) -> int | None:
        """The one token that may follow; ``None`` where all may."""
        start = 0 if self._is_open else self._start(tuple(ids[:_MOST_BEGINNING]))
        if start is None:
            return None
        place = len(ids) - start - self._budget
        if not 0 <= place < len(self._ending):
            return None
        thought = ids[start : start + self._budget]
        if self._end in self._decode(thought):
            return None
        begun = _begun(thought, self._ending)
        return self._ending[place + begun] if place + begun < len(self._ending) else None

    def _find_start(self, ids: tuple[int, ...]) -> int | None:
        """Tokens up to the end of the marker in front; ``None`` where there is none."""
        for count in range(1, len(ids) + 1):
            if self._decode(list(ids[:count])).lstrip().startswith(self._begin):
                return count
        return None


def _begun(thought: list[int], ending: list[int]) -> int:
    """Return how many tokens of the ending the reasoning already ends with."""
    counts = range(min(len(thought), len(ending) - 1), 0, -1)
    return next((count for count in counts if thought[-count:] == ending[:count]), 0)
