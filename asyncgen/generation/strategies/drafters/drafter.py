"""Schedule drafts of assisted generation: their lengths, and when one should stop.

A drafter may be wrong: every guess is checked by the model, so it decides about speed alone. Its
own confidence against a threshold that learns is the unsupervised form of dynamic speculation
lookahead (Mamou et al. 2024, "Dynamic Speculation Lookahead Accelerates Speculative Decoding of
Large Language Models", arXiv 2405.04304).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.rules import Range, require

if TYPE_CHECKING:
    from collections.abc import Sequence


def common_prefix_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))


def check_count(name: str, value: object) -> None:
    """Refuse anything but an integer of at least 1."""
    require(name, value, Range(1, whole=True))


SCHEDULES = ("constant", "heuristic", "heuristic_transient")


class DraftSchedule:
    """The number of tokens of the next draft, and how it changes.

    Attributes:
        count: Most tokens of the next draft.
        kind: ``"constant"``: always the same; ``"heuristic"`` and ``"heuristic_transient"``: two
            more after a draft that was right as a whole, one less after any other.
    """

    def __init__(self, count: int, kind: str = "constant") -> None:
        """Begin.

        Args:
            count: Tokens of the first draft, at least 1.
            kind: The rule.

        Raises:
            InvalidRequestError: A value is not allowed.
        """
        check_count("num_assistant_tokens", count)
        if kind not in SCHEDULES:
            raise InvalidRequestError(
                "num_assistant_tokens_schedule", kind, f"must be one of {', '.join(SCHEDULES)}"
            )
        self.count = count
        self.kind = kind

    def update(self, accepted: int, drafted: int) -> None:
        """Change the number after a draft.

        Args:
            accepted: How many of its tokens were right.
            drafted: How many it had; a draft that ended early can be right as a whole, too.
        """
        if self.kind != "constant":
            self.count = self.count + 2 if accepted == drafted else max(1, self.count - 1)


_KEPT: Final = 512
"""Guesses that the threshold is chosen by; older ones say little about the text at hand."""

_LEAST: Final = 6
"""Guesses below which there is nothing to choose by."""

_MISS_COST: Final = 3.0
"""Cost of stopping before a right guess, where going on with a wrong one costs 1."""


class ConfidenceThreshold:
    """Stops a draft at the first token whose probability lies below a threshold.

    Attributes:
        threshold: From 0 (never stops) to 1.
        is_on: Whether probabilities are of any interest.
    """

    def __init__(self, threshold: float) -> None:
        """Begin.

        Args:
            threshold: From 0 to 1; at 0 it never stops and never learns.

        Raises:
            InvalidRequestError: It lies outside.
        """
        number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
        if not number or not 0 <= threshold <= 1:
            raise InvalidRequestError("assistant_confidence_threshold", threshold, "from 0 to 1")
        self.threshold = float(threshold)
        self.is_on = threshold > 0
        self._guesses: deque[tuple[float, bool]] = deque(maxlen=_KEPT)

    def stops(self, probability: float) -> bool:
        """Return whether a token of this probability is the last of its draft."""
        return self.is_on and probability < self.threshold

    def update(self, probabilities: list[float], accepted: int) -> None:
        """Learn from a draft and choose the threshold anew.

        Args:
            probabilities: Of each token of the draft.
            accepted: How many of the first ones were right. The next one was wrong; nothing is
                known about those behind it.
        """
        if not self.is_on:
            return
        self._guesses += [(each, True) for each in probabilities[:accepted]]
        self._guesses += [(each, False) for each in probabilities[accepted : accepted + 1]]
        right = sum(is_right for _, is_right in self._guesses)
        wrong = len(self._guesses) - right
        if len(self._guesses) >= _LEAST and right and wrong:
            self.threshold = self._cheapest(right, wrong)

    def _cheapest(self, right: int, wrong: int) -> float:
        """The threshold of least cost among the probabilities seen; the highest of equals."""
        best, best_cost = self.threshold, float("inf")
        missed, passed = right, 0
        ranked = sorted(self._guesses, reverse=True)
        for place, (probability, is_right) in enumerate(ranked):
            missed -= is_right
            passed += not is_right
            if place + 1 < len(ranked) and ranked[place + 1][0] == probability:
                continue
            cost = passed / wrong + _MISS_COST * missed / right
            if cost < best_cost:
                best, best_cost = probability, cost
        return best
