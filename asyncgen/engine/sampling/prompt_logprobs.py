"""Log-probabilities of the tokens of a prompt, taken while it is read.

The hidden states after the final norm come in chunks, beside the rows of others; each chunk is
projected in slices and forgotten, so that the logits of a whole prompt are never there at once. A
position tells of the token behind it: the first token of a prompt has no log-probability.
"""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

from asyncgen.engine.sampling.logprobs import entry_of, raw_logprobs, text_of
from asyncgen.errors import InvalidScoresError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from asyncgen.text.tokenizer import Tokenizer
    from asyncgen.types import TokenLogprob

MOST_SCORES = 2**23
"""Logits that are there at a time: 32 MiB in float32, and three tensors of that size at the most
(in the model's dtype, in float32, and their log-softmax)."""

MOST_TOKENS = 128
"""Tokens of such a prompt in one step: with the projection of each they cost about what twice as
many cost without, so that those who decode beside it wait no longer."""


class PromptLogprobs:
    """What the prompt of one request is worth; all of its samples add to it.

    Attributes:
        entries: So far, one a token of the prompt from the first, which has ``None``.
        is_whole: Whether all tokens must be computed in one step; they need not.
        shares_pages: Whether tokens may be left uncomputed whose keys and values are in pages
            already; not those of others, as each token's hidden state is needed.
        most_tokens: Tokens of the prompt that run in one step at the most.
        generates: Whether tokens are asked for as well.
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
            top: How many of the most probable tokens to tell with each.
            project: Makes logits ``[R, V]`` of hidden states ``[R, E]``.
            vocab_size: V.
            tokenizer: Gives the text of each token, decoded alone; ``None``: there is none.
            generates: Whether tokens are asked for as well.
        """
        self.entries: list[TokenLogprob | None] = [None]
        self.generates = generates
        self.is_whole = self.shares_pages = False
        self.most_tokens: int | None = MOST_TOKENS
        self._ids = prompt_ids
        self._top = top
        self._project = project
        self._rows = max(MOST_SCORES // vocab_size, 1)
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}
        self._is_sound = True

    @property
    def is_complete(self) -> bool:
        """Whether every token of the prompt has its entry."""
        return len(self.entries) == len(self._ids)

    def wanted(self, start: int, end: int, *, is_last: bool) -> range:
        """The positions of a chunk whose hidden states are to be added.

        What was added before counts, whichever sample it came from, so tokens that are computed
        again are left out; so are the last token of the prompt and all behind it.

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
        """Take in the hidden states of positions that were `wanted`, in their order.

        Args:
            hidden: ``[T, E]`` of any floating dtype; not kept.
            start: Position of the first; where another sample has added some of them since they
                were asked for, these are skipped.
        """
        for first in range(len(self.entries) - 1 - start, hidden.shape[0], self._rows):
            part = hidden[first : first + self._rows]
            place = start + first + 1
            ids = list(self._ids[place : place + part.shape[0]])
            logits = self._project(part).float()
            for token_id, raw in zip(
                ids, raw_logprobs(logits, ids, [self._top] * len(ids)), strict=True
            ):
                self._is_sound = self._is_sound and not isnan(raw.logprob)
                self.entries.append(entry_of(token_id, raw, self._text))

    def finish(self) -> None:
        """See that all is there; idempotent.

        Raises:
            InvalidScoresError: Some of it is NaN.
        """
        assert self.is_complete, "some tokens of the prompt were never computed"
        if not self._is_sound:
            raise InvalidScoresError(
                None,
                "the logits of this prompt hold NaN or infinities, so it has no log-probabilities; "
                'compute in a wider dtype (`dtype="float32"`)',
            )

    def _text(self, token_id: int) -> str:
        """The text of a token; most come many times."""
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = text_of(self._tokenizer, token_id)
        return text
