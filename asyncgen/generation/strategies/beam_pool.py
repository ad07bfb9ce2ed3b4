"""The hypotheses of a beam search: those that live, those that are complete, and the rule between.

Beam search keeps the `num_beams` best unfinished continuations of a prompt (Graves 2012, arXiv
1211.3711, section 3; Sutskever et al. 2014, arXiv 1409.3215, section 3.2) and, beside them, the
`num_beams` best complete ones, whose sums of log-probabilities are divided by a power of their
length (Wu et al. 2016, arXiv 1609.08144, section 7). Knows neither models nor caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

if TYPE_CHECKING:
    from torch import Tensor


_OUT = -1.0e9
"""Added to scores that are out of the race; finite, so that sums of them still compare."""
_ROOM = 256


@dataclass(frozen=True, slots=True)
class BeamRules:
    """What a configuration says about a search.

    Attributes:
        num_beams: Live beams of a prompt, N; also how many complete hypotheses are kept.
        early_stopping: ``True``: a prompt is done with N complete hypotheses; ``False``: when the
            best live beam, at its present length, would not get among them; ``"never"``: when it
            could not at any length.
        length_penalty: Exponent of the length that scores are divided by.
        max_length: Longest sequence, prompt included; ``None`` is no limit.
        filler: Id behind the end of a shorter sequence.
        num_ends: How many ids end a sequence.
    """

    num_beams: int
    early_stopping: bool | str
    length_penalty: float
    max_length: int | None
    filler: int
    num_ends: int

    @property
    def num_candidates(self) -> int:
        """Continuations of a prompt that are looked at: enough for N that do not end."""
        return max(2, 1 + self.num_ends) * self.num_beams


@dataclass(slots=True)
class Hypotheses:
    """N sequences of each prompt.

    Attributes:
        ids: int64 ``[B, N, room]``, prompt first.
        origins: Row that each generated token was picked from, int32 ``[B, N, room]``, from 0 at
            the first generated one; -1 where there is none.
        scores: float32 ``[B, N]``; of complete ones after the length penalty.
        lengths: int64 ``[B, N]``, prompt included.
    """

    ids: Tensor
    origins: Tensor
    scores: Tensor
    lengths: Tensor

    def pick(self, which: Tensor) -> Hypotheses:
        """Those with the indices ``[B, M]``."""
        wide = which[:, :, None]
        return Hypotheses(
            self.ids.gather(1, wide.expand(-1, -1, self.ids.shape[2])),
            self.origins.gather(1, wide.expand(-1, -1, self.origins.shape[2])),
            self.scores.gather(1, which),
            self.lengths.gather(1, which),
        )

    def go_on(self, parents: Tensor, tokens: Tensor, rows: Tensor, steps: int, agreed: int) -> None:
        """Continue by one token, in place; the scores stay.

        Args:
            parents: Sequence that each one continues, int64 ``[B, N]``.
            tokens: int64 ``[B, N]``.
            rows: Row that each token was picked from, int32 ``[B, N]``.
            steps: Tokens that were generated before.
            agreed: Before this position all sequences of a prompt are alike.
        """
        end = self.ids.shape[2] - self.origins.shape[2] + steps
        wide = parents[:, :, None]
        ids, origins = self.ids[:, :, agreed:end], self.origins[:, :, :steps]
        ids.copy_(ids.gather(1, wide.expand(-1, -1, ids.shape[2])))
        origins.copy_(origins.gather(1, wide.expand(-1, -1, steps)))
        self.ids[:, :, end] = tokens
        self.origins[:, :, steps] = rows
        self.lengths += 1

    def beside(self, others: Hypotheses) -> Hypotheses:
        """Both, one after the other."""
        return Hypotheses(
            torch.cat((self.ids, others.ids), dim=1),
            torch.cat((self.origins, others.origins), dim=1),
            torch.cat((self.scores, others.scores), dim=1),
            torch.cat((self.lengths, others.lengths), dim=1),
        )

    def widen(self, extra: int, filler: int) -> None:
        """Make room for more tokens."""
        self.ids = pad(self.ids, (0, extra), value=filler)
        self.origins = pad(self.origins, (0, extra), value=-1)


@dataclass(slots=True)
class Candidates:
    """Continuations by one token, K of each prompt.

    Attributes:
        parents: Live beam that each continues, int64 ``[B, K]``, 0 to N - 1.
        tokens: int64 ``[B, K]``.
        scores: Sums of log-probabilities, float32 ``[B, K]``.
    """

    parents: Tensor
    tokens: Tensor
    scores: Tensor


class BeamPool:
    """Live beams and complete hypotheses of a batch.

    Attributes:
        rules: What the configuration says.
        live: The beams; best first.
        complete: The best complete hypotheses, best first, filled up with worthless ones.
        is_complete: Which of them are real, bool ``[B, N]``.
        is_open: Which prompts may still get a better hypothesis, bool ``[B]``.
        agreed: How far the live beams of each prompt are alike.
        length: Tokens of every live beam, prompt included.
        prompt_length: Tokens of the prompt.
        first_row: Row of the first beam of each prompt, int64 ``[B, 1]``.
    """

    def __init__(self, prompt: Tensor, rules: BeamRules) -> None:
        """Begin with N copies of each prompt, of which only the first counts.

        Args:
            prompt: int64 ``[B, S]``.
            rules: What the configuration says.
        """
        batch, length = prompt.shape
        beams, device = rules.num_beams, prompt.device
        self.rules = rules
        self.length = self.prompt_length = length
        room = length + _ROOM
        ids = torch.full((batch, beams, room), rules.filler, dtype=torch.int64, device=device)
        ids[:, :, :length] = prompt[:, None]
        origins = torch.full((batch, beams, room - length), -1, dtype=torch.int32, device=device)
        scores = torch.full((batch, beams), _OUT, device=device)
        lengths = torch.full((batch, beams), length, device=device)
        self.complete = Hypotheses(ids, origins, scores, lengths)
        self.live = Hypotheses(ids.clone(), origins.clone(), scores.clone(), lengths.clone())
        self.live.scores[:, 0] = 0.0
        self.is_complete = torch.zeros(batch, beams, dtype=torch.bool, device=device)
        self.is_open = torch.ones(batch, dtype=torch.bool, device=device)
        self._is_new = torch.arange(rules.num_candidates, device=device) < beams
        self.agreed = [length] * batch
        self.first_row = torch.arange(batch, device=device)[:, None] * beams

    @property
    def rows(self) -> Tensor:
        """Ids of the live beams, int64 ``[B * N, length]``."""
        return self.live.ids[:, :, : self.length].flatten(0, 1)

    def total(self, scores: Tensor) -> Tensor:
        """Sums of log-probabilities for every continuation.

        Args:
            scores: Processed log-probabilities of the next token, float32 ``[B * N, V]``.

        Returns:
            float32 ``[B, N * V]``.
        """
        batch, beams = self.live.scores.shape
        return (scores.view(batch, beams, -1) + self.live.scores[:, :, None]).flatten(1)

    def continued(self, found: Candidates) -> Hypotheses:
        """Candidates as sequences, ``[B, K]``, scored as they are."""
        self._make_room()
        longer = self.live.pick(found.parents)
        longer.ids[:, :, self.length] = found.tokens
        rows = (self.first_row + found.parents).to(torch.int32)
        longer.origins[:, :, self.length - self.prompt_length] = rows
        longer.scores = found.scores
        longer.lengths = longer.lengths + 1
        return longer

    def advance(self, found: Candidates, hits: Tensor) -> Tensor:
        """Take the next step: some candidates live on, some are complete.

        Args:
            found: Candidates, best first.
            hits: Which of them end, bool ``[B, K]``.

        Returns:
            Index of the candidate that each live beam now is, int64 ``[B, N]``.
        """
        # What ends goes on only where there is nothing else, and then for the sake of the shape.
        racing = found.scores + hits * _OUT
        best = torch.topk(racing, self.rules.num_beams)
        ends = hits & self._is_new[: hits.shape[1]]
        if bool(ends.any()):
            self._complete(self.continued(found), ends)
        self._make_room()
        parents = found.parents.gather(1, best.indices)
        tokens = found.tokens.gather(1, best.indices)
        rows = (self.first_row + parents).to(torch.int32)
        steps = self.length - self.prompt_length
        self.live.go_on(parents, tokens, rows, steps, min(self.agreed))
        self.live.scores = best.values
        self.length += 1
        self.agreed = self._agreed()
        self.is_open &= self._may_improve()
        return best.indices

    @property
    def is_closed(self) -> Tensor:
        """Which prompts are done, bool ``[B]``: nothing better can come, or enough is there."""
        if self.rules.early_stopping is True:
            return ~self.is_open | self.is_complete.all(dim=1)
        return ~self.is_open

    def _make_room(self) -> None:
        if self.length == self.live.ids.shape[2]:
            self.live.widen(self.length, self.rules.filler)
            self.complete.widen(self.length, self.rules.filler)

    def _agreed(self) -> list[int]:
        """How far the live beams of each prompt are alike; beams only ever get longer."""
        start = min(self.agreed)
        window = self.live.ids[:, :, start : self.length]
        differs = (window != window[:, :1]).any(dim=1)
        first = torch.where(differs.any(dim=1), differs.int().argmax(dim=1), window.shape[2])
        found: list[int] = (first + start).tolist()
        return found

    def _complete(self, longer: Hypotheses, ends: Tensor) -> None:
        """Rank what ends among what is complete; prompts that are done take nothing more."""
        size = float(self.length + 1 - self.prompt_length) ** self.rules.length_penalty
        scores = longer.scores / size
        if self.rules.early_stopping is True:
            scores = scores + self.is_complete.all(dim=1, keepdim=True) * _OUT
        scores = scores + ~self.is_open[:, None] * _OUT
        longer = Hypotheses(longer.ids, longer.origins, scores + ~ends * _OUT, longer.lengths)
        both = self.complete.beside(longer)
        best = torch.topk(both.scores, self.rules.num_beams).indices
        self.complete = both.pick(best)
        self.is_complete = torch.cat((self.is_complete, ends), dim=1).gather(1, best)

    def _may_improve(self) -> Tensor:
        """Whether the best live beam could get among the complete ones, bool ``[B]``."""
        rules, length = self.rules, self.length
        if rules.early_stopping == "never" and rules.length_penalty > 0:
            if rules.max_length is None:
                return torch.ones_like(self.is_open)
            length = rules.max_length
        size = float(length - self.prompt_length) ** rules.length_penalty
        best = self.live.scores[:, :1] / size
        worst = self.complete.scores.amin(dim=1, keepdim=True)
        worst = torch.where(self.is_complete, worst, _OUT)
        return (best > worst).any(dim=1)
