"""Attention over pages on an accelerator: one fused kernel for rows of any length.

``torch.nn.attention.varlen.varlen_attn`` reads pages through a table if torch's kernels can do
that; otherwise the visible keys are gathered first. `kernel_probe` finds out which of these works
on a device.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.families.plans.attention_options import AttentionOptions
from asyncgen.models.attention.paged.packed_rows import padded, visible_pages
from asyncgen.runtime.transfer import to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from asyncgen.cache.paged_storage import PagedStorage
    from asyncgen.models.attention.paged.packed_rows import PackedRow, PlacedRow


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """Fused attention of a device, and the ways in which it can be called.

    Attributes:
        function: ``varlen_attn``.
        reads_pages: True if it takes a table of pages.
        wants_key_ends: True if it is told the end of each row's keys beside such a table:
            FlashAttention 2 asks for both, FlashAttention 3 and 4 refuse both.
        options: Other keywords of every call.
        is_recordable: True if it also computes rows of fixed memory (`graph_buffers`).
        sums_request: Keyword value that asks for the logarithms of the sums of exponentials;
            ``None``: its sums are not known to be right.
    """

    function: Callable[..., Any]
    reads_pages: bool
    wants_key_ends: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    is_recordable: bool = True
    sums_request: Any | None = None

    def serves(self, options: AttentionOptions) -> bool:
        """Return whether it computes layers with these options; sinks are applied to its result."""
        if options.has_sinks and self.sums_request is None:
            return False
        return replace(options, has_sinks=False).is_fusable


@dataclass(frozen=True, slots=True)
class Reads:
    """Tensors that say what rows read; all int32 on the device, each with memory of its own.

    Attributes:
        queries: First query of each row and the end of the last one, ``[B + 1]``.
        keys: First key of each row and the end of the last one, ``[B + 1]``: among the gathered
            keys, or as if those in use were gathered.
        most_queries: Most queries of a row. A plain number, like the next one: a recording keeps
            it.
        most_keys: Most keys of a row; an upper bound will do.
        used: Keys of each row, ``[B]``.
        table: Pages of each row, ``[B, M]``; those behind its keys are not read.
    """

    queries: Tensor
    keys: Tensor
    most_queries: int
    most_keys: int
    used: Tensor
    table: Tensor


def attend_fused(
    kernel: FusedKernel,
    heads: Tensor,
    keys: Tensor,
    values: Tensor,
    reads: Reads,
    window: int | None,
    scale: float | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend with a fused kernel.

    Args:
        kernel: The kernel.
        heads: ``[N, H + 2K, D]``; only the queries are read.
        keys: Keys of all pages, ``[P, page_size, K, D]``, if the kernel reads pages; else the
            visible ones, copied together, ``[T, K, D]``.
        values: In the same shape.
        reads: What each row reads.
        window: Keys that a query sees, itself included; ``None``: all.
        scale: Factor on the scores; ``None``: the usual one.
        sinks: ``[H]``; only if the kernel tells sums.

    Returns:
        ``[N, H * D]``.
    """
    more: dict[str, Any] = {}
    if kernel.reads_pages:
        more = {"seqused_k": reads.used, "block_table": reads.table}
    if sinks is not None:
        more["return_aux"] = kernel.sums_request
    attended = kernel.function(
        heads[:, : heads.shape[1] - 2 * keys.shape[-2]],
        keys,
        values,
        reads.queries,
        reads.keys if kernel.wants_key_ends or not kernel.reads_pages else None,
        reads.most_queries,
        reads.most_keys,
        scale=scale,
        # Keys that a query sees before and behind itself; -1 for all.
        window_size=(-1 if window is None else window - 1, 0),
        **more,
        **kernel.options,
    )
    if sinks is None:
        return attended.reshape(heads.shape[0], -1)
    # A sink t beside a sum s of exponentials leaves s / (s + exp t) of the weighted values.
    results, sums = attended  # [N, H, D], [H, N]
    left = torch.sigmoid(sums.transpose(0, 1) - sinks)
    return (results * left[:, :, None]).to(results.dtype).reshape(heads.shape[0], -1)


class FusedRows:
    """All rows of a step, single tokens and chunks alike."""

    def __init__(
        self,
        rows: Sequence[PlacedRow],
        storage: PagedStorage,
        window: int | None,
        kernel: FusedKernel,
    ) -> None:
        """Lay the rows out.

        Args:
            rows: All rows of the step, in its order.
            storage: Storage of the pages.
            window: Keys that a query sees, itself included; ``None``: all.
            kernel: The kernel that computes.
        """
        self._storage, self._kernel, self._window = storage, kernel, window
        size = storage.page_size
        counts = [row.count for row in rows]
        # Count keys from the first page that is read: the kernel aligns queries with the end of the
        # keys, so a text may begin there.
        firsts, tables = visible_pages(rows, size, AttentionOptions(window=window))
        lengths = [
            row.start + row.count - first * size for row, first in zip(rows, firsts, strict=True)
        ]
        flat = list(chain.from_iterable(padded(tables)))
        starts, ends, used, pages = self._send(
            [[0, *accumulate(counts)], [0, *accumulate(lengths)], lengths, flat]
        )
        table = pages.view(len(rows), -1)
        self._reads = Reads(starts, ends, max(counts), max(lengths), used, table)
        if not kernel.reads_pages:
            self._cells = self._find_cells(sum(lengths))

    def _find_cells(self, count: int) -> Tensor:
        """Find the places of the keys of all rows, int64 ``[count]``, without waiting for the
        device."""
        size, used = self._storage.page_size, self._reads.used
        rows = torch.arange(len(used), dtype=torch.int64, device=used.device)
        row_of = torch.repeat_interleave(rows, used, output_size=count)
        offsets = (
            torch.arange(count, dtype=torch.int64, device=used.device)
            - self._reads.keys[:-1][row_of]
        )
        return self._reads.table[row_of, offsets // size].long() * size + offsets % size

    def advance(self, rows: Sequence[PackedRow]) -> bool:
        """Return whether this layout serves the next step as well: never."""
        return False

    def compute(
        self, layer: int, heads: Tensor, scale: float | None, sinks: Tensor | None = None
    ) -> Tensor:
        """Compute all results, ``[N, H * D]``."""
        keys, values = self._storage.layers[layer].unbind(0)
        if not self._kernel.reads_pages:
            keys, values = (
                pages.flatten(0, 1).index_select(0, self._cells) for pages in (keys, values)
            )
        return attend_fused(
            self._kernel, heads, keys, values, self._reads, self._window, scale, sinks
        )

    def _send(self, lists: list[list[int]]) -> list[Tensor]:
        """Send lists of numbers to the device, in one transfer, as int32."""
        flat = torch.tensor(
            [number for numbers in lists for number in numbers], dtype=torch.int32, device="cpu"
        )
        sent = to_device(flat, self._storage.device)
        # Kernels ask for aligned addresses, so each gets memory of its own.
        return [part.clone() for part in torch.split(sent, [len(numbers) for numbers in lists])]
