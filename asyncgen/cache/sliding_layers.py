"""Layers that keep only the positions that a sliding window reaches: growing, and of fixed shape.

Positions are counted from the beginning of the sequence, dropped ones included.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from asyncgen.cache.layer_base import check_size
from asyncgen.cache.layers import DynamicLayer, StaticLayer, dtype_or_rows_error
from asyncgen.errors import InvalidRequestError, InWords

_SLACK = 64
"""Positions beyond the window in the buffer, so that most steps move nothing."""


class DynamicSlidingWindowLayer(DynamicLayer):
    """A growing layer that drops the positions that no query sees any more.

    Attributes:
        length: Positions so far, the dropped ones included.
        sliding_window: Keys that a query sees, itself included.
        record_past: True if nothing is dropped until `crop` is called.
    """

    is_sliding = True

    def __init__(self, sliding_window: int) -> None:
        """Fix the window; shape, dtype and device are those of the first keys.

        Raises:
            InvalidRequestError: It is no integer of at least 1.
        """
        check_size("sliding_window", sliding_window)
        super().__init__()
        self.sliding_window = sliding_window
        self.record_past = False

    @property
    def cumulative_length(self) -> int:
        """Positions so far, the dropped ones included."""
        return self.length

    def activate_past_recording(self) -> None:
        """Drop nothing until the next `crop`, so that it may take any number of positions back."""
        self.record_past = True

    @property
    def pair(self) -> Tensor | None:
        """The keys and values before the next query's, ``[2, B, K, T, D]``, at most
        ``sliding_window - 1``; while the past is recorded all since the last `crop`."""
        if self._buffer is None:
            return None
        kept = self.length - self.dropped
        first = 0 if self.record_past else max(kept + 1 - self.sliding_window, 0)
        return self._buffer[:, :, :, first:kept]

    def write(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """See `CacheLayerMixin.append`; ``first`` is not before what the first new query sees."""
        start, size = self.length, pair.shape[3]
        if start + size - self.dropped > self.capacity:
            if not self.record_past:
                self._drop(start + 1 - self.sliding_window)
            if start + size - self.dropped > self.capacity:
                self._make_room(pair, start + size - self.dropped)
        check_first(self, first)
        buffer, flat = self._buffer, self._flat
        assert buffer is not None and flat is not None
        if pair.shape[1] != self._rows or pair.dtype is not buffer.dtype:
            raise dtype_or_rows_error(buffer.shape[1], buffer.dtype, pair)
        buffer.narrow(3, start - self.dropped, size).copy_(pair)
        self.length = end = start + size
        place = first - self.dropped
        keys, values = flat[0].narrow(2, place, end - first), flat[1].narrow(2, place, end - first)
        if self.capacity > 2 * (self.sliding_window + _SLACK) and not self.record_past:
            self._shrink()
        return keys, values

    append = write

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add keys and values; return those from the first that the first new query sees,
        ``[B, K, T, D]`` each."""
        first = max(self.length + 1 - self.sliding_window, self.dropped)
        pair = self._joined(key_states, value_states)
        return self._unflatten(self.write(pair, first), key_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the size T of what `update` of so many positions returns, and its first
        position."""
        first = max(self.length + 1 - self.sliding_window, 0)
        return self.length - first + query_length, first

    def get_max_length(self) -> int:
        """Return the window."""
        return self.sliding_window

    def reserve(self, length: int) -> None:
        """Allocate room for ``length`` positions at the next write, at most the window's."""
        super().reserve(min(length, self.sliding_window + _SLACK))

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` positions, at most all.

        Raises:
            InvalidRequestError: The window before ``length`` is gone already.
        """
        check_window(self, length)
        super().truncate(length)
        self.dropped = self.dropped if self.length else 0
        if self.record_past:
            self._drop(self.length + 1 - self.sliding_window)

    def reset(self) -> None:
        """Forget every position and free the buffer."""
        super().reset()
        self.dropped = 0

    def _keep(self, pair: Tensor) -> None:
        """Keep these keys and values alone; they are the last positions."""
        length, self.dropped = max(self.length, pair.shape[3]), 0
        super()._keep(pair)
        self.length, self.dropped = length, length - pair.shape[3]

    def _shrink(self) -> None:
        """Keep the window alone in a new buffer; views of the old one stay right."""
        pair = self.pair
        assert pair is not None
        grown = pair.new_empty((*pair.shape[:3], self.sliding_window + _SLACK, pair.shape[4]))
        grown[:, :, :, : pair.shape[3]] = pair
        self.dropped = self.length - pair.shape[3]
        self._replace(grown)


class StaticSlidingWindowLayer(StaticLayer):
    """A buffer of the window and some room; positions that no query sees any more are dropped.

    Attributes:
        length: Positions so far, the dropped ones included.
        capacity: Positions that fit the buffer.
        sliding_window: Keys that a query sees, itself included.
        max_cache_len: Positions of `keys`, and the fewest that `update` returns: one shape for
            every step, as compiled code needs it. Those not written yet are zero.
    """

    is_sliding = True

    def __init__(
        self,
        max_cache_len: int,
        sliding_window: int,
        *,
        rows: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        """Fix the window; no more than it is kept of ``max_cache_len``. Others as of
        `StaticLayer`."""
        check_size("max_cache_len", max_cache_len)
        check_size("sliding_window", sliding_window)
        length = min(max_cache_len, sliding_window)
        super().__init__(length, rows=rows, dtype=dtype, device=device)
        self.capacity = sliding_window + _SLACK
        self.sliding_window = sliding_window
        self.dropped = 0

    @property
    def pair(self) -> Tensor | None:
        """The last keys and values, ``[2, B, K, max_cache_len, D]``, or ``None`` before the
        first; zero where nothing is written yet."""
        if self._buffer is None:
            return None
        first = max(self.length - self.dropped - self.max_cache_len, 0)
        return self._buffer[:, :, :, first : first + self.max_cache_len]

    def write(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """See `CacheLayerMixin.append`; ``first`` is not before what the first new query sees."""
        size, start = pair.shape[3], self.length
        buffer, flat = self._buffer, self._flat
        if buffer is None or flat is None:
            buffer, flat = self._open(pair, 0)
        self._check_fit(pair)
        if start + size - self.dropped > self.capacity:
            self._drop(min(max(start + 1 - self.sliding_window, 0), start))
        check_first(self, first)
        if start + size - self.dropped > self.capacity:
            return self._append_long(pair, first)
        buffer.narrow(3, start - self.dropped, size).copy_(pair)
        self.length = end = start + size
        keys, values = flat
        place = first - self.dropped
        return keys.narrow(2, place, end - first), values.narrow(2, place, end - first)

    append = write

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add keys and values; return those from the first that the first new query sees.

        ``[B, K, T, D]`` each, T at least ``max_cache_len``.
        """
        first = max(self.length + 1 - self.sliding_window, 0)
        found = self.write(self._joined(key_states, value_states), first)
        if self.length < self.max_cache_len:
            keys, values = self._half(0), self._half(1)
            assert keys is not None and values is not None
            return keys, values
        return self._unflatten(found, key_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the size T of what `update` of so many positions returns, and its first
        position."""
        first = max(self.length + 1 - self.sliding_window, 0)
        return max(self.length - first + query_length, self.max_cache_len), first

    def reserve(self, length: int) -> None:
        """Do nothing: older positions are dropped when the buffer is full."""

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` positions, at most all.

        Raises:
            InvalidRequestError: The window before ``length`` is gone already.
        """
        check_window(self, length)
        if not length:
            self.dropped = 0
        super().truncate(length)

    def reset(self) -> None:
        """Forget every position; the buffer stays where it is, zeroed."""
        super().reset()
        self.dropped = 0

    def _append_long(self, pair: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Append more positions at once than the buffer holds: all are returned, the last ones
        kept."""
        buffer, start = self._buffer, self.length
        assert buffer is not None
        whole = torch.cat((buffer[:, :, :, : self.length - self.dropped], pair), dim=3)
        keys, values = whole.view(2, -1, 1, *whole.shape[3:])[:, :, :, first - self.dropped :]
        self.length = start + pair.shape[3]
        buffer.copy_(whole[:, :, :, -self.capacity :])
        self.dropped = self.length - self.capacity
        return keys, values


def check_window(layer: DynamicSlidingWindowLayer | StaticSlidingWindowLayer, length: int) -> None:
    """Refuse to take positions back where the window before them is gone.

    Args:
        layer: A layer with a window.
        length: Positions that are to be left.

    Raises:
        InvalidRequestError: Some of the window before ``length`` were dropped.
    """
    if 0 < length < layer.length and layer.dropped > max(length + 1 - layer.sliding_window, 0):
        raise InvalidRequestError(
            "past_key_values",
            InWords(f"a sliding cache of {layer.length} positions"),
            f"cannot be cropped to {length}: of the window before that, {layer.dropped} "
            "positions were dropped; call `activate_past_recording()` before they are written, or "
            "use `DynamicCache()` where positions are taken back",
        )


def check_first(layer: DynamicSlidingWindowLayer | StaticSlidingWindowLayer, first: int) -> None:
    """Refuse a model whose window is wider than that of the layer.

    Args:
        layer: A layer with a window.
        first: First position that a query of the model sees.

    Raises:
        InvalidRequestError: It was dropped.
    """
    if first < layer.dropped:
        raise InvalidRequestError(
            "past_key_values",
            InWords(f"a layer with a window of {layer.sliding_window}"),
            f"the model looks back to position {first}, and those before {layer.dropped} were "
            "dropped; give the layer the model's window",
        )
