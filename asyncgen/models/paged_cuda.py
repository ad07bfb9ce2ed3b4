"""Attention over pages on an accelerator: one fused kernel for rows of any length.

``torch.nn.attention.varlen.varlen_attn`` reads pages through a table where torch's kernels can do
that for the page size at hand; otherwise the visible keys are gathered first, without padding. A
trial on the device tells what works, since that depends on the build, the device and on kernels
that were registered by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.cache.paged import PagedStorage
from asyncgen.models.paged_chunks import Chunks
from asyncgen.models.paged_plan import PlacedRow
from asyncgen.transfer import to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from asyncgen.models.config import ModelConfig
    from asyncgen.models.paged_plan import PackedRow

__all__ = ["FusedKernel", "FusedRows", "PageReads", "attend_pages", "find_fused_kernel"]

LARGEST_DEVIATION = 0.05
"""Between two kernels in 16 bits, on numbers of variance one."""


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """What the device can do.

    Attributes:
        function: ``varlen_attn``.
        reads_pages: Whether it takes a table of pages.
    """

    function: Callable[..., Any]
    reads_pages: bool


@dataclass(frozen=True, slots=True)
class PageReads:
    """What rows read of the pages.

    Attributes:
        queries: First query of each row and the end of the last one, int32 ``[B + 1]``.
        used: Keys of each row, int32 ``[B]``.
        table: Pages of each row, int32 ``[B, M]``; those behind its keys are not looked at.
        most_queries: Of a row. A plain number, as the next: a recording keeps it.
        most_keys: Of a row; an upper bound will do.
    """

    queries: Tensor
    used: Tensor
    table: Tensor
    most_queries: int
    most_keys: int


def attend_pages(
    kernel: FusedKernel,
    storage: PagedStorage,
    layer: int,
    heads: Tensor,
    reads: PageReads,
    window: int | None,
    scale: float | None,
) -> Tensor:
    """Attend through a table of pages.

    Args:
        kernel: Reads pages.
        storage: Where they are.
        layer: Which layer's.
        heads: ``[N, H + 2K, D]``; only the queries are read.
        reads: Who reads what.
        window: Keys that a query sees, itself included; ``None``: all.
        scale: Of the scores; ``None``: the usual one.

    Returns:
        ``[N, H * D]``.
    """
    num_heads = heads.shape[1] - 2 * storage.num_kv_heads
    options: dict[str, Any] = {"enable_gqa": True} if num_heads > storage.num_kv_heads else {}
    keys, values = storage.layers[layer].unbind(0)
    attended = kernel.function(
        heads[:, :num_heads],
        keys,
        values,
        reads.queries,
        None,
        reads.most_queries,
        reads.most_keys,
        scale=scale,
        window_size=_sides(window),
        seqused_k=reads.used,
        block_table=reads.table,
        **options,
    )
    return attended.reshape(heads.shape[0], -1)


def _sides(window: int | None) -> tuple[int, int]:
    """Keys that a query sees before and behind itself; -1 for all."""
    return (-1, 0) if window is None else (window - 1, 0)


class FusedRows:
    """All rows of a step, single tokens and chunks alike."""

    is_whole = True

    def __init__(
        self,
        rows: Sequence[PlacedRow],
        storage: PagedStorage,
        window: int | None,
        group: int,
        kernel: FusedKernel,
    ) -> None:
        """Lay the rows out.

        Args:
            rows: All of the step, in its order.
            storage: Where the pages are.
            window: Keys that a query sees, itself included; ``None``: all.
            group: Query heads for each key head, G.
            kernel: What computes.
        """
        self._storage, self._kernel, self._group = storage, kernel, group
        self._heads = group * storage.num_kv_heads
        self._window = window
        size = storage.page_size
        counts = [row.count for row in rows]
        ends = [row.start + row.count for row in rows]
        spans = [row.visible_pages(size, window) for row in rows]
        queries = [0, *accumulate(counts)]
        self._most_queries = max(counts)
        if kernel.reads_pages:
            self._most_keys = max(ends)
            most = max(end for _, end in spans)
            table = [
                [*row.pages[:end], *[row.pages[0]] * (most - end)]
                for row, (_, end) in zip(rows, spans, strict=True)
            ]
            parts = self._send([queries, ends, list(chain.from_iterable(table))])
            self._queries, used, pages = parts
            table_of_pages = pages.view(len(rows), most)
            self._reads = PageReads(
                self._queries, used, table_of_pages, self._most_queries, self._most_keys
            )
        else:
            begins = [first * size for first, _ in spans]
            lengths = [end - begin for end, begin in zip(ends, begins, strict=True)]
            self._most_keys = max(lengths)
            cells = [
                PlacedRow(0, begin, length, row.pages).cells(size)
                for row, begin, length in zip(rows, begins, lengths, strict=True)
            ]
            keys = [0, *accumulate(lengths)]
            parts = self._send([queries, keys, list(chain.from_iterable(cells))])
            self._queries, self._keys, self._cells = parts

    def advance(self, rows: Sequence[PackedRow]) -> bool:
        """Whether this serves the next step as well: never."""
        return False

    def attend(self, layer: int, heads: Tensor, out: Tensor, scale: float | None) -> None:
        """Write ``out`` ``[N, H * D]``; ``heads`` is ``[N, H + 2K, D]``."""
        out.copy_(self.compute(layer, heads, scale))

    def compute(self, layer: int, heads: Tensor, scale: float | None) -> Tensor:
        """All results, ``[N, H * D]``."""
        if self._kernel.reads_pages:
            return attend_pages(
                self._kernel, self._storage, layer, heads, self._reads, self._window, scale
            )
        options: dict[str, Any] = {"enable_gqa": True} if self._group > 1 else {}
        keys, values = self._storage.layers[layer].unbind(0)
        shape = (-1, *keys.shape[2:])
        attended = self._kernel.function(
            heads[:, : self._heads],
            keys.reshape(shape).index_select(0, self._cells),
            values.reshape(shape).index_select(0, self._cells),
            self._queries,
            self._keys,
            self._most_queries,
            self._most_keys,
            scale=scale,
            window_size=_sides(self._window),
            **options,
        )
        return attended.reshape(heads.shape[0], -1)

    def _send(self, lists: list[list[int]]) -> list[Tensor]:
        """Lists of numbers to the device, in one transfer, as int32."""
        flat = torch.tensor([number for numbers in lists for number in numbers], dtype=torch.int32)
        sent = to_device(flat, self._storage.device)
        # Each its own memory: kernels ask for aligned addresses.
        return [part.clone() for part in torch.split(sent, [len(numbers) for numbers in lists])]


def find_fused_kernel(config: ModelConfig, storage: PagedStorage) -> FusedKernel | None:
    """The best that this device can do for this storage; ``None``: nothing fused.

    Args:
        config: The model's.
        storage: Pages on an accelerator, with tokens first.
    """
    is_short = storage.dtype in (torch.float16, torch.bfloat16)
    if storage.heads_first or not is_short or storage.page_size == 1:
        return None
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    for reads_pages in (True, False):
        kernel = FusedKernel(varlen_attn, reads_pages)
        if _works(kernel, config, storage):
            return kernel
    return None


def _works(kernel: FusedKernel, config: ModelConfig, storage: PagedStorage) -> bool:
    """Try a kernel on random numbers against the plain one."""
    size, device, dtype = storage.page_size, storage.device, storage.dtype
    trial = PagedStorage(config, 4, size, device=device, dtype=dtype, heads_first=False)
    generator = torch.Generator(device).manual_seed(0)
    trial.data.normal_(generator=generator)
    rows = [
        PlacedRow(0, size + 1, 1, [2, 0]),
        PlacedRow(1, 0, 2, [3]),
        PlacedRow(3, size, 2, [1, 3]),
    ]
    group = config.num_attention_heads // config.num_key_value_heads
    shape = (5, config.num_attention_heads + 2 * config.num_key_value_heads, config.head_dim)
    heads = torch.empty(shape, device=device, dtype=dtype).normal_(generator=generator)
    # The keys of a text's first tokens are read from the step itself by the plain kernel.
    fresh = torch.stack(heads[1:3, config.num_attention_heads :].chunk(2, dim=1))
    trial.layers[0][:, 3, :2] = fresh
    for window in {config.window(layer) for layer in range(config.num_hidden_layers)}:
        expected = torch.empty(5, shape[2] * config.num_attention_heads, device=device, dtype=dtype)
        for row in rows:
            Chunks([row], trial, window, group).attend(0, heads, expected, None)
        try:
            found = FusedRows(rows, trial, window, group, kernel).compute(0, heads, None)
            difference = (found.float() - expected.float()).abs().max().item()
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            return False
        if not difference < LARGEST_DEVIATION:
            return False
    return True
