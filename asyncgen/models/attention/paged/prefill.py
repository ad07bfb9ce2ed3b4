"""Prefill attention over pages: prompt chunks of similar size side by side, one kernel for all.

It works on any device, and serves single tokens too if no faster way applies.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

from asyncgen.models.attention.dense import additive_mask
from asyncgen.models.attention.eager import attend_eager, hide_unseen
from asyncgen.models.attention.paged.packed_rows import padded, visible_pages
from asyncgen.runtime.transfer import host_ints, host_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from asyncgen.cache.paged_storage import PagedStorage
    from asyncgen.families.plans.attention_options import AttentionOptions
    from asyncgen.models.attention.paged.packed_rows import PlacedRow


class PrefillRows:
    """Rows of one step that are computed as one padded batch.

    Rows without earlier tokens read the keys of the step itself; the others read their pages. Every
    padding, of queries and of keys, repeats something of the row that it pads, so that no row ever
    meets numbers of another.
    """

    def __init__(
        self,
        rows: Sequence[PlacedRow],
        storage: PagedStorage,
        options: AttentionOptions,
        group: int,
    ) -> None:
        """Lay the rows out.

        Args:
            rows: All with earlier tokens, or all without.
            storage: Storage of the pages.
            options: Options of the layers that these rows are computed in; their scale is not read.
            group: Query heads for each key head, G.
        """
        self._storage = storage
        self._options = options
        self._kv_heads = storage.num_kv_heads
        self._group = group
        self._rows = len(rows)
        self._length = max(row.count for row in rows)  # S
        self._tokens = sum(row.count for row in rows)
        self._first_token = rows[0].token
        self._is_aligned = all(
            row.count == self._length and row.token == rows[0].token + number * self._length
            for number, row in enumerate(rows)
        )
        device = storage.device
        counts = host_ints([row.count for row in rows])[:, None]
        offsets = host_range(self._length)[None].minimum(counts - 1)  # [B, S]
        tokens = host_ints([row.token for row in rows])[:, None] + offsets
        self._taken = tokens.reshape(-1).to(device)
        # Numbers of the real results among the padded ones, and their tokens.
        self._given = (host_range(self._length) < counts).flatten().nonzero().flatten().to(device)
        self._targets = self._taken[self._given]
        self._pages: Tensor | None = None
        self._mask: Tensor | None = None
        self._distances: Tensor | None = None
        queries = host_ints([row.start for row in rows])[:, None] + offsets  # positions [B, S]
        if options.is_bidirectional:
            assert not any(row.start for row in rows), "such texts are computed in one piece"
            is_padded = any(row.count < self._length for row in rows)
            if is_padded or (options.window is not None and self._length > options.window):
                self._hide(
                    queries,
                    torch.zeros(1, dtype=torch.int64, device="cpu"),
                    self._length,
                    ends=counts,
                )
        elif any(row.start for row in rows):
            self._lay_out_pages(rows, queries)
        elif not options.is_plain or (options.window is not None and self._length > options.window):
            self._hide(queries, torch.zeros(1, dtype=torch.int64, device="cpu"), self._length)

    def attend(
        self,
        layer: int,
        heads: Tensor,
        out: Tensor,
        scale: float | None,
        sinks: Tensor | None = None,
    ) -> None:
        """Write the rows' part of ``out`` ``[N, H * D]``; ``heads`` is ``[N, H + 2K, D]``."""
        count = self._kv_heads * self._group
        if self._is_aligned:
            own = heads[self._first_token : self._first_token + self._tokens]
        else:
            own = heads.index_select(0, self._taken)
        own = own.view(self._rows, self._length, -1, heads.shape[2])  # [B, S, H + 2K, D]
        queries = own[:, :, :count].transpose(1, 2)
        if self._pages is None:
            keys, values = own[:, :, count:].transpose(1, 2).chunk(2, dim=1)
        else:
            keys, values = self._read(layer)
        if self._options.is_plain:
            attended = self._attend_plainly(queries, keys, values, scale)
        else:
            attended = attend_eager(
                queries,
                keys,
                values,
                replace(self._options, scale=scale),
                mask=self._mask,
                distances=self._distances,
                sinks=sinks,
            )
        attended = attended.transpose(1, 2)  # [B, S, H, D]
        if self._is_aligned:
            part = out[self._first_token : self._first_token + self._tokens]
            part.view(attended.shape).copy_(attended)
        else:
            flat = attended.reshape(self._rows * self._length, -1)
            out.index_copy_(0, self._targets, flat.index_select(0, self._given))

    def _attend_plainly(
        self, queries: Tensor, keys: Tensor, values: Tensor, scale: float | None
    ) -> Tensor:
        """Attend by torch's kernel, ``[B, H, S, D]``."""
        is_single = self._length == 1
        if is_single:
            # The heads of a group become queries of one key head: kernels that take masks know no
            # groups.
            queries = queries.reshape(self._rows, self._kv_heads, self._group, -1)
        attended = scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=self._mask,
            is_causal=self._mask is None and not is_single and not self._options.is_bidirectional,
            scale=scale,
            enable_gqa=self._group > 1 and not is_single,
        )
        if is_single:
            attended = attended.reshape(self._rows, self._kv_heads * self._group, 1, -1)
        return attended

    def _read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Copy the rows' keys and values together: ``[B, K, T, D]`` each."""
        storage, pages = self._storage, self._pages
        assert pages is not None
        size, count = storage.head_dim, 2 * storage.num_pages
        if storage.heads_first:
            pair = storage.read(layer, count * self._kv_heads, pages)
            pair = pair.view(2, self._rows, self._kv_heads, -1, size)
            return pair[0], pair[1]
        pair = storage.read(layer, count, pages).view(2, self._rows, -1, self._kv_heads, size)
        return pair[0].transpose(1, 2), pair[1].transpose(1, 2)

    def _lay_out_pages(self, rows: Sequence[PlacedRow], queries: Tensor) -> None:
        """List the pages that the rows read, and mask the hidden keys."""
        size, kv_heads = self._storage.page_size, self._kv_heads
        firsts, visible = visible_pages(rows, size, self._options)
        tables = host_ints(padded(visible))  # [B, pages]
        pair = host_range(2)[:, None, None] * self._storage.num_pages + tables
        if self._storage.heads_first:
            pair = pair[:, :, None] * kv_heads + host_range(kv_heads)[:, None]
        self._pages = pair.reshape(-1).to(self._storage.device)
        begin = host_ints(firsts) * size
        self._hide(queries, begin, tables.shape[1] * size)

    def _hide(
        self, queries: Tensor, begin: Tensor, length: int, *, ends: Tensor | None = None
    ) -> None:
        """Make the mask that is added to the scores, ``[B, 1, S, T]``, and the distances of keys.

        Args:
            queries: Their positions, ``[B, S]``.
            begin: Position of the first key, ``[B]`` or ``[1]``.
            length: Keys, T.
            ends: Position behind the last key of each row, ``[B, 1]``, if padding is not hidden by
                the order of the text.
        """
        storage = self._storage
        keys = begin[:, None, None] + host_range(length)  # [B, 1, T]
        hidden = hide_unseen(queries[:, :, None], keys, self._options)
        if ends is not None:
            hidden = hidden | (keys >= ends[:, :, None])
        self._mask = additive_mask(hidden, storage.dtype)[:, None].to(storage.device)
        if self._options.slopes is not None:
            away = (keys - queries[:, :, None]).float()
            self._distances = away[:, None].to(storage.device)
