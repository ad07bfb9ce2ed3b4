"""Attention over pages with torch's kernels: choose the kernel for each row of a step.

New keys and values are written to their pages first, then every row reads its own.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

import torch

from asyncgen.families.plans.attention_options import number_kinds
from asyncgen.models.attention.paged.contiguous import ContiguousRows, CopyBuffer, are_worth_copying
from asyncgen.models.attention.paged.decode import DecodeRows
from asyncgen.models.attention.paged.fused import FusedRows
from asyncgen.models.attention.paged.kernel_probe import find_fused_kernel
from asyncgen.models.attention.paged.packed_rows import PlacedRow, bucket_chunks, place_rows
from asyncgen.models.attention.paged.prefill import PrefillRows
from asyncgen.runtime.transfer import host_ints, host_range, to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from asyncgen.cache.paged_storage import PagedStorage
    from asyncgen.families.config import ModelConfig
    from asyncgen.families.plans.attention_options import AttentionOptions
    from asyncgen.models.attention.paged.packed_rows import PackedRow


Whole: TypeAlias = DecodeRows | ContiguousRows | FusedRows
"""Ways to compute all rows of a step at once."""

Part: TypeAlias = PrefillRows | DecodeRows
"""Ways to compute some rows of a step."""

FEW_SHORT_TOKENS: Final = 512
"""Up to so many keys in 16 bits are gathered: torch's batched product is slow on small batches."""

STEPS_TOGETHER: Final = 8
"""Steps that the same rows must have gone on, alone, before they are copied together: a copy costs
as much as it saves in about so many."""


class TorchAttention:
    """The `AttentionContext` of packed rows on any device; see `PagedAttention`.

    Attributes:
        storage: Keys and values.
        fused: Kernel that computes all rows at once, on an accelerator that has one.
    """

    compiled = None

    def __init__(self, config: ModelConfig, storage: PagedStorage) -> None:
        """Attend over a storage.

        Args:
            config: The model's.
            storage: Its pages; made for the same configuration.
        """
        self.storage = storage
        self._group = config.num_attention_heads // config.num_key_value_heads
        self._heads = config.num_attention_heads
        self._scales = [options.scale for options in config.attention]
        # Layers of one group whose attention has the same options are laid out together: each layer
        # has the number of its kind. A layer without attention gets the kind of the first one that
        # attends; it never asks.
        groups = [group for group, _ in storage.plan.places()]
        attending = config.attending
        asking = [layer if layer in attending else attending[0] for layer in range(len(groups))]
        kinds = [(groups[layer], config.attention[layer].kind) for layer in asking]
        self._kinds, self._kind_of = number_kinds(kinds)
        self._parts: dict[int, list[Part]] = {}
        # The way that computes all rows of the step at once, if there is one; and for each group
        # the places of new keys and values, unless they are copied.
        self._only: dict[int, Whole] = {}
        self._slots: list[Tensor] = []
        self._num_tokens = 0
        self._starts: list[int] = []
        self._steps_together = 0
        self._copy_memory = CopyBuffer(storage)
        self.fused = find_fused_kernel(config, storage)

    def lay_out(self, rows: Sequence[PackedRow]) -> None:
        """See `PagedAttention`."""
        self._count_steps(rows)
        if self._advance(rows) and self._steps_together != STEPS_TOGETHER:
            return
        for whole in self._only.values():
            if isinstance(whole, ContiguousRows):
                whole.settle()
        self._only, self._parts, self._slots = {}, {}, []
        with torch.inference_mode(False):
            places = [place_rows(rows, group) for group in range(len(self.storage.plan.groups))]
            for placed in places:
                self._clear_begun(placed)
            for number, (group, options) in enumerate(self._kinds):
                found = self._split(places[group], options)
                if isinstance(found, list):
                    self._parts[number] = found
                else:
                    self._only[number] = found
            if not isinstance(self._only.get(0), ContiguousRows):
                self._slots = [self._place_keys(placed) for placed in places]
            self._num_tokens = sum(row.count for row in rows)
            self._out = torch.empty(
                (self._num_tokens, self._heads * self.storage.head_dim),
                dtype=self.storage.dtype,
                device=self.storage.device,
            )

    def _count_steps(self, rows: Sequence[PackedRow]) -> None:
        """Count the steps in which the same rows went on by one token each."""
        # A loop, since this runs for every token: a comprehension is a function call.
        before, self._starts = self._starts, []
        go_on = len(before) == len(rows)
        for number, row in enumerate(rows):
            start = row.start
            self._starts.append(start)
            go_on = go_on and row.count == 1 and start == before[number] + 1
        self._steps_together = self._steps_together + 1 if go_on else 0

    def _advance(self, rows: Sequence[PackedRow]) -> bool:
        """Reuse the last step's layout if each row goes one token further."""
        # One kind's layout says nothing about another's.
        if len(self._only) != 1 or self._parts or self._num_tokens != len(rows):
            return False
        (part,) = self._only.values()
        if any(row.count != 1 for row in rows) or not part.advance(rows):
            return False
        if not self._slots:  # it writes its keys itself
            return True
        (slots,) = self._slots
        slots.add_(1)
        size = self.storage.page_size
        begun = [token for token, row in enumerate(rows) if row.start % size == 0]
        if begun:
            placed = [PlacedRow(token, rows[token].start, 1, rows[token].pages) for token in begun]
            self._clear_begun(placed)
            slots[begun] = self._place_keys(placed)
        return True

    def _clear_begun(self, rows: list[PlacedRow]) -> None:
        """Zero the pages that rows begin and do not fill.

        The rest of an earlier text may be NaN, and zero times NaN is NaN.
        """
        begun = [row.begun_page(self.storage.page_size) for row in rows]
        self.storage.clear([page for page in begun if page is not None])

    def begin(self, rows: int, length: int) -> None:
        """See `AttentionContext`; the step's rows are those that were laid out."""
        assert rows * length == self._num_tokens, "lay out the rows of this step first"

    def attend(self, layer: int, heads: Tensor, sinks: Tensor | None = None) -> Tensor:
        """See `AttentionContext`."""
        kind = self._kind_of[layer]
        if self._slots:
            slots = self._slots[self._kinds[kind][0]]
            new = heads[:, self._heads :]
            kept = self.storage.write(layer, slots, new)
            if kept is not new:  # chunks without earlier tokens read what later ones will read
                heads = torch.cat((heads[:, : self._heads], kept), 1)
        scale = self._scales[layer]
        only = self._only.get(kind)
        if only is not None:
            return only.compute(layer, heads, scale, sinks)
        for part in self._parts[kind]:
            part.attend(layer, heads, self._out, scale, sinks)
        return self._out

    def _split(self, rows: list[PlacedRow], kind: AttentionOptions) -> Whole | list[Part]:
        """Choose the kernel of each row in layers of a kind."""
        storage, group = self.storage, self._group
        if self.fused is not None and self.fused.serves(kind):
            return FusedRows(rows, storage, kind.window, self.fused)
        if storage.heads_first and kind.is_fusable and self._are_copied(rows):
            return ContiguousRows(rows, storage, kind.window, group, self._copy_memory)
        parts: list[Part] = []
        takes_singles = storage.heads_first and not kind.is_bidirectional
        singles = [row for row in rows if row.count == 1] if takes_singles else []
        if singles and self._is_worth_it(singles):
            together = DecodeRows(singles, storage, kind, group)
            if len(singles) == len(rows):
                return together
            parts.append(together)
            rows = [row for row in rows if row.count > 1]
        return parts + [PrefillRows(bucket, storage, kind, group) for bucket in bucket_chunks(rows)]

    def _are_copied(self, rows: list[PlacedRow]) -> bool:
        """Return whether the rows' keys are copied together; each kind would make its copy."""
        if len(self._kinds) > 1 or any(row.count > 1 for row in rows):
            return False
        if self.storage.scales is not None:  # a copy would be unpacked
            return False
        if len(rows) > 1 and self._steps_together < STEPS_TOGETHER:
            return False
        return are_worth_copying(rows, self.storage)

    def _is_worth_it(self, rows: list[PlacedRow]) -> bool:
        """Return whether single tokens are computed page by page, not as chunks of one token."""
        if self.storage.dtype == torch.float32:
            return True
        return sum(row.start + 1 for row in rows) > FEW_SHORT_TOKENS

    def _place_keys(self, rows: list[PlacedRow]) -> Tensor:
        """Find the places of each token's keys and values: rows of ``[2 * P * K * page_size,
        D]``, int64."""
        storage = self.storage
        size, kv_heads, device = storage.page_size, storage.num_kv_heads, storage.device
        cells = host_ints(list(chain.from_iterable(row.cells(size) for row in rows)))[:, None]
        kinds = host_range(2)[:, None] * (storage.num_pages * size * kv_heads)
        heads = host_range(kv_heads)
        if storage.heads_first:
            cells = cells // size * (size * kv_heads) + cells % size
            return to_device(cells + (kinds + heads * size).flatten(), device)  # [N, 2K]
        return to_device(cells * kv_heads + (kinds + heads).flatten(), device)
