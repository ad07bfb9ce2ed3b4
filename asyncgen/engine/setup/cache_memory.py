"""Plan the memory of keys and values: turn a budget into pages, without allocating anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.errors import InvalidRequestError
from asyncgen.runtime.device_memory import device_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


CPU_SHARE = 0.25
"""Default share of the memory that is free after the model was loaded."""

CUDA_SHARE = 0.90
"""Default share of the device for model and pages together."""


def budget_bytes(
    budget: int | float | None,
    device: torch.device,
    memory: Callable[[torch.device], tuple[int, int]] | None = None,
) -> int:
    """Return a budget in bytes; arguments and errors are those of `plan_pages`."""
    free, total = (memory or device_memory)(device)
    if budget is None:
        share = int(CUDA_SHARE * total) - (total - free)
        return share if device.type == "cuda" else int(CPU_SHARE * free)
    available = int(budget * total) if isinstance(budget, float) else budget
    if available > total:
        raise InvalidRequestError("kv_cache_memory", budget, f"the device has {total} bytes")
    return available


def plan_pages(
    budget: int | float | None,
    *,
    page_bytes: int,
    wanted: int | None,
    device: torch.device,
    least: int = 1,
    unit: str = "one page of keys and values",
    memory: Callable[[torch.device], tuple[int, int]] | None = None,
) -> int:
    """Return the number of pages that fit a budget.

    Args:
        budget: Bytes (``int``), or a fraction of the device's memory (``float``, above 0 to 1).
            ``None``: on CUDA 90 % of the device less the model, elsewhere a quarter of the memory
            that is free now; in both cases no more than ``wanted``.
        page_bytes: Bytes of one page, in all layers.
        wanted: Pages with which no request would ever wait for memory; ``None`` for no limit.
        device: Device of the pages.
        least: Pages of the shortest text: one for each group of layers.
        unit: Name of a page in errors.
        memory: Returns the free and the total bytes of a device; ``device_memory`` by default.

    Returns:
        At least ``least``; the pages never take more than the budget.

    Raises:
        InvalidRequestError: The budget is too small, or more than the device has.
    """
    available = budget_bytes(budget, device, memory)
    pages = available // page_bytes
    shown: object = budget
    if budget is None:
        pages = pages if wanted is None else min(pages, wanted)
        shown = f"unset, which is {available} bytes here"
    if pages < least:
        raise InvalidRequestError(
            "kv_cache_memory",
            shown,
            f"{unit} takes {least * page_bytes} bytes",
        )
    return pages


def share_slots(num_slots: int, max_running: int, num_snapshots: int | None) -> tuple[int, int]:
    """Divide slots for states between running rows and snapshots.

    Args:
        num_slots: All slots, at least 2.
        max_running: Most rows; each takes two slots.
        num_snapshots: Slots to set aside for snapshots; ``None`` for those that the rows leave.

    Returns:
        Rows, at least 1, and slots for snapshots.

    Raises:
        InvalidRequestError: No row fits beside the snapshots.
    """
    rows = min(max_running, (num_slots - (num_snapshots or 0)) // 2)
    if rows < 1:
        raise InvalidRequestError(
            "state_snapshots",
            num_snapshots,
            f"there is memory for {num_slots} states, and a text takes two of them; at most "
            f"{num_slots - 2}, or raise `kv_cache_memory`",
        )
    return rows, num_slots - 2 * rows
