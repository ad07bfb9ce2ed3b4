"""End rows of structured output where the answer is complete and nothing may follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from asyncgen.generation.stopping.criteria import StoppingCriteria

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.structured.grammar import Grammar, Matcher


class GrammarCriteria(StoppingCriteria):
    """Ends a row with the token that completes its grammar, if no other token may follow."""

    def __init__(self, grammar: Grammar, prompt_length: int) -> None:
        """Begin before the first token.

        Args:
            grammar: The compiled grammar.
            prompt_length: Tokens of a row that are its prompt, padding included.
        """
        self._grammar = grammar
        self._prompt_length = prompt_length
        self._matchers: list[Matcher] = []

    def __call__(self, input_ids: Tensor, scores: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Follow the rows; ids are int64 [B, T]. Returns bool [B]."""
        while len(self._matchers) < len(input_ids):
            self._matchers.append(self._grammar.matcher())
        found = []
        for matcher, ids in zip(
            self._matchers, input_ids[:, self._prompt_length :].tolist(), strict=False
        ):
            matcher.follow(ids)
            found.append(matcher.is_over)
        return torch.tensor(found, dtype=torch.bool, device=input_ids.device)
