"""Attention whose place in the cache is a tensor, so that one program serves every length.

``torch.export`` writes numbers down as constants. Here the positions of the new tokens are data:
keys and values are written at them into buffers of fixed shape, and a mask hides the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.models.attention.dense import additive_mask, attend
from asyncgen.models.attention.eager import attend_eager, hide_unseen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from asyncgen.families.config import ModelConfig


class ExportedAttention:
    """Attention of one forward pass that is being exported; an `AttentionContext`."""

    compiled = None

    def __init__(
        self,
        config: ModelConfig,
        places: Tensor,
        buffers: Sequence[Tensor] | None,
        seen: Tensor | None,
    ) -> None:
        """Begin a forward pass.

        Args:
            config: The model's.
            places: Places of the new tokens in the cache, ``[S]``.
            buffers: Keys and values of each layer, ``[2, B, K, T, D]``, which are written to;
                ``None`` without a cache: then T is S.
            seen: ``[B, T]``, false at padding; ``None``: there is none.
        """
        self._config = config
        self._places = places
        self._buffers = buffers
        self._seen = seen
        self._rows = self._length = 0

    def begin(self, rows: int, length: int) -> None:
        """See `AttentionContext`."""
        self._rows, self._length = rows, length

    def attend(self, layer: int, heads: Tensor, sinks: Tensor | None = None) -> Tensor:
        """See `AttentionContext`."""
        config, options = self._config, self._config.attention[layer]
        rows, length, size = self._rows, self._length, config.head_dim
        heads = heads.view(rows, length, -1, size)
        queries = heads[:, :, : config.num_attention_heads].transpose(1, 2)
        pair = heads[:, :, config.num_attention_heads :]
        pair = pair.reshape(rows, length, 2, config.num_key_value_heads, size)
        pair = pair.permute(2, 0, 3, 1, 4)  # [2, B, K, S, D]
        places = self._places
        if self._buffers is not None:
            pair = self._buffers[layer].index_copy_(3, places, pair.to(self._buffers[layer].dtype))
            places = torch.arange(pair.shape[3], dtype=torch.int64, device=heads.device)
        keys, values = pair[0], pair[1]
        queried = self._places[:, None]
        hidden = hide_unseen(queried, places, options)[None, None]  # [1, 1, S, T]
        if self._seen is not None:
            hidden = hidden | ~self._seen[:, None, None]
        mask = additive_mask(hidden, heads.dtype)
        if options.is_plain:
            attended = attend(queries, keys, values, mask, options.scale, None)
        else:
            away = None if options.slopes is None else (places - queried)[None, None].float()
            attended = attend_eager(
                queries, keys, values, options, mask=mask, distances=away, sinks=sinks
            )
        return attended.transpose(1, 2).reshape(rows * length, -1)
