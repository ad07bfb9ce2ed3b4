"""When a draft model should stop guessing: its own confidence against a threshold that learns.

The unsupervised form of dynamic speculation lookahead (Mamou et al. 2024, "Dynamic Speculation
Lookahead Accelerates Speculative Decoding of Large Language Models", arXiv 2405.04304).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from asyncgen.errors import InvalidRequestError

__all__ = ["Confidence"]

_KEPT: Final = 512
"""Guesses that the threshold is chosen by; older ones say little about the text at hand."""

_LEAST: Final = 6
"""Guesses below which there is nothing to choose by."""

_MISS_COST: Final = 3.0
"""Cost of stopping before a right guess, where going on with a wrong one costs 1."""


class Confidence:
    """Stops a draft at the first token whose probability lies below a threshold.

    Attributes:
        threshold: From 0 (never stops) to 1.
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
        self._is_on = threshold > 0
        self._guesses: deque[tuple[float, bool]] = deque(maxlen=_KEPT)

    @property
    def is_on(self) -> bool:
        """Whether probabilities are of any interest."""
        return self._is_on

    def stops(self, probability: float) -> bool:
        """Whether a token of this probability should be the last of its draft."""
        return self._is_on and probability < self.threshold

    def update(self, probabilities: list[float], accepted: int) -> None:
        """Learn from a draft and choose the threshold anew.

        Args:
            probabilities: Of each token of the draft.
            accepted: How many of the first ones were right. The next one was wrong; nothing is
                known about those behind it.
        """
        if not self._is_on:
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
