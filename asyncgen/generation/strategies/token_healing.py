"""Token healing: the last token of a prompt is chosen again, among those that it begins.

A prompt that ends inside a word ends with a token that the model would not have chosen there:
after ``"http:"`` it expects anything but ``"//"``, which is a part of the token ``"://"`` (Lundberg
2023, "The Art of Prompt Design: Prompt Boundaries and Token Healing"). White space at the end of a
prompt is left to the model for the same reason. `plan_healing` finds what to choose among;
`decode_healed` chooses, and then hands over to a strategy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.strategies.forward import Forward, read_prompt
from asyncgen.generation.strategies.step import Plan, Step, Steps, Strategy

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from torch import Tensor


_EXTENSION_BIAS: Final = 10.0
_OWN_BIAS: Final = 11.0
"""Where nothing speaks for a longer token, the old one stays."""

_FIXED: Final = 1e9
"""In the place of a bias, for a token that there is no choice about."""


class HealingTokenizer(Protocol):
    """Tokenizer as drafts and healing need it: ours or a Hugging Face one."""

    @property
    def all_special_ids(self) -> Collection[int]:
        """Ids that stand for no text."""

    def decode(self, token_ids: list[int]) -> str:
        """Text of ids."""

    def get_vocab(self) -> Mapping[str, int]:
        """Ids by token."""


@dataclass(frozen=True, slots=True)
class Healing:
    """Prompts whose last tokens are to be chosen again.

    Attributes:
        rows: Ids of each prompt, without white space at the end.
        bias: Added to the scores of the last token of each, float32 ``[B, V]``; may be expanded.
    """

    rows: list[list[int]]
    bias: Tensor


def plan_healing(
    tokenizer: HealingTokenizer | None, rows: Sequence[Sequence[int]], vocab_size: int
) -> Healing:
    """Find out which tokens may take the place of the last one of each prompt.

    Args:
        tokenizer: The model's.
        rows: Ids of each prompt, without padding.
        vocab_size: Number of scores, V.

    Raises:
        InvalidRequestError: There is no tokenizer.
    """
    if tokenizer is None:
        raise InvalidRequestError(
            "token_healing", True, "needs the model's tokenizer; pass it as `tokenizer`"
        )
    special = set(tokenizer.all_special_ids)
    spelled = _spelled(tokenizer, vocab_size)
    trimmed = [_trim(tokenizer, list(row), special) for row in rows]
    bias = torch.zeros(len(rows), vocab_size, dtype=torch.float32, device="cpu")
    for place, row in enumerate(trimmed):
        last = row[-1]
        beginning = spelled[last] if last < vocab_size else None
        # A lone token follows nothing that a choice could rest on.
        if beginning is None or last in special or len(row) < 2:
            bias[place, last] = _FIXED
            continue
        usable = [
            own
            for own, token in enumerate(spelled)
            if token is not None and token.startswith(beginning) and own not in special
        ]
        bias[place, usable] = _EXTENSION_BIAS
        bias[place, last] = _OWN_BIAS if len(usable) > 1 else _FIXED
    return Healing(trimmed, bias)


def _spelled(tokenizer: HealingTokenizer, vocab_size: int) -> list[str | None]:
    """Return the tokens of all scores.

    One by one: the library holds the process while it makes a copy of a vocabulary.
    """
    find = getattr(getattr(tokenizer, "backend_tokenizer", tokenizer), "id_to_token", None)
    if find is None:
        find = {token_id: token for token, token_id in tokenizer.get_vocab().items()}.get
    return [find(token_id) for token_id in range(vocab_size)]


def _trim(tokenizer: HealingTokenizer, row: list[int], special: set[int]) -> list[int]:
    """A prompt without the tokens of white space at its end; one token stays."""
    while len(row) > 1 and row[-1] not in special and not tokenizer.decode([row[-1]]).strip():
        row = row[:-1]
    return row


@torch.no_grad()
def decode_healed(plan: Plan, *, strategy: Strategy, bias: Tensor) -> Steps:
    """Heal the prompts of a plan and decode what follows.

    Args:
        plan: What to decode; its prompts change.
        strategy: How.
        bias: Added to the scores of the last token of each row, float32 ``[B, V]``.

    Yields:
        A :class:`Step` without ids for each prompt chunk, the last of them with the new prompts,
        then the steps of the strategy.

    Returns:
        What the strategy returns.
    """
    ids = plan.input_ids
    if ids.shape[1] > 1:
        # A cache of its own: strategies differ in what they expect to find in theirs.
        forward = Forward(replace(plan, cache=DynamicCache(), record=None, call=None))
        rows = len(ids) * plan.copies
        logits = yield from read_prompt(forward, ids[:, :-1], plan.prefill_chunk, rows)
        last = (logits.float() + bias.to(ids.device)).argmax(dim=-1, keepdim=True)
        plan.input_ids = ids = torch.cat((ids[:, :-1], last), dim=1)
    prompts = ids.repeat_interleave(plan.copies, dim=0)
    yield Step([[] for _ in range(len(prompts))], prompt=prompts)
    return (yield from strategy(plan))
