"""Compute log-probabilities of the tokens of a prompt, while the prompt is computed.

The hidden states after the final norm come in chunks, beside the rows of others. Each chunk is
projected in slices and dropped, so that the logits of a whole prompt never exist at once. The
logits of a position describe the token behind it: the first token has no log-probability.
"""

from __future__ import annotations

from functools import cache
from math import isnan
from typing import TYPE_CHECKING

from asyncgen.engine.sampling.logprobs import decoder_of, raw_logprobs
from asyncgen.errors import InvalidScoresError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from asyncgen.text.tokenizer import Tokenizer
    from asyncgen.types import TokenLogprob

MOST_SCORES = 2**23
"""Logits at a time: 32 MiB in float32, and at most three tensors of that size (in the model's
dtype, in float32, and their log-softmax)."""

MOST_TOKENS = 128
"""Most tokens of such a prompt in one step. With their projections they take about the time of
twice as many tokens without, so streams beside the prompt wait no longer than usual."""


class PromptLogprobs:
    """Log-probabilities of the prompt of one request; all of its sequences add to them.

    Attributes:
        entries: One for each token so far, from the first, which has ``None``; `take` removes them.
        is_whole: Whether all tokens must be computed in one step; False.
        shares_pages: Whether tokens in the prefix cache may stay uncomputed; False, as the hidden
            state of each token is needed.
        most_tokens: Most tokens of the prompt in one step.
        generates: Whether new tokens are asked for as well.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int],
        top: int,
        project: Callable[[Tensor], Tensor],
        vocab_size: int,
        tokenizer: Tokenizer | None,
        *,
        generates: bool = True,
    ) -> None:
        """Begin before the first token.

        Args:
            prompt_ids: The prompt.
            top: Number of most probable tokens to list with each.
            project: Computes logits ``[R, V]`` from hidden states ``[R, E]``.
            vocab_size: V.
            tokenizer: Decodes each token alone; ``None`` for empty texts.
            generates: Whether new tokens are asked for as well.
        """
        self.entries: list[TokenLogprob | None] = [None]
        self.generates = generates
        self.is_whole = self.shares_pages = False
        self.most_tokens: int | None = MOST_TOKENS
        self._ids = prompt_ids
        self._top = top
        self._project = project
        self._rows = max(MOST_SCORES // vocab_size, 1)
        self._decode = cache(decoder_of(tokenizer))  # most tokens come many times
        self._is_finite = True

    @property
    def is_complete(self) -> bool:
        """True if every token of the prompt has its entry."""
        return len(self.entries) == len(self._ids)

    def wanted(self, start: int, end: int, *, is_last: bool) -> range:
        """Return the positions of a chunk whose hidden states are to be added.

        Positions that any sequence has added before are left out, and so are the last token of
        the prompt and all behind it.

        Args:
            start: Position of the first token of the chunk.
            end: Position behind its last one.
            is_last: Whether the text ends there.
        """
        count = len(self.entries) - 1
        taken = range(max(start, count), min(end, len(self._ids) - 1))
        assert not taken or start <= count, "the hidden states before this chunk were never there"
        return taken

    def add(self, hidden: Tensor, start: int) -> None:
        """Add the hidden states of positions that were `wanted`, in order.

        Args:
            hidden: ``[T, E]`` of any floating dtype; not kept.
            start: Position of the first. Positions that another sequence has added meanwhile are
                skipped.
        """
        for first in range(len(self.entries) - 1 - start, hidden.shape[0], self._rows):
            part = hidden[first : first + self._rows]
            first_id = start + first + 1
            ids = list(self._ids[first_id : first_id + part.shape[0]])
            logits = self._project(part).float()
            for raw in raw_logprobs(logits, ids, [self._top] * len(ids)):
                self._is_finite = self._is_finite and not isnan(raw.logprob)
                self.entries.append(raw.named(self._decode))

    def take(self) -> tuple[TokenLogprob | None, ...]:
        """Return the entries, which are complete, and keep none of them."""
        taken = tuple(self.entries)
        self.entries = [None] * len(taken)
        return taken

    def finish(self) -> None:
        """Check that no entry is missing or NaN; idempotent.

        Raises:
            InvalidScoresError: A log-probability is NaN.
        """
        assert self.is_complete, "some tokens of the prompt were never computed"
        if not self._is_finite:
            raise InvalidScoresError(
                None,
                "the logits of this prompt hold NaN or infinities, so it has no log-probabilities; "
                'compute in a wider dtype (`dtype="float32"`)',
            )
