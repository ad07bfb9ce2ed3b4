"""Count the rows of all requests of a server, and refuse a request with too many more.

A row is one choice, one text to embed, or `LISTS_OF_A_ROW` lists in parameters. The first row of a
request does not count: requests have a limit of their own, and one with a single row is never
refused here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen_apps.serving.limits import MOST_ROWS
from asyncgen_apps.serving.shared_budget import SharedBudget

if TYPE_CHECKING:
    from collections.abc import Mapping

LISTS_OF_A_ROW = 16
"""Lists and tables in parameters that are as dear as a row: the collector looks at each of them."""

_TABLES: frozenset[type] = frozenset((list, tuple, dict))


def rows_of(params: Mapping[str, Any]) -> int:
    """Return the rows that the lists in the parameters of a request count as.

    Each stream of the engine has copies of its own of thousands of words, to its end.

    Args:
        params: As they were parsed; more than a budget has is not counted, so that any fits alone.
    """
    left, count = [each for each in params.values() if type(each) in _TABLES], 0
    while left and count <= LISTS_OF_A_ROW * MOST_ROWS:
        one = left.pop()
        inner = one.values() if type(one) is dict else one
        if not _TABLES.isdisjoint(map(type, inner)):
            found = [each for each in inner if type(each) in _TABLES]
            count += len(found)
            left += found
    return min(count // LISTS_OF_A_ROW, MOST_ROWS)


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
        return (
            f"{reason}, and this request asks for {rows} ({LISTS_OF_A_ROW} lists of "
            "parameters count as one); try again, or ask for fewer at once"
        )
