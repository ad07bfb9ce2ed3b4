"""How many tokens to draft before each check."""

from __future__ import annotations

from asyncgen.errors import InvalidRequestError

__all__ = ["SCHEDULES", "Schedule"]

SCHEDULES = ("constant", "heuristic", "heuristic_transient")


class Schedule:
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
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InvalidRequestError("num_assistant_tokens", count, "an integer of at least 1")
        if kind not in SCHEDULES:
            raise InvalidRequestError(
                "num_assistant_tokens_schedule", kind, f"one of {', '.join(SCHEDULES)}"
            )
        self.count = count
        self.kind = kind

    def update(self, accepted: int) -> None:
        """Change the number after a draft of which so many tokens were right."""
        if self.kind != "constant":
            self.count = self.count + 2 if accepted == self.count else max(1, self.count - 1)
