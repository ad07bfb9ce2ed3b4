"""The complete hypotheses of one prompt: the best N, and whether a better one can still come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["BeamHypotheses"]


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
            InvalidRequestError: ``early_stopping`` is a string and there is no ``max_length``.
        """
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
