"""Keys and values of one layer: buffers that grow, and buffers of fixed shape.

A layer keeps both in one buffer ``[2, B, K, capacity, D]`` (keys, then values), so that a step
writes them with one copy. It knows neither models nor other layers. Returned tensors are views:
they stay right until positions are taken back (`crop`, `reset`, `reorder`) and written again.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from asyncgen.errors import CacheFullError, InvalidRequestError

_CAPACITY_STEP = 64


class CacheLayer(Protocol):
    """Interface that attention needs of the cache of a layer.

    Attributes:
        length: Positions filled.
    """

    length: int

    def append(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """Add the keys and values of S positions.

        Args:
            pair: ``[2, B, K, S, D]``, keys and values.
            first: First position wanted back; a sliding window needs no earlier ones.

        Returns:
            Keys and values of positions ``first`` to the end, each ``[B * K, 1, T, D]``: rows and
            heads are merged, as grouped attention wants them.

        Raises:
            InvalidRequestError: The cache was made for other rows or another dtype, or is full.
        """

    def update(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values ``[B, K, S, D]``; return all of them, ``[B, K, T, D]``."""


class BufferLayer:
    """Base of all layers: a buffer, and the filled part of it.

    Attributes:
        length: Positions so far.
        capacity: Positions that fit the buffer.
        dropped: Number of first positions that were dropped.
    """

    dropped = 0

    def __init__(self, capacity: int, rows: int | None) -> None:
        """Begin without a buffer.

        Args:
            capacity: Positions.
            rows: Batch rows; ``None``: those of the first keys.
        """
        self.length = 0
        self.capacity = capacity
        self._rows = rows
        self._buffer: Tensor | None = None  # [2, B, K, capacity, D]
        self._flat: tuple[Tensor, Tensor] | None = None  # [B * K, 1, capacity, D] each

    @property
    def is_initialized(self) -> bool:
        """True if the buffer exists."""
        return self._buffer is not None

    @property
    def pair(self) -> Tensor | None:
        """Keys and values, ``[2, B, K, T, D]``, or ``None`` before the first."""
        return None if self._buffer is None else self._buffer[:, :, :, : self.length - self.dropped]

    @property
    def keys(self) -> Tensor | None:
        """All keys, ``[B, K, T, D]``, or ``None`` before the first."""
        pair = self.pair
        return None if pair is None else pair[0]

    @property
    def values(self) -> Tensor | None:
        """All values, ``[B, K, T, D]``, or ``None`` before the first."""
        pair = self.pair
        return None if pair is None else pair[1]

    def append(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """See `CacheLayer`."""
        raise NotImplementedError

    def update(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """See `CacheLayer`."""
        self.append(torch.stack((key_states, value_states)))
        pair = self.pair
        assert pair is not None
        return pair[0], pair[1]

    def exchange(self, rows: Tensor, first: int) -> None:
        """Replace the content of rows from position ``first`` on by that of others, in place.

        Args:
            rows: For each row the one that replaces it, int64 ``[B]``.
            first: Before this position a row and its replacement are equal.
        """
        begin, end = max(first - self.dropped, 0), self.length - self.dropped
        if self._buffer is not None and begin < end:
            part = self._buffer[:, :, :, begin:end]
            part.copy_(part.index_select(1, rows.to(part.device)))

    def crop(self, length: int) -> None:
        """Forget the positions from ``length`` on; a negative one counts from the end."""
        self.length = self._left(length)

    def _left(self, length: int) -> int:
        """Return the positions that cropping leaves."""
        return max(self.length + length, 0) if length < 0 else min(self.length, length)


class DynamicLayer(BufferLayer):
    """A buffer that doubles when it is full, so that appending costs constant time per position."""

    def __init__(self) -> None:
        """Start empty; shape, dtype and device are those of the first keys."""
        super().__init__(0, None)
        self._reserved = 0

    def append(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """See `CacheLayer`."""
        start = self.length
        size = pair.shape[3]
        end = start + size
        if end > self.capacity:
            self._make_room(pair, end)
        buffer, flat = self._buffer, self._flat
        assert buffer is not None and flat is not None
        if pair.shape[1] != self._rows or pair.dtype is not buffer.dtype:
            raise dtype_or_rows_error(buffer.shape[1], buffer.dtype, pair)
        buffer.narrow(3, start, size).copy_(pair)
        self.length = end
        keys, values = flat
        return keys.narrow(2, first, end - first), values.narrow(2, first, end - first)

    def reserve(self, length: int) -> None:
        """Allocate room for ``length`` positions at the next write."""
        self._reserved = length

    def reorder(self, rows: Tensor) -> None:
        """Replace the rows by those with the given indices ``[B']`` (int64)."""
        if self._buffer is not None:
            self._replace(self._buffer.index_select(1, rows.to(self._buffer.device)))

    def repeat(self, times: int) -> None:
        """Repeat every row ``times`` times, copies of a row next to each other."""
        if self._buffer is not None:
            self._replace(self._buffer.repeat_interleave(times, dim=1))

    def reset(self) -> None:
        """Forget every position and free the buffer."""
        self._buffer = self._flat = None
        self.length = self.capacity = 0

    def _make_room(self, pair: Tensor, end: int) -> None:
        wanted = self._reserved if self._reserved >= end else max(end, 2 * self.capacity)
        capacity = -(-wanted // _CAPACITY_STEP) * _CAPACITY_STEP
        # Tensors made in inference mode cannot be written to outside of it.
        with torch.inference_mode(False):
            grown = pair.new_empty((*pair.shape[:3], capacity, pair.shape[4]))
        if self._buffer is not None:
            if pair.shape[1] != self._rows or pair.dtype is not self._buffer.dtype:
                raise dtype_or_rows_error(self._buffer.shape[1], self._buffer.dtype, pair)
            grown[:, :, :, : self.length] = self._buffer[:, :, :, : self.length]
        self._replace(grown)

    def _replace(self, buffer: Tensor) -> None:
        with torch.inference_mode(False):
            self._buffer = buffer.clone() if buffer.is_inference() else buffer
            self._flat = _flatten(self._buffer)
        self._rows = buffer.shape[1]
        self.capacity = buffer.shape[3]


class StaticLayer(BufferLayer):
    """A buffer of fixed shape, at a fixed address, for compiled and captured steps."""

    _is_away = False
    """True if the buffer may be on another device than the keys that are written."""

    def __init__(
        self,
        capacity: int,
        *,
        rows: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        """Fix the shape; the buffer is made at the first write, when K and D are known.

        Args:
            capacity: Positions.
            rows: Batch rows, or ``None``: those of the first keys.
            dtype: Of keys and values, or ``None``: that of the first keys.
            device: Device of the buffer, or ``None``: that of the first keys.
        """
        super().__init__(capacity, rows)
        self._dtype = dtype
        self._device = device

    @property
    def pair(self) -> Tensor | None:
        """The whole buffer, ``[2, B, K, capacity, D]``, zero where nothing is written yet."""
        return self._buffer

    def allocate(self, heads: int, head_dim: int) -> None:
        """Make the buffer before the first write; needs the rows to be known.

        Args:
            heads: Key and value heads, K.
            head_dim: Size of a head, D.
        """
        if self._buffer is None and self._rows is not None:
            shape = (2, self._rows, heads, self.capacity, head_dim)
            with torch.inference_mode(False):
                self._buffer = torch.zeros(shape, dtype=self._dtype, device=self._device)
                self._flat = _flatten(self._buffer)

    def append(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """See `CacheLayer`.

        Raises:
            CacheFullError: The buffer has no room for them.
            InvalidRequestError: It was made for other rows, another dtype or another device.
        """
        start = self.length
        size = pair.shape[3]
        end = start + size
        buffer, flat = self._buffer, self._flat
        if buffer is None or flat is None or end > self.capacity:
            buffer, flat = self._open(pair, end)
        self._check_fit(pair)
        buffer.narrow(3, start, size).copy_(pair)
        self.length = end
        keys, values = flat
        return keys.narrow(2, first, end - first), values.narrow(2, first, end - first)

    def reserve(self, length: int) -> None:
        """Check that ``length`` positions fit.

        Raises:
            CacheFullError: They do not.
        """
        if length > self.capacity:
            raise self._full(length)

    def reorder(self, rows: Tensor) -> None:
        """Rearrange the rows by index, in place; ``rows`` has as many as the buffer."""
        if self._buffer is not None:
            if len(rows) != self._buffer.shape[1]:
                raise InvalidRequestError(
                    "past_key_values",
                    f"StaticCache of {self._buffer.shape[1]} rows",
                    f"its number of rows is fixed, {len(rows)} were asked for; use DynamicCache",
                )
            self._buffer.copy_(self._buffer.index_select(1, rows.to(self._buffer.device)))

    def repeat(self, times: int) -> None:
        """Refuse to repeat rows: their number is fixed here.

        Raises:
            InvalidRequestError: ``times`` is not 1 and something was written.
        """
        if self._buffer is not None and times != 1:
            rows = torch.arange(self._buffer.shape[1]).repeat_interleave(times)
            self.reorder(rows)

    def crop(self, length: int) -> None:
        """Forget the positions from ``length`` on; a negative one counts from the end."""
        super().crop(length)
        if self._buffer is not None:
            self._buffer[:, :, :, self.length - self.dropped :] = 0

    def reset(self) -> None:
        """Forget every position; the buffer stays where it is, zeroed."""
        self.length = 0
        if self._buffer is not None:
            self._buffer.zero_()

    def _open(self, pair: Tensor, end: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Make the buffer at its first write."""
        if end > self.capacity:
            raise self._full(end)
        self._rows = self._rows or pair.shape[1]
        self._dtype = self._dtype or pair.dtype
        if self._device is None:
            self._device = pair.device
        self.allocate(pair.shape[2], pair.shape[4])
        assert self._buffer is not None and self._flat is not None
        return self._buffer, self._flat

    def _check_fit(self, pair: Tensor) -> None:
        buffer = self._buffer
        assert buffer is not None
        if pair.shape[1] != self._rows or pair.dtype is not buffer.dtype:
            raise dtype_or_rows_error(buffer.shape[1], buffer.dtype, pair)
        if pair.device != buffer.device and not self._is_away:
            raise InvalidRequestError(
                "past_key_values",
                f"cache on {buffer.device}",
                f"the model computes on {pair.device}; make the cache with that as `device`",
            )

    def _full(self, length: int) -> CacheFullError:
        return CacheFullError(
            "past_key_values",
            f"StaticCache of {self.capacity} positions",
            f"{length} are needed; raise `max_cache_len` or generate fewer tokens",
        )


class OffloadedLayer(DynamicLayer):
    """Growing layer in the CPU's memory; attention gets copies where it computes."""

    def append(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """See `CacheLayer`."""
        return _copy_to_device(super().append(pair.to("cpu"), first), pair)

    def update(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """See `CacheLayer`."""
        return _copy_to_device(super().update(key_states, value_states), key_states)


class OffloadedStaticLayer(StaticLayer):
    """Layer of fixed shape on another device; attention gets copies where it computes."""

    _is_away = True

    def append(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """See `CacheLayer`."""
        return _copy_to_device(super().append(pair, first), pair)

    def update(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """See `StaticLayer`."""
        return _copy_to_device(super().update(key_states, value_states), key_states)


def _copy_to_device(pair: tuple[Tensor, Tensor], like: Tensor) -> tuple[Tensor, Tensor]:
    """Copy keys and values to the device of another tensor."""
    return pair[0].to(like.device), pair[1].to(like.device)


Layer = DynamicLayer | StaticLayer


def dtype_or_rows_error(rows: int, dtype: torch.dtype, pair: Tensor) -> InvalidRequestError:
    """Make the error for keys that a cache of ``rows`` and a dtype would silently repeat or
    convert."""
    if dtype != pair.dtype:
        return InvalidRequestError(
            "past_key_values",
            f"cache of {dtype}",
            f"the model computes in {pair.dtype}; make the cache with that as `dtype`",
        )
    return InvalidRequestError(
        "past_key_values",
        f"cache of {rows} rows",
        f"the batch has {pair.shape[1]} rows; make a cache of that size",
    )


def _flatten(buffer: Tensor) -> tuple[Tensor, Tensor]:
    """View keys and values of ``[2, B, K, T, D]`` with rows and heads merged, ``[B * K, 1, T,
    D]``."""
    keys, values = buffer.view(2, -1, 1, *buffer.shape[3:]).unbind(0)
    return keys, values
