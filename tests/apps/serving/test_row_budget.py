"""Rows of all requests are bounded; a request of one row is never refused for them."""

from __future__ import annotations

from typing import Any

from asyncgen_apps.serving.limits import MOST_ROWS
from asyncgen_apps.serving.row_budget import LISTS_OF_A_ROW, RowBudget, rows_of
from tests.cases import for_each


def filled(rows: int, *, is_shared: bool = True) -> tuple[RowBudget, int]:
    """Have one client take as many requests as it may; return their number."""
    budget, count = RowBudget(is_shared=is_shared), 0
    while budget.take("a", rows):
        count += 1
    return budget, count


def test_one_client_leaves_an_eighth() -> None:
    budget, count = filled(129)
    assert count == MOST_ROWS // 128 * 7 // 8
    assert budget.take("b", 1024) and not budget.take("b", 1024)
    assert budget.refusal("a", 129).startswith(
        f"{budget.used} of at most {MOST_ROWS} further choices or texts are being answered, "
        f"{count * 128} of them yours"
    )
    assert budget.refusal("a", 129).endswith(
        "and this request asks for 129 (16 lists of parameters count as one); try again, or ask "
        "for fewer at once"
    )


def test_one_row_always_fits() -> None:
    budget, _ = filled(2, is_shared=False)
    assert budget.used == MOST_ROWS and not budget.take("b", 2)
    for client in "ab":
        assert budget.take(client, 1)
        budget.give_back(client, 1)
    assert budget.used == MOST_ROWS


def test_nothing_is_kept_of_what_ended() -> None:
    budget, count = filled(129)
    for _ in range(count):
        budget.give_back("a", 129)
    assert budget.used == 0 and not budget._budget._held


@for_each(
    ("params", "rows"),
    [
        ({}, 0),
        ({"stop": ["a"] * 1000, "suppress_tokens": [5] * 100_000}, 0),
        ({"bad_words_ids": [[5]] * (LISTS_OF_A_ROW - 1)}, 0),
        ({"bad_words_ids": [[5]] * 16 * LISTS_OF_A_ROW}, 16),
        ({"sequence_bias": [[[5], 1.0]] * LISTS_OF_A_ROW}, 2),
        ({"json_schema": {"a": {"b": [{}] * (LISTS_OF_A_ROW - 2)}}}, 1),
    ],
)
def test_lists_in_parameters_count(params: dict[str, Any], rows: int) -> None:
    """600 requests of 64 KB with 16,000 words each took 2 GB, and the collector five seconds."""
    assert rows_of(params) == rows


def test_no_more_are_counted_than_fit() -> None:
    rows = rows_of({"a": [[]] * 2 * LISTS_OF_A_ROW * MOST_ROWS})
    assert rows == MOST_ROWS and RowBudget().take("a", 1 + rows)
