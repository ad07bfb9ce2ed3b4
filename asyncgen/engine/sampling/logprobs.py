"""Compute log-probabilities of the raw distribution, for the requests that ask for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from asyncgen.types import TokenLogprob, packed_top

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from asyncgen.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class RawLogprobs:
    """Log-probabilities of one position, without the texts of the tokens.

    Attributes:
        token_id: The chosen token.
        logprob: Natural logarithm of its probability.
        top_ids: The most probable tokens, most probable first.
        top_logprobs: Theirs.
    """

    token_id: int
    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]

    def named(self, decode: Callable[[int], str]) -> TokenLogprob:
        """Add the text of each token, which ``decode`` returns."""
        top = packed_top(self.top_ids, map(decode, self.top_ids), self.top_logprobs)
        return TokenLogprob(self.token_id, decode(self.token_id), self.logprob, top)


def raw_logprobs(logits: Tensor, token_ids: list[int], top: list[int]) -> list[RawLogprobs]:
    """Describe one position of several rows.

    Args:
        logits: Raw logits, float32 ``[R, V]``, before any processor.
        token_ids: The chosen token of each row.
        top: Number of most probable tokens to list for each row.

    Returns:
        One entry a row.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logprobs.gather(
        1, torch.tensor(token_ids, dtype=torch.int64, device=logits.device)[:, None]
    )
    most = min(max(top, default=0), logprobs.shape[-1])
    best = torch.topk(logprobs, most) if most else None
    values = best.values.tolist() if best else [[]] * len(top)
    ids = best.indices.tolist() if best else [[]] * len(top)
    return [
        RawLogprobs(token_id, own, row_ids[:count], row_values[:count])
        for token_id, (own,), row_ids, row_values, count in zip(
            token_ids, chosen.tolist(), ids, values, top, strict=True
        )
    ]


def decoder_of(tokenizer: Tokenizer | None) -> Callable[[int], str]:
    """Return a function that decodes a token alone; the text is empty without a tokenizer."""
    return lambda token_id: "" if tokenizer is None else tokenizer.decode([token_id])
