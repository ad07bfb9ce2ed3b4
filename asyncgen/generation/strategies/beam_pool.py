"""Keep the live beams and the complete hypotheses of a beam search.

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


_EXCLUDED = -1.0e9
"""Added to scores of beams that must not win; finite, so that their sums still compare."""
_ROOM = 256


@dataclass(frozen=True, slots=True)
class BeamRules:
    """Rules of a beam search, read from a configuration.

    Attributes:
        num_beams: Live beams of a prompt, N; as many complete hypotheses are kept.
        early_stopping: ``True``: a prompt is done with N complete hypotheses; ``False``: when the
            best live beam, at its present length, would not get among them; ``"never"``: when it
            could not at any length.
        length_penalty: Exponent of the length that scores are divided by.
        max_length: Longest sequence, prompt included; ``None`` is no limit.
        filler: Id behind the end of a shorter sequence.
        num_ends: Number of ids that end a sequence.
    """

    num_beams: int
    early_stopping: bool | str
    length_penalty: float
    max_length: int | None
    filler: int
    num_ends: int

    @property
    def num_candidates(self) -> int:
        """Candidates of a prompt in a step: enough that N of them do not end."""
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
        """Pick the sequences of the indices ``[B, M]``."""
        wide = which[:, :, None]
        return Hypotheses(
            self.ids.gather(1, wide.expand(-1, -1, self.ids.shape[2])),
            self.origins.gather(1, wide.expand(-1, -1, self.origins.shape[2])),
            self.scores.gather(1, which),
            self.lengths.gather(1, which),
        )

    def joined(self, others: Hypotheses) -> Hypotheses:
        """Join both along the second dimension."""
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


class LiveBeams:
    """Unfinished beams of a batch: N for each prompt, next to each other, all of one length.

    Attributes:
        rules: Rules of the search.
        live: The beams.
        length: Tokens of every beam, prompt included.
        prompt_length: Tokens of the prompt.
        first_row: Row of the first beam of each prompt, int64 ``[B, 1]``.
        parents: Row that each beam continued with its newest token, int64 ``[B * N]``.
        tokens: Newest token of each beam, int64 ``[B * N]``.
    """

    parents: Tensor
    tokens: Tensor

    def __init__(self, prompt: Tensor, rules: BeamRules, groups: int = 1) -> None:
        """Begin with N copies of each prompt; only the first copy of each group counts.

        Args:
            prompt: int64 ``[B, S]``.
            rules: Rules of the search.
            groups: Groups of beams that start apart; must divide N.
        """
        batch, length = prompt.shape
        beams, device = rules.num_beams, prompt.device
        self.rules = rules
        self.length = self.prompt_length = length
        room = length + _ROOM
        ids = torch.full((batch, beams, room), rules.filler, dtype=torch.int64, device=device)
        ids[:, :, :length] = prompt[:, None]
        origins = torch.full((batch, beams, room - length), -1, dtype=torch.int32, device=device)
        scores = torch.full((batch, beams), _EXCLUDED, dtype=torch.float32, device=device)
        scores[:, :: beams // groups] = 0.0
        lengths = torch.full((batch, beams), length, dtype=torch.int64, device=device)
        self.live = Hypotheses(ids, origins, scores, lengths)
        self.first_row = torch.arange(batch, dtype=torch.int64, device=device)[:, None] * beams

    @property
    def rows(self) -> Tensor:
        """Ids of the beams, int64 ``[B * N, length]``."""
        return self.live.ids[:, :, : self.length].flatten(0, 1)

    @property
    def origins(self) -> Tensor:
        """Row of each generated token of each beam, int32 ``[B * N, length - prompt_length]``."""
        return self.live.origins[:, :, : self.length - self.prompt_length].flatten(0, 1)

    def extend(self, parents: Tensor, tokens: Tensor, scores: Tensor, agreed: int) -> None:
        """Continue each beam by one token.

        Args:
            parents: Row that each beam continues, int64 ``[B * N]``.
            tokens: int64 ``[B * N]``.
            scores: Sums of log-probabilities, float32 ``[B, N]``.
            agreed: Position before which a beam and its parent hold the same ids.
        """
        self._make_room()
        ids, origins = self.live.ids.flatten(0, 1), self.live.origins.flatten(0, 1)
        end = self.length
        steps = end - self.prompt_length
        ids[:, agreed:end] = ids[:, agreed:end][parents]
        origins[:, :steps] = origins[:, :steps][parents]
        ids[:, end] = tokens
        origins[:, steps] = parents.to(torch.int32)
        self.live.scores = scores
        self.live.lengths += 1
        self.length += 1
        self.parents, self.tokens = parents, tokens

    def _make_room(self) -> None:
        if self.length == self.live.ids.shape[2]:
            self.live.widen(self.length, self.rules.filler)


class BeamPool(LiveBeams):
    """Live beams, best first, and the complete hypotheses of a batch.

    Attributes:
        complete: The best complete hypotheses, best first, filled up with worthless ones.
        is_complete: True for the real ones among them, bool ``[B, N]``.
        is_open: True for prompts that may still get a better hypothesis, bool ``[B]``.
        agreed: Position before which all live beams of a prompt are alike, one a prompt.
    """

    def __init__(self, prompt: Tensor, rules: BeamRules) -> None:
        """Begin without complete hypotheses.

        Args:
            prompt: int64 ``[B, S]``.
            rules: Rules of the search.
        """
        super().__init__(prompt, rules)
        batch, length = prompt.shape
        live = self.live
        self.complete = Hypotheses(
            live.ids.clone(),
            live.origins.clone(),
            torch.full_like(live.scores, _EXCLUDED),
            live.lengths.clone(),
        )
        self.is_complete = torch.zeros_like(live.scores, dtype=torch.bool)
        self.is_open = torch.ones(batch, dtype=torch.bool, device=prompt.device)
        self._is_new = (
            torch.arange(rules.num_candidates, dtype=torch.int64, device=prompt.device)
            < rules.num_beams
        )
        self.agreed = [length] * batch

    def total(self, scores: Tensor) -> Tensor:
        """Add the log-probabilities of every next token to the sums of the live beams.

        Args:
            scores: Processed log-probabilities of the next token, float32 ``[B * N, V]``.

        Returns:
            float32 ``[B, N * V]``.
        """
        batch, beams = self.live.scores.shape
        return (scores.view(batch, beams, -1) + self.live.scores[:, :, None]).flatten(1)

    def continued(self, found: Candidates) -> Hypotheses:
        """Make sequences ``[B, K]`` of candidates, with their scores."""
        self._make_room()
        longer = self.live.pick(found.parents)
        longer.ids[:, :, self.length] = found.tokens
        rows = (self.first_row + found.parents).to(torch.int32)
        longer.origins[:, :, self.length - self.prompt_length] = rows
        longer.scores = found.scores
        longer.lengths = longer.lengths + 1
        return longer

    def advance(self, found: Candidates, hits: Tensor) -> Tensor:
        """Take one step: the best candidates that do not end live on, others are complete.

        Args:
            found: Candidates, best first.
            hits: True for those that end, bool ``[B, K]``.

        Returns:
            Index of the candidate that each live beam now is, int64 ``[B, N]``.
        """
        # Keep finished candidates only to fill the batch.
        best = torch.topk(_excluding(hits, found.scores), self.rules.num_beams)
        ends = hits & self._is_new[: hits.shape[1]]
        if bool(ends.any()):
            self._complete(self.continued(found), ends)
        parents = found.parents.gather(1, best.indices) + self.first_row
        tokens = found.tokens.gather(1, best.indices)
        self.extend(parents.flatten(), tokens.flatten(), best.values, min(self.agreed))
        self.agreed = self._agreed()
        self.is_open &= self._may_improve()
        return best.indices

    @property
    def is_closed(self) -> Tensor:
        """True for prompts that are done, bool ``[B]``: nothing better comes, or N are complete."""
        if self.rules.early_stopping is True:
            return ~self.is_open | self.is_complete.all(dim=1)
        return ~self.is_open

    def _make_room(self) -> None:
        if self.length == self.live.ids.shape[2]:
            super()._make_room()
            self.complete.widen(self.length, self.rules.filler)

    def _agreed(self) -> list[int]:
        """Find the position before which the live beams of each prompt are alike."""
        start = min(self.agreed)
        window = self.live.ids[:, :, start : self.length]
        differs = (window != window[:, :1]).any(dim=1)
        first = torch.where(differs.any(dim=1), differs.int().argmax(dim=1), window.shape[2])
        found: list[int] = (first + start).tolist()
        return found

    def _complete(self, longer: Hypotheses, ends: Tensor) -> None:
        """Rank candidates that end among the complete hypotheses of prompts that are open."""
        size = float(self.length + 1 - self.prompt_length) ** self.rules.length_penalty
        scores = longer.scores / size
        if self.rules.early_stopping is True:
            scores = _excluding(self.is_complete.all(dim=1, keepdim=True), scores)
        scores = _excluding(~ends, _excluding(~self.is_open[:, None], scores))
        longer = Hypotheses(longer.ids, longer.origins, scores, longer.lengths)
        both = self.complete.joined(longer)
        best = torch.topk(both.scores, self.rules.num_beams).indices
        self.complete = both.pick(best)
        self.is_complete = torch.cat((self.is_complete, ends), dim=1).gather(1, best)

    def _may_improve(self) -> Tensor:
        """Tell whether the best live beam could get among the complete ones, bool ``[B]``."""
        rules, length = self.rules, self.length
        if rules.early_stopping == "never" and rules.length_penalty > 0:
            if rules.max_length is None:
                return torch.ones_like(self.is_open)
            length = rules.max_length
        size = float(length - self.prompt_length) ** rules.length_penalty
        best = self.live.scores[:, :1] / size
        worst = self.complete.scores.amin(dim=1, keepdim=True)
        worst = torch.where(self.is_complete, worst, _EXCLUDED)
        return (best > worst).any(dim=1)


def _excluding(is_excluded: Tensor, scores: Tensor) -> Tensor:
    """Lower scores, where a mask is true, below all that can be reached."""
    return scores + is_excluded.to(scores.dtype) * _EXCLUDED
