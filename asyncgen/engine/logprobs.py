"""Log-probabilities of the raw distribution, for the requests that ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.types import TokenLogprob, TopLogprob

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.tokenizer import Tokenizer

__all__ = ["token_logprob"]


def token_logprob(logits: Tensor, token_id: int, top: int, tokenizer: Tokenizer) -> TokenLogprob:
    """Describe one position.

    Args:
        logits: Raw logits, float32 ``[V]``, before any processor.
        token_id: The token that was chosen.
        top: How many of the most probable tokens to list.
        tokenizer: Gives the text of each token, decoded alone.

    Returns:
        The chosen token and its alternatives with natural logs of their probabilities.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = TokenLogprob(token_id, tokenizer.decode([token_id]), float(logprobs[token_id]))
    if not top:
        return chosen
    best = torch.topk(logprobs, min(top, logprobs.shape[-1]))
    alternatives = tuple(
        TopLogprob(other, tokenizer.decode([other]), value)
        for other, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )
    return TokenLogprob(chosen.token_id, chosen.token, chosen.logprob, alternatives)
