"""Drafts of a model with another tokenizer: universal assisted decoding.

The two meet in the text (Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative
Decoding Algorithms for Heterogeneous Vocabularies", arXiv 2502.05202). Greedy drafts are written
out and encoded again, whatever tokens that needs. Sampled drafts must say how likely each token
was, so they keep to the tokens that both vocabularies have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.base import LogitsProcessor
from asyncgen.generation.strategies.drafters.drafter import check_count, common_prefix_length
from asyncgen.generation.strategies.step import Drafting, Proposal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from asyncgen.generation.strategies.drafters.assistant import AssistantDrafter


_SPACES = ("▁", "Ġ")
"""What stands for a space in the vocabularies of the two common kinds of tokenizers."""


class TextTokenizer(Protocol):
    """Tokenizer as drafts and healing need it: ours or a Hugging Face one."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        """Text of ids."""

    def get_vocab(self) -> Mapping[str, int]:
        """Ids by token."""


class TokenTranslator:
    """The deciding model's tokenizer and the draft model's, and how far back they look.

    Tokens depend on their neighbours, so a new piece of text is encoded together with some of what
    came before it, and joined to what is known where both agree.
    """

    def __init__(
        self,
        target: TextTokenizer,
        assistant: TextTokenizer,
        *,
        target_lookbehind: int = 10,
        assistant_lookbehind: int = 10,
    ) -> None:
        """Pair two tokenizers.

        Args:
            target: The deciding model's.
            assistant: The draft model's.
            target_lookbehind: Settled tokens that are encoded again for the draft model.
            assistant_lookbehind: Tokens of the draft model that are encoded again with a draft.

        Raises:
            InvalidRequestError: A number is below 1.
        """
        check_count("target_lookbehind", target_lookbehind)
        check_count("assistant_lookbehind", assistant_lookbehind)
        self._target = target
        self._assistant = assistant
        self._target_lookbehind = target_lookbehind
        self._assistant_lookbehind = assistant_lookbehind

    def to_assistant(self, known: list[int], settled: Sequence[int], seen: int) -> list[int]:
        """Write settled ids in the draft model's tokens.

        Args:
            known: Its tokens for the first ``seen`` settled ids.
            settled: All settled ids.
            seen: How many of them ``known`` covers; 0 for none.
        """
        if seen:
            window = list(settled[max(0, seen - self._target_lookbehind) :])
            encoded = self._assistant.encode(self._text(window), add_special_tokens=False)
            joint = _join(known, encoded)
            if joint is not None:
                end, place = joint
                return known[:end] + encoded[place:]
        return self._assistant.encode(self._text(list(settled)))

    def to_target(self, settled: Sequence[int], known: list[int], draft: list[int]) -> list[int]:
        """Write a draft in the deciding model's tokens.

        Args:
            settled: Settled ids.
            known: The same in the draft model's tokens.
            draft: What the draft model would add.
        """
        window = known[-self._assistant_lookbehind :] + draft
        text = self._assistant.decode(window, skip_special_tokens=True)
        encoded = self._target.encode(text, add_special_tokens=False)
        tail = list(settled[-len(encoded) - 1 :])
        joint = _join(tail, encoded, whole=True)
        if joint is not None:
            return encoded[joint[1] :]
        text = self._assistant.decode(draft, skip_special_tokens=True)
        return self._target.encode(text, add_special_tokens=False)

    def append_tokens(self, known: list[int], new: Sequence[int], shared: SharedTokens) -> None:
        """Add settled ids to ``known`` one by one, as shared tokens where there are such."""
        for token_id in new:
            own = shared.assistant_id(token_id)
            if own is not None:
                known.append(own)
            else:
                known += self._assistant.encode(self._text([token_id]), add_special_tokens=False)

    def _text(self, settled: list[int]) -> str:
        return self._target.decode(settled, skip_special_tokens=True)


class SharedTokens(LogitsProcessor):
    """The tokens of both vocabularies; as a processor it bans all others from a draft.

    Attributes:
        size: How many there are.
    """

    def __init__(
        self,
        target: TextTokenizer,
        assistant: TextTokenizer,
        *,
        target_size: int,
        assistant_size: int,
        ends: Mapping[int, int],
        device: torch.device | str = "cpu",
    ) -> None:
        """Find them.

        Args:
            target: The deciding model's tokenizer.
            assistant: The draft model's tokenizer.
            target_size: Scores of the deciding model, V.
            assistant_size: Scores of the draft model.
            ends: Draft model's end-of-sequence ids to the deciding model's.
            device: Where scores will be.

        Raises:
            InvalidRequestError: There is no such token.
        """
        spelled = {_spelling(token): own for token, own in target.get_vocab().items()}
        pairs = {
            own: spelled[_spelling(token)]
            for token, own in assistant.get_vocab().items()
            if _spelling(token) in spelled
        }
        pairs |= ends
        pairs = {a: t for a, t in pairs.items() if a < assistant_size and t < target_size}
        # Two spellings may fall together; one token each keeps the distribution what it is said
        # to be.
        self._to_assistant = {t: a for a, t in sorted(pairs.items(), reverse=True)}
        self.size = len(self._to_assistant)
        if not self._to_assistant:
            raise InvalidRequestError(
                "assistant_tokenizer",
                type(assistant).__name__,
                "no token in common with `tokenizer`; sampling needs some, so leave the assistant "
                "out or decode greedily",
            )
        order = sorted(self._to_assistant.items())
        self._target_ids = torch.tensor([t for t, _ in order], dtype=torch.int64, device=device)
        self._assistant_ids = torch.tensor([a for _, a in order], dtype=torch.int64, device=device)
        self._target_size = target_size
        self._banned = torch.ones(assistant_size, dtype=torch.bool, device=device)
        self._banned[self._assistant_ids] = False
        self._target_of = torch.zeros(assistant_size, dtype=torch.int64, device=device)
        self._target_of[self._assistant_ids] = self._target_ids

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Ban what the deciding model does not know; scores are ``[B, V of the draft model]``."""
        return scores.masked_fill(self._banned, -torch.inf)

    def assistant_id(self, target_id: int) -> int | None:
        """The draft model's id of a token, ``None`` where it has no such token."""
        return self._to_assistant.get(target_id)

    def translate(self, proposal: Proposal) -> Proposal:
        """A proposal of the draft model in the deciding model's ids and vocabulary."""
        scores = proposal.scores
        if scores is not None:
            theirs = scores.new_full((len(scores), self._target_size), -torch.inf)
            theirs[:, self._target_ids] = scores[:, self._assistant_ids]
            scores = theirs
        return Proposal(self._target_of[proposal.token_ids], scores)


@dataclass(eq=False)
class UniversalDrafter:
    """Puts a drafter with another tokenizer in the place of one with the same.

    Attributes:
        drafter: Drafts in its own tokens.
        translator: The two tokenizers.
        ends: Draft model's end-of-sequence ids to the deciding model's.
        shared: For sampled drafts, the tokens they keep to; also among the drafter's processors.
    """

    drafter: AssistantDrafter
    translator: TokenTranslator
    ends: Mapping[int, int]
    shared: SharedTokens | None = None
    _known: list[int] = field(default_factory=list, init=False)
    _settled: list[int] = field(default_factory=list, init=False)
    _proposed: int = field(default=0, init=False)
    _drafted: int = field(default=0, init=False)

    def propose(self, ids: Tensor, room: int) -> Drafting:
        """See `Drafter`."""
        self._proposed = self._drafted = 0
        self._catch_up(ids)
        if not self._known:
            return Proposal(ids.new_empty(0))
        own = ids.new_tensor([self._known])
        proposal = yield from self.drafter.propose(own, room, stream=ids.shape[1])
        self._drafted = len(proposal.token_ids)
        if self.shared is not None:
            translated = self.shared.translate(proposal)
        else:
            guesses = self._written(proposal.token_ids.tolist())[:room]
            translated = Proposal(ids.new_tensor(guesses, dtype=torch.int64))
        self._proposed = len(translated.token_ids)
        return translated

    def update(self, accepted: int) -> None:
        """See `Drafter`."""
        if self._drafted:
            # Tokens are not counted alike; a draft was right as a whole, or to a like share.
            whole = accepted == self._proposed
            self.drafter.update(self._drafted if whole else min(accepted, self._drafted - 1))

    def _catch_up(self, ids: Tensor) -> None:
        """Write what was settled since the last round in the draft model's tokens."""
        seen, known = len(self._settled), self._known
        new = ids[0, seen:].tolist()
        self._settled += new
        if self.shared is not None and seen:
            self._known = list(known)
            self.translator.append_tokens(self._known, new, self.shared)
        else:
            self._known = self.translator.to_assistant(known, self._settled, seen)
        if self._known:
            # The last token is computed again, whose logits are wanted.
            self.drafter.crop(min(common_prefix_length(known, self._known), len(self._known) - 1))

    def _written(self, draft: list[int]) -> list[int]:
        """A greedy draft in the deciding model's tokens."""
        end = self.ends.get(draft[-1])
        guesses = self.translator.to_target(self._settled, self._known, draft)
        return guesses if end is None else [*guesses, end]


def _spelling(token: str) -> str:
    """A token with a plain space, however its tokenizer spells that."""
    for space in _SPACES:
        token = token.replace(space, " ")
    return token


def _join(known: list[int], window: list[int], *, whole: bool = False) -> tuple[int, int] | None:
    """Find the positions at which two overlapping sequences agree.

    Args:
        known: Its end overlaps with the beginning of ``window``.
        window: Its beginning may be split otherwise.
        whole: Whether all of ``known`` must be kept.

    Returns:
        ``(end, place)``: ``known[:end]`` and ``window[place:]`` make one sequence; the ids before
        agree for as long as possible. ``None`` where nothing agrees.
    """
    best: tuple[int, int, int] | None = None
    places: dict[int, list[int]] = {}
    for place, token_id in enumerate(window, start=1):
        places.setdefault(token_id, []).append(place)
    first = max(1, len(known) if whole else len(known) - len(window) + 1)
    for end in range(len(known), first - 1, -1):
        following = known[end] if end < len(known) else None
        for place in places.get(known[end - 1], ()):
            if following is not None and place < len(window) and window[place] == following:
                continue  # part of a longer agreement, which was found one token later
            length, most = 1, min(end, place)
            while length < most and known[end - length - 1] == window[place - length - 1]:
                length += 1
            if best is None or length > best[0]:
                best = (length, end, place)
    return None if best is None else best[1:]
