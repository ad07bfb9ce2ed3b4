"""Attention sinks: keep the first few positions and the last ones, and drop those between.

Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks" (arXiv 2309.17453).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

from asyncgen.cache.caches import Cache
from asyncgen.cache.layers import DynamicLayer
from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


class SinkCache(Cache):
    """Keeps the first ``num_sink_tokens`` positions and the newest, ``window_length`` in all.

    For code that calls `update` itself. Positions are those in the cache (section 3.2 of the
    paper): kept ones move up when others are dropped, and their keys are rotated back as far, if
    the caller gives the angles. A model of this library counts positions from the beginning of the
    sequence, so it refuses this cache.

    Attributes:
        window_length: Positions that are kept.
        num_sink_tokens: Number of first positions among them.
    """

    def __init__(self, window_length: int, num_sink_tokens: int) -> None:
        """Fix the numbers.

        Args:
            window_length: Positions that are kept, at least one more than the sinks.
            num_sink_tokens: At least 0.

        Raises:
            InvalidRequestError: A number is out of range.
        """
        if num_sink_tokens < 0:
            raise InvalidRequestError("num_sink_tokens", num_sink_tokens, "at least 0")
        if window_length <= num_sink_tokens:
            allowed = f"more than `num_sink_tokens` ({num_sink_tokens})"
            raise InvalidRequestError("window_length", window_length, allowed)
        self._open((), DynamicLayer)
        self.window_length = window_length
        self.num_sink_tokens = num_sink_tokens
        self._angles: tuple[Tensor, Tensor] | None = None  # [T, D] each

    def ensure_layers(self, count: int) -> NoReturn:
        """Refuse models, which call this; see the class.

        Raises:
            InvalidRequestError: Always.
        """
        raise InvalidRequestError(
            "past_key_values",
            "SinkCache",
            "models of this library cannot close the gap of dropped positions; use DynamicCache, "
            "or SlidingWindowCache with a model that has a window",
        )

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        cache_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values ``[B, K, S, D]`` of one layer; drop what is too much.

        Args:
            key_states: ``[B, K, S, D]``; at positions from `get_seq_length` on, or from
                ``window_length - S`` on if that is less.
            value_states: ``[B, K, S, D]``.
            layer_idx: The layer.
            cache_kwargs: With rotary embeddings ``cos`` and ``sin`` of the S positions, ``[S, D]``
                or ``[B, S, D]``, in two equal halves as models give them; and
                ``partial_rotation_size``, if no more than so many of the D numbers rotate.

        Returns:
            Kept keys and values, ``[B, K, T, D]`` each. T is at most ``window_length``, except that
            nothing new is dropped.

        Raises:
            InvalidRequestError: ``cos`` without ``sin``, or the other way round.
        """
        given = cache_kwargs or {}
        cos, sin = given.get("cos"), given.get("sin")
        if (cos is None) != (sin is None):
            raise InvalidRequestError("cache_kwargs", sorted(given), "`cos` and `sin` go together")
        layer = super().ensure_layers(layer_idx + 1)[layer_idx]
        if layer_idx == 0 and cos is not None and sin is not None:
            self._remember_angles(cos, sin)
        size, before = key_states.shape[2], layer.length
        excess = min(before + size - self.window_length, before - self.num_sink_tokens)
        keys, values = layer.update(key_states, value_states)
        if excess <= 0:
            return keys, values
        sinks = self.num_sink_tokens
        moved = keys[:, :, sinks + excess : before]
        if cos is not None:
            moved = self._rotate_back(moved, excess, given.get("partial_rotation_size"))
        keys = torch.cat((keys[:, :, :sinks], moved, keys[:, :, before:]), dim=2)
        values = torch.cat((values[:, :, :sinks], values[:, :, sinks + excess :]), dim=2)
        layer.reset()
        return layer.update(keys, values)

    def get_max_cache_shape(self, layer_idx: int = 0) -> int | None:
        """Return the most positions that are kept."""
        return self.window_length

    def reset(self) -> None:
        """Forget every position."""
        super().reset()
        self._angles = None

    def _remember_angles(self, cos: Tensor, sin: Tensor) -> None:
        """Remember the angles of consecutive positions, until there are enough of them."""
        # All rows move as far, so one row is enough.
        new_cos, new_sin = (each[0] if each.dim() == 3 else each for each in (cos, sin))
        if self._angles is None:
            self._angles = new_cos, new_sin
        elif len(self._angles[0]) < self.window_length:
            old_cos, old_sin = self._angles
            self._angles = torch.cat((old_cos, new_cos)), torch.cat((old_sin, new_sin))

    def _rotate_back(self, keys: Tensor, positions: int, partial: int | None) -> Tensor:
        """Rotate keys ``[B, K, T, D]`` back by so many positions.

        The cosines and sines of two positions that lie so far apart are known; those of the
        difference follow, and their scale drops out.
        """
        if self._angles is None or not keys.shape[2]:
            return keys
        exact = torch.promote_types(keys.dtype, torch.float32)
        cos, sin = (each.to(exact) for each in self._angles)
        (near_cos, near_sin), (far_cos, far_sin) = (
            (cos[place], sin[place]) for place in (-1 - positions, -1)
        )
        scale = near_cos.square() + near_sin.square()
        turn_cos = (far_cos * near_cos + far_sin * near_sin) / scale  # [D]
        turn_sin = (far_sin * near_cos - far_cos * near_sin) / scale
        size = keys.shape[-1] if partial is None else partial
        turned, rest = keys[..., :size].to(exact), keys[..., size:]
        first, second = turned.chunk(2, dim=-1)
        swapped = torch.cat((second, -first), dim=-1)
        result = turned * turn_cos + swapped * turn_sin
        return torch.cat((result.to(keys.dtype), rest), dim=-1)
