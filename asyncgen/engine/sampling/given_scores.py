"""Compute the scores of tokens that a request was given again, for samplers that follow them.

What most processors keep of a sequence follows from its tokens. Mirostat's state follows from their
probabilities as well, so a request that goes on behind tokens has them computed once more, while
its text is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from asyncgen.engine.sampling.prompt_logprobs import MOST_TOKENS
from asyncgen.generation.logits.base import definition_of
from asyncgen.generation.logits.checked_processors import CheckedProcessors
from asyncgen.generation.logits.mirostat import MirostatLogitsWarper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from asyncgen.generation.logits.base import LogitsProcessorList


class GivenScores:
    """The scores of the given tokens of one sample, for its processors.

    Attributes:
        is_whole: Whether all tokens must be computed in one step; False.
        shares_pages: Whether tokens in the prefix cache may stay uncomputed; False, as the hidden
            states are needed.
        most_tokens: Most tokens of the text in one step.
        generates: Whether new tokens are asked for as well; True.
    """

    def __init__(
        self,
        processors: LogitsProcessorList,
        prompt_ids: Sequence[int],
        given: Sequence[int],
        project: Callable[[Tensor], Tensor],
    ) -> None:
        """Begin before the first given token.

        Args:
            processors: Of the request; those that follow scores go on from here.
            prompt_ids: The prompt.
            given: Tokens behind it, at least one.
            project: Computes logits ``[R, V]`` from hidden states ``[R, E]``.
        """
        self.is_whole = self.shares_pages = False
        self.most_tokens: int | None = MOST_TOKENS
        self.generates = True
        self._ids = [*prompt_ids, *given]
        self._next = len(prompt_ids) - 1
        self._project = project
        self._processors = CheckedProcessors()
        for processor in processors:
            definition = definition_of(processor)
            own: Any = processor if definition is None else definition.for_sample(processor, 0)
            if isinstance(processor, MirostatLogitsWarper):
                processor.begun = own
            self._processors.append(own)

    def wanted(self, start: int, end: int, *, is_last: bool) -> range:
        """Return the positions of a chunk whose hidden states are to be added.

        Args:
            start: Position of the first token of the chunk.
            end: Position behind its last one.
            is_last: Whether the text ends there.
        """
        return range(max(start, self._next), min(end, len(self._ids) - 1))

    def add(self, hidden: Tensor, start: int) -> None:
        """Run the processors on the scores of positions that were `wanted`, in order.

        Args:
            hidden: ``[T, E]`` of any floating dtype; not kept.
            start: Position of the first.
        """
        ids = torch.tensor([self._ids], dtype=torch.int64, device=hidden.device)
        for number in range(self._next - start, hidden.shape[0]):
            scores = self._project(hidden[number : number + 1]).float()
            self._next += 1
            self._processors(ids[:, : self._next], scores)

    def finish(self) -> None:
        """Check that no token is missing; idempotent."""
        assert self._next == len(self._ids) - 1, "some scores were never computed"
