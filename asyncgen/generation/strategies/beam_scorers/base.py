"""Share code among the documented beam scorers, and keep complete hypotheses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class BeamScorer(ABC):
    """Decides which candidates live on as beams, and what is returned in the end."""

    @abstractmethod
    def process(
        self,
        input_ids: Tensor,
        next_scores: Tensor,
        next_tokens: Tensor,
        next_indices: Tensor,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        """Take the candidates of one step.

        Args:
            input_ids: The beams, int64 ``[B * N, T]``, N next to each other for each prompt.
            next_scores: Sums of log-probabilities of the best candidates, best first,
                float32 ``[B, K]``.
            next_tokens: Their tokens, int64 ``[B, K]``.
            next_indices: The beam that each continues, 0 to N - 1, int64 ``[B, K]``.
            kwargs: What a scorer needs beside.

        Returns:
            ``next_beam_scores``, ``next_beam_tokens`` and ``next_beam_indices``, each
            ``[B * N]``: the beams to go on with, the last as rows of ``input_ids``.
        """

    @abstractmethod
    def finalize(
        self,
        input_ids: Tensor,
        next_scores: Tensor,
        next_tokens: Tensor,
        next_indices: Tensor,
        max_length: int,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Rank what lives beside what is complete.

        Args:
            input_ids: The beams, int64 ``[B * N, T]``.
            next_scores: Their scores, float32 ``[B * N]``.
            next_tokens: Their last tokens; not used.
            next_indices: Rows that these continued; not used.
            max_length: Longest sequence to return.
            kwargs: What a scorer needs beside.

        Returns:
            ``sequences`` int64 ``[B * R, T']``, ``sequence_scores`` float32 ``[B * R]``, and
            ``beam_indices`` (int64 ``[B * R, T']``, -1 behind the end, or ``None``).
        """


def id_list(ids: Any) -> list[int]:
    """Token ids in any of their forms: one, a list, a tensor, none."""
    if ids is None:
        return []
    if hasattr(ids, "tolist"):
        ids = ids.tolist()
    return [ids] if isinstance(ids, int) else list(ids)


def first_id(ids: Any) -> int | None:
    """The first of them."""
    return next(iter(id_list(ids)), None)


class BeamHypotheses:
    """An n-best list.

    Attributes:
        beams: Score, ids and beam indices of each hypothesis kept.
        worst_score: The lowest score among them, 1e9 where there is none.
    """

    def __init__(
        self,
        num_beams: int,
        length_penalty: float,
        early_stopping: bool | str,
        max_length: int | None = None,
    ) -> None:
        """Begin empty.

        Args:
            num_beams: Most hypotheses that are kept, N.
            length_penalty: Exponent of the length by which sums of log-probabilities are divided.
            early_stopping: ``True``: done with N hypotheses; ``False``: done when the best live
                beam, at its length, is no better than the worst kept; ``"never"``: done when it
                could not be better at any length up to ``max_length``.
            max_length: Longest sequence, prompt included.

        Raises:
            InvalidRequestError: ``early_stopping`` is a string and there is no ``max_length``; or
                a number is none.
        """
        rules.require("num_beams", num_beams, rules.Range(1, whole=True))
        rules.require("length_penalty", length_penalty, rules.Range())
        rules.require("do_early_stopping", early_stopping, rules.early_stopping)
        if max_length is not None:
            rules.require("max_length", max_length, rules.Range(0, whole=True))
        if not isinstance(early_stopping, bool) and max_length is None:
            raise InvalidRequestError(
                "do_early_stopping", early_stopping, "a string needs `max_length`; give both"
            )
        self.num_beams = num_beams
        self.length_penalty = length_penalty
        self.early_stopping = early_stopping
        self.max_length = max_length
        self.beams: list[tuple[float, Tensor, Sequence[int] | None]] = []
        self.worst_score = 1e9

    def __len__(self) -> int:
        """Count the hypotheses kept."""
        return len(self.beams)

    def add(
        self,
        hyp: Tensor,
        sum_logprobs: float,
        beam_indices: Sequence[int] | None = None,
        generated_len: int | None = None,
    ) -> None:
        """Keep a hypothesis, if it is among the N best.

        Args:
            hyp: Its ids, int64 ``[T]``.
            sum_logprobs: Its sum of log-probabilities.
            beam_indices: The row of each generated token.
            generated_len: Length that counts for the penalty; ``None``: all of ``hyp``.
        """
        length = hyp.shape[-1] if generated_len is None else generated_len
        score = sum_logprobs / length**self.length_penalty
        if len(self) >= self.num_beams and score <= self.worst_score:
            return
        self.beams.append((score, hyp, beam_indices))
        if len(self) > self.num_beams:
            worst = min(range(len(self)), key=lambda place: self.beams[place][0])
            del self.beams[worst]
        self.worst_score = min(score for score, _, _ in self.beams)

    def is_done(
        self, best_sum_logprobs: float, cur_len: int, decoder_prompt_len: int | None = 0
    ) -> bool:
        """Tell whether no better hypothesis is to be expected (see ``early_stopping``).

        Args:
            best_sum_logprobs: Sum of log-probabilities of the best candidate.
            cur_len: Its length.
            decoder_prompt_len: Length of the prompt, which does not count.
        """
        if len(self) < self.num_beams:
            return False
        if self.early_stopping is True:
            return True
        length = cur_len
        if self.early_stopping == "never" and self.length_penalty > 0.0:
            assert self.max_length is not None
            length = self.max_length
        size = (length - (decoder_prompt_len or 0)) ** self.length_penalty
        return self.worst_score >= best_sum_logprobs / size

    @property
    def best(self) -> tuple[float, Tensor, Sequence[int] | None] | None:
        """The best hypothesis; the newest among equals."""
        if not self.beams:
            return None
        return max(reversed(self.beams), key=lambda beam: beam[0])
