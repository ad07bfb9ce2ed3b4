"""Log-probabilities of the raw distribution, for the requests that ask for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from asyncgen.types import TokenLogprob, TopLogprob

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from asyncgen.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class RawLogprobs:
    """Log-probabilities of one position, without the texts of the tokens.

    Attributes:
        logprob: Of the chosen token, natural log.
        top: Ids and log-probabilities of the most probable tokens, most probable first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def raw_logprobs(logits: Tensor, token_ids: list[int], top: list[int]) -> list[RawLogprobs]:
    """Describe one position of several rows.

    Args:
        logits: Raw logits, float32 ``[R, V]``, before any processor.
        token_ids: The token that was chosen in each row.
        top: How many of the most probable tokens to list for each row.

    Returns:
        One entry a row.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logprobs.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])
    most = min(max(top, default=0), logprobs.shape[-1])
    best = torch.topk(logprobs, most) if most else None
    values = best.values.tolist() if best else [[]] * len(top)
    ids = best.indices.tolist() if best else [[]] * len(top)
    return [
        RawLogprobs(own, tuple(zip(row_ids[:count], row_values[:count], strict=True)))
        for (own,), row_ids, row_values, count in zip(
            chosen.tolist(), ids, values, top, strict=True
        )
    ]


def named_logprob(token_id: int, raw: RawLogprobs, tokenizer: Tokenizer | None) -> TokenLogprob:
    """Add the text of each token, decoded alone; none without a tokenizer."""
    return entry_of(token_id, raw, partial(text_of, tokenizer))


def entry_of(token_id: int, raw: RawLogprobs, name: Callable[[int], str]) -> TokenLogprob:
    """Add the text of each token, as ``name`` tells it."""
    top = tuple(TopLogprob(other, name(other), value) for other, value in raw.top)
    return TokenLogprob(token_id, name(token_id), raw.logprob, top)


def text_of(tokenizer: Tokenizer | None, token_id: int) -> str:
    """A token, decoded alone; empty without a tokenizer."""
    return "" if tokenizer is None else tokenizer.decode([token_id])


def token_logprob(
    logits: Tensor, token_id: int, top: int, tokenizer: Tokenizer | None
) -> TokenLogprob:
    """Describe one position.

    Args:
        logits: Raw logits, float32 ``[V]``, before any processor.
        token_id: The token that was chosen.
        top: How many of the most probable tokens to list.
        tokenizer: Gives the text of each token, decoded alone.

    Returns:
        The chosen token and its alternatives with natural logs of their probabilities.
    """
    [raw] = raw_logprobs(logits[None], [token_id], [top])
    return named_logprob(token_id, raw, tokenizer)
