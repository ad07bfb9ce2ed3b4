"""Caches of models with sliding windows: they keep only the keys that a window reaches.

`SlidingWindowCache` is for models that have a window in every layer, `HybridCache` for those that
have it in some. They read windows from the model's configuration; attention makes the masks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.cache.caches import StaticCache
from asyncgen.cache.layers import StaticLayer
from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from asyncgen.families.config import ModelConfig


_SLACK = 64
"""Positions beyond the window in the buffer, so that most steps move nothing."""


class SlidingLayer(StaticLayer):
    """A buffer of the window and some room; positions that no query sees any more are dropped.

    Positions are counted from the beginning of the sequence, dropped ones included.

    Attributes:
        length: Positions so far, the dropped ones included.
        capacity: Positions that fit the buffer.
        window: Keys that a query sees, itself included.
        least: Fewest positions that `update` returns; those not written yet are zero.
    """

    def __init__(
        self,
        window: int,
        *,
        least: int = 0,
        rows: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        """Fix the window, and ``least``, at most that; others as of `StaticLayer`."""
        super().__init__(window + _SLACK, rows=rows, dtype=dtype, device=device)
        self.window = window
        self.least = least
        self.dropped = 0

    @property
    def pair(self) -> Tensor | None:
        """The remaining keys and values, ``[2, B, K, T, D]``, or ``None`` before the first."""
        return None if self._buffer is None else self._buffer[:, :, :, : self._kept]

    @property
    def _kept(self) -> int:
        return self.length - self.dropped

    def append(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """See `CacheLayer`; ``first`` is not before the first key that the first new query sees."""
        size, start = pair.shape[3], self.length
        buffer, flat = self._buffer, self._flat
        if buffer is None or flat is None:
            buffer, flat = self._open(pair, 0)
        self._check_fit(pair)
        if self._kept + size > self.capacity:
            self._drop(min(max(start + 1 - self.window, 0), start))
        if self._kept + size > self.capacity:
            return self._append_long(pair, first)
        buffer.narrow(3, self._kept, size).copy_(pair)
        self.length = end = start + size
        keys, values = flat
        place = first - self.dropped
        return keys.narrow(2, place, end - first), values.narrow(2, place, end - first)

    def update(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values; return those from the first that the first new query sees.

        ``[B, K, T, D]`` each, T at least ``least``: one shape for every step of a single position,
        as compiled code needs it.
        """
        rows, heads = key_states.shape[:2]
        first = max(self.length + 1 - self.window, 0)
        keys, values = self.append(torch.stack((key_states, value_states)), first)
        if self.length < self.least and self._buffer is not None:
            return self._buffer[0, :, :, : self.least], self._buffer[1, :, :, : self.least]
        shape = (rows, heads, -1, key_states.shape[3])
        return keys.reshape(shape), values.reshape(shape)

    def reserve(self, length: int) -> None:
        """Do nothing: older positions are dropped when the buffer is full."""

    def crop(self, length: int) -> None:
        """Forget the positions from ``length`` on; a negative one counts from the end.

        Raises:
            InvalidRequestError: The window before ``length`` is gone already.
        """
        length = self._left(length)
        if length and self.dropped > max(length + 1 - self.window, 0):
            raise InvalidRequestError(
                "past_key_values",
                f"sliding cache of {self.length} positions",
                f"cannot be cropped to {length}: of the window before that, {self.dropped} "
                "positions were dropped; use DynamicCache where positions are taken back",
            )
        if not length:
            self.dropped = 0
        super().crop(length)

    def reset(self) -> None:
        """Forget every position; the buffer stays where it is, zeroed."""
        super().reset()
        self.dropped = 0

    def _drop(self, first: int) -> None:
        """Drop the positions before ``first``."""
        gone = first - self.dropped
        if gone > 0 and self._buffer is not None:
            left = self._buffer[:, :, :, gone : self._kept].clone()
            self._buffer[:, :, :, : left.shape[3]] = left
            self.dropped = first

    def _append_long(self, pair: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Append more positions at once than the buffer holds: all are returned, the last ones
        kept."""
        buffer, start = self._buffer, self.length
        assert buffer is not None
        whole = torch.cat((buffer[:, :, :, : self._kept], pair), dim=3)
        keys, values = whole.view(2, -1, 1, *whole.shape[3:])[:, :, :, first - self.dropped :]
        self.length = start + pair.shape[3]
        buffer.copy_(whole[:, :, :, -self.capacity :])
        self.dropped = self.length - self.capacity
        return keys, values


class HybridCache(StaticCache):
    """A static cache whose layers with a window keep that window only.

    Example::

        past_key_values = HybridCache(config=model.config, batch_size=1, max_cache_len=256)
        outputs = model(**inputs, past_key_values=past_key_values, use_cache=True)

    ``max_cache_len`` bounds the layers without window.
    """

    def __init__(
        self,
        config: ModelConfig,
        batch_size: int | None = None,
        max_cache_len: int | None = None,
        device: torch.device | str | None = "cpu",
        dtype: torch.dtype = torch.float32,
        layer_device_map: Mapping[int, str | torch.device | int] | None = None,
        *,
        max_batch_size: int | None = None,
        offloading: bool = False,
        offload_only_non_sliding: bool = True,
        offload_device: torch.device | str = "cpu",
    ) -> None:
        """Fix the shape; arguments as of `StaticCache`, but for the default of ``device``.

        Raises:
            InvalidRequestError: A size is below 1, both spellings disagree, or there is no
                length.
        """
        super().__init__(
            config,
            batch_size,
            max_cache_len,
            device,
            dtype,
            layer_device_map,
            max_batch_size=max_batch_size,
            offloading=offloading,
            offload_only_non_sliding=offload_only_non_sliding,
            offload_device=offload_device,
        )

    def _make_layer(
        self, window: int | None, device: torch.device | str | int | None
    ) -> StaticLayer:
        if window is None:
            return super()._make_layer(window, device)
        return _sliding(self, window, device)


class SlidingWindowCache(StaticCache):
    """A cache for models with a window in every layer, such as Mistral: any length, fixed memory.

    Example::

        past_key_values = SlidingWindowCache(config=model.config, batch_size=1)
        outputs = model(**inputs, past_key_values=past_key_values, use_cache=True)

    The arguments are those of `StaticCache`. ``max_cache_len`` is no limit here: memory is that of
    the window, whatever the length.
    """

    def _make_layer(
        self, window: int | None, device: torch.device | str | int | None
    ) -> StaticLayer:
        if window is None:
            raise InvalidRequestError(
                "config",
                "a layer without `sliding_window`",
                "a sliding cache needs a window in every layer; use HybridCache or StaticCache",
            )
        return _sliding(self, window, device)

    def get_max_cache_shape(self, layer_idx: int = 0) -> int | None:
        """Return the positions that a layer keeps for the next one; the sequence may grow on."""
        layer = self.layers[layer_idx]
        return layer.least if isinstance(layer, SlidingLayer) else self.max_cache_len


def _sliding(
    cache: StaticCache, window: int, device: torch.device | str | int | None
) -> SlidingLayer:
    """Make a layer with a window, for one of the caches here."""
    least = min(window, cache.max_cache_len)
    return SlidingLayer(
        window, least=least, rows=cache.max_batch_size, dtype=cache.dtype, device=device
    )
