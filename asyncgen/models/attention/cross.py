"""Attention of an encoder-decoder model: in the encoder, in the decoder, and from decoder to
encoder.

The decoder's context keeps the encoder's output as keys and values of each layer, so a step reads
nothing else of the encoder. This module knows no weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from asyncgen.errors import InvalidRequestError, InWords
from asyncgen.models.attention.dense import AttentionContext, DenseAttention, additive_mask, attend

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from asyncgen.cache.encoder_decoder import EncoderDecoderCache
    from asyncgen.families.config import ModelConfig
    from asyncgen.families.plans.attention_options import AttentionOptions
    from asyncgen.models.attention.relative import RelativeBias


@dataclass(slots=True)
class Encoded:
    """Output of the encoder for B texts.

    Attributes:
        states: ``[B, T, E]``; ``None`` if a cache holds their keys and values already.
        mask: Bool ``[B, T]``, ``False`` at padding; ``None`` if nothing is padded.
    """

    states: Tensor | None
    mask: Tensor | None = None


class CrossAttentionContext(AttentionContext, Protocol):
    """Attention context that also attends to the encoder."""

    def cross_attend(
        self, layer: int, queries: Tensor, project: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Let the queries attend to the encoder's output.

        Args:
            layer: Number of the layer.
            queries: ``[N, H * D]`` with N = B · S tokens, row after row.
            project: Makes keys and values ``[M, 2 * K * D]`` of encoder states ``[M, E]``; called
                once a layer and cache.

        Returns:
            ``[N, H * D]``, contiguous.
        """


class EncoderAttention:
    """Attention of every token to every token of its row, with a bias by distance."""

    compiled = None

    def __init__(
        self,
        config: ModelConfig,
        bias: RelativeBias,
        mask: Tensor | None,
        collect_attentions: list[Tensor] | None = None,
    ) -> None:
        """Prepare for rows of equal length.

        Args:
            config: The model's.
            bias: Added to the scores.
            mask: Bool ``[B, T]``, ``False`` at padding.
            collect_attentions: Gets the weights ``[B, H, T, T]`` of every layer.
        """
        self._config = config
        self._bias = bias
        self._padding = None if mask is None else ~mask[:, None, None]
        self._weights = collect_attentions

    def begin(self, rows: int, length: int) -> None:
        """See `AttentionContext`."""
        self._rows, self._length = rows, length
        mask = self._bias.rows(0, length)  # [1, H, T, T]
        if self._padding is not None:
            mask = mask.masked_fill(self._padding, torch.finfo(mask.dtype).min)
        self._mask = mask

    def attend(self, layer: int, heads: Tensor, sinks: Tensor | None = None) -> Tensor:
        """See `AttentionContext`; nothing is stored."""
        config = self._config
        parts = heads.view(self._rows, self._length, 3, config.num_attention_heads, -1)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4).unbind(0)  # [B, H, T, D] each
        attended = attend(queries, keys, values, self._mask, _scale(config, 0), self._weights)
        return attended.transpose(1, 2).reshape(heads.shape[0], -1)


class EncoderDecoderAttention(DenseAttention):
    """Attention of decoder rows of equal length over an `EncoderDecoderCache`.

    Each encoded text may have several rows next to each other: beams, or several samples of one
    prompt.
    """

    def __init__(
        self,
        config: ModelConfig,
        cache: EncoderDecoderCache,
        attention_mask: Tensor | None = None,
        *,
        bias: RelativeBias,
        encoded: Encoded,
        collect_attentions: list[Tensor] | None = None,
        collect_cross_attentions: list[Tensor] | None = None,
    ) -> None:
        """Continue where a cache ends.

        Args:
            config: The model's.
            cache: Keys and values so far, of both stacks.
            attention_mask: Of decoder positions, as in `DenseAttention`.
            bias: Added to the scores among decoder positions.
            encoded: The encoder's output.
            collect_attentions: Gets the decoder's weights ``[B, H, S, T]`` of every layer.
            collect_cross_attentions: Gets the weights to the encoder ``[B, H, S, T]``.
        """
        super().__init__(config, cache, attention_mask, collect_attentions=collect_attentions)
        self._bias = bias
        self._encoded = encoded
        cross = cache.cross_attention_cache
        self._cross_layers = cross.attention_layers(config.num_hidden_layers)
        self._cross_weights = collect_cross_attentions
        self._cross_masks: dict[tuple[int, torch.dtype], Tensor | None] = {}

    def begin(self, rows: int, length: int) -> None:
        """See `AttentionContext`."""
        super().begin(rows, length)
        self._plain = False  # a bias is a mask as well

    def cross_attend(
        self, layer: int, queries: Tensor, project: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """See `CrossAttentionContext`."""
        stored = self._cross_layers[layer]
        if not stored.length:
            stored.append(self._encoder_pair(project))
        keys, values = stored.keys, stored.values  # [B, K, T, D]
        assert keys is not None and values is not None
        rows, length = self._rows, self._length
        if keys.shape[0] != rows:
            raise InvalidRequestError(
                "past_key_values",
                InWords(f"a cache of {keys.shape[0]} encoder rows"),
                f"the decoder has {rows} rows; make a cache of that size",
            )
        split = queries.view(rows, length, -1, self._head_dim).transpose(1, 2)  # [B, H, S, D]
        mask = self._cross_mask(rows, queries)
        scale = _scale(self._config, layer)
        attended = attend(split, keys, values, mask, scale, self._cross_weights)
        return attended.transpose(1, 2).reshape(rows * length, -1)

    def _encoder_pair(self, project: Callable[[Tensor], Tensor]) -> Tensor:
        """Make keys and values of the encoder's output, ``[2, B, K, T, D]``."""
        states = self._encoded.states
        assert states is not None
        batch, length, width = states.shape
        copies = self._copies(batch)
        pair = project(states.reshape(-1, width))
        pair = pair.view(batch, length, 2, self._kv_heads, -1).permute(2, 0, 3, 1, 4)
        return pair.repeat_interleave(copies, dim=1)

    def _copies(self, batch: int) -> int:
        """Count the decoder rows of each encoded text."""
        if self._rows % batch:
            raise InvalidRequestError(
                "decoder_input_ids",
                InWords(f"{self._rows} rows"),
                f"{batch} texts were encoded; give as many rows, or a multiple",
            )
        return self._rows // batch

    def _cross_mask(self, rows: int, like: Tensor) -> Tensor | None:
        """Make the mask that is added to scores, ``[B, 1, 1, T]``."""
        mask = self._encoded.mask
        if mask is None:
            return None
        key = (rows, like.dtype)
        if key not in self._cross_masks:
            spread = mask.repeat_interleave(self._copies(mask.shape[0]), dim=0)[:, None, None]
            self._cross_masks[key] = additive_mask(~spread.to(like.device), like.dtype)
        return self._cross_masks[key]

    def _make_mask(self, first: int, kind: AttentionOptions, like: Tensor) -> Tensor:
        bias = self._bias.rows(self._start, self._end)
        if self._length == 1 and self._padding is None:
            return bias
        hidden = self._hidden(first, kind, like)
        return bias.masked_fill(hidden, torch.finfo(like.dtype).min)


def _scale(config: ModelConfig, layer: int) -> float | None:
    return config.attention[layer].scale
