"""A budget becomes pages, never more than it pays for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncgen.engine.kv_cache.block_pool import CacheSize
from asyncgen.engine.setup.cache_memory import plan_pages
from asyncgen.errors import InvalidRequestError
from tests.cases import for_each

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def plan(budget: Any, device: torch.device = CPU, wanted: int | None = None) -> int:
    """Pages of 10 bytes, on a device with 600 of 1,000 bytes free."""
    return plan_pages(
        budget, page_bytes=10, wanted=wanted, device=device, memory=lambda _: (600, 1000)
    )


@for_each(
    ("budget", "device", "wanted", "pages"),
    [
        (105, CPU, None, 10),
        (105, CPU, 3, 10),  # what was asked for is not made smaller
        (0.5, CPU, None, 50),
        (1.0, CPU, None, 100),
        (None, CPU, None, 15),  # a quarter of what is free
        (None, CPU, 4, 4),
        (None, CUDA, None, 50),  # 90 % of all, less what the model has
        (None, CUDA, 20, 20),
    ],
)
def test_budgets(budget: Any, device: torch.device, wanted: int | None, pages: int) -> None:
    assert plan(budget, device, wanted) == pages


@pytest.mark.parametrize("budget", [9, 0.009, 1001])
def test_too_little_and_too_much(budget: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        plan(budget)
    assert caught.value.parameter == "kv_cache_memory"


def test_a_default_without_memory_names_the_parameter() -> None:
    with pytest.raises(InvalidRequestError, match="unset, which is 2 bytes"):
        plan_pages(None, page_bytes=10, wanted=5, device=CPU, memory=lambda _: (8, 1000))


@given(st.integers(1, 1000), st.integers(1, 64), st.integers(1, 9))
def test_rows_fit_the_room(num_pages: int, page_size: int, rows: int) -> None:
    room = CacheSize(num_pages, page_size)
    positions = room.positions(rows)
    assert rows * room.pages(positions) <= num_pages < rows * room.pages(positions + 1) + rows
