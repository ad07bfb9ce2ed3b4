"""Plans the memory of keys and values before anything is computed: a budget becomes pages.

It allocates nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.errors import InvalidRequestError
from asyncgen.runtime.device_memory import device_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


CPU_SHARE = 0.25
"""Default share of the memory that is available when the model has been loaded."""

CUDA_SHARE = 0.90
"""Default share of the device that model and pages take together."""


def budget_bytes(
    budget: int | float | None,
    device: torch.device,
    memory: Callable[[torch.device], tuple[int, int]] | None = None,
) -> int:
    """Bytes that a budget is; arguments and errors are those of `plan_pages`."""
    free, total = (memory or device_memory)(device)
    if budget is None:
        share = int(CUDA_SHARE * total) - (total - free)
        return share if device.type == "cuda" else int(CPU_SHARE * free)
    room = int(budget * total) if isinstance(budget, float) else budget
    if room > total:
        raise InvalidRequestError("kv_cache_memory", budget, f"the device has {total} bytes")
    return room


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
    """Number of pages that a budget pays for.

    Args:
        budget: Bytes (``int``), or a fraction of the device's memory (``float``, above 0 to 1).
            ``None``: on CUDA what 90 % of the device leaves beside the model, elsewhere a quarter
            of the memory that is available now; in both cases no more than ``wanted``.
        page_bytes: Keys and values of one page, all layers.
        wanted: Pages with which nothing would ever wait for memory; ``None`` if there is no end.
        device: Where the pages will be.
        least: Pages that the shortest text takes: one for each group of layers.
        unit: What a page is called.
        memory: Bytes that a device has free, and has in all; ``device_memory``.

    Returns:
        At least ``least``; the pages never take more than the budget.

    Raises:
        InvalidRequestError: The budget pays for fewer, or is more than the device has.
    """
    room = budget_bytes(budget, device, memory)
    pages = room // page_bytes
    shown: object = budget
    if budget is None:
        pages = pages if wanted is None else min(pages, wanted)
        shown = f"unset, which is {room} bytes here"
    if pages < least:
        raise InvalidRequestError(
            "kv_cache_memory",
            shown,
            f"{unit} takes {least * page_bytes} bytes",
        )
    return pages


def share_slots(num_slots: int, max_running: int, num_snapshots: int | None) -> tuple[int, int]:
    """How many rows may run in so many slots for states, and what is left for snapshots.

    Args:
        num_slots: How many there are, at least 2.
        max_running: Most rows, each of which has two.
        num_snapshots: Slots to set aside beside these; ``None``: what the rows leave.

    Returns:
        Rows, at least 1, and slots beside theirs.

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
