"""Count the rows of all requests of a server, and refuse a request with too many more.

A row is one choice, or one text to embed. The first row of a request does not count: requests have
a limit of their own, and one with a single row is never refused here.
"""

from __future__ import annotations

from asyncgen_apps.serving.limits import MOST_ROWS
from asyncgen_apps.serving.shared_budget import SharedBudget


class RowBudget:
    """Rows of the requests that wait or are answered, shared among clients."""

    def __init__(self, *, is_shared: bool = True) -> None:
        """Begin with none.

        Args:
            is_shared: False where there can be one client only, which then may have all.
        """
        self._budget = SharedBudget(MOST_ROWS, is_shared=is_shared)

    @property
    def used(self) -> int:
        """Rows that count now."""
        return self._budget.used

    def take(self, client: str, rows: int) -> bool:
        """Count the rows of a request; return False, and count none, if they are too many.

        Args:
            client: Name of the client.
            rows: All rows of the request, at least 1.
        """
        return rows == 1 or self._budget.take(client, rows - 1)

    def give_back(self, client: str, rows: int) -> None:
        """Count the rows of a request no more that has ended."""
        if rows > 1:
            self._budget.give_back(client, rows - 1)

    def refusal(self, client: str, rows: int) -> str:
        """Say why a request got no room, and what helps."""
        reason = self._budget.refusal(client, "further choices or texts are being answered")
        return f"{reason}, and this request asks for {rows}; try again, or ask for fewer at once"
