"""Keys and values of one layer: buffers that grow, and buffers of fixed shape.

A layer keeps both in one buffer ``[2, B, K, capacity, D]`` (keys, then values), so that a step
writes them with one copy. It knows neither models nor other layers. Returned tensors are views:
they stay right until positions are taken back (`crop`, `reset`, `reorder`) and written again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from asyncgen.cache.layer_base import CacheLayerMixin, check_size, positions_left
from asyncgen.errors import CacheFullError, InvalidRequestError, InWords

_CAPACITY_STEP = 64


class BufferLayer(CacheLayerMixin):
    """Base of layers with a buffer of which a part is filled.

    Attributes:
        length: Positions so far.
        capacity: Positions that fit the buffer.
        dropped: Number of first positions that were dropped.
    """

    is_croppable = True
    length: int = 0
    dropped = 0

    def __init__(self, capacity: int, rows: int | None) -> None:
        """Begin without a buffer.

        Args:
            capacity: Positions.
            rows: Batch rows; ``None``: those of the first keys.
        """
        super().__init__()
        self.length = 0
        self.capacity = capacity
        self._rows = rows
        self._buffer: Tensor | None = None  # [2, B, K, capacity, D]
        self._flat: tuple[Tensor, Tensor] | None = None  # [B * K, 1, capacity, D] each
        self._sizes: tuple[int, int] | None = None  # of keys and values, where they differ

    @property
    def is_initialized(self) -> bool:
        """True if the buffer exists; set to false, it is a `reset`."""
        return self._buffer is not None

    @is_initialized.setter
    def is_initialized(self, is_initialized: bool) -> None:
        if not is_initialized:
            self.reset()

    @property
    def pair(self) -> Tensor | None:
        """Keys and values, ``[2, B, K, T, D]``, or ``None`` before the first."""
        return None if self._buffer is None else self._buffer[:, :, :, : self.length - self.dropped]

    @property
    def keys(self) -> Tensor | None:
        """All keys, ``[B, K, T, D]``, or ``None`` before the first."""
        return self._half(0)

    @keys.setter
    def keys(self, states: Tensor | None) -> None:
        self._set_half(0, states)

    @property
    def values(self) -> Tensor | None:
        """All values, ``[B, K, T, D]``, or ``None`` before the first."""
        return self._half(1)

    @values.setter
    def values(self, states: Tensor | None) -> None:
        self._set_half(1, states)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make the buffer for keys and values like these, ``[B, K, S, D]``; S may be 0."""
        self._allocate(self._joined(key_states, value_states))

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add keys and values ``[B, K, S, D]``; return all of them, ``[B, K, T, D]``.

        Keys and values may differ in size. Further arguments have no effect.
        """
        self.write(self._joined(key_states, value_states))
        keys, values = self._half(0), self._half(1)
        assert keys is not None and values is not None
        return keys, values

    def write(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """Add keys and values to the buffer; see `append`, which it is."""
        raise NotImplementedError

    append = write

    def get_seq_length(self) -> int:
        """Return the number of positions so far, dropped ones included."""
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the size T of what `update` of so many positions returns, and its first
        position."""
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        """Return the most positions that are kept, or -1 if there is no limit."""
        return -1

    def exchange(self, rows: Tensor, first: int) -> None:
        """See `CacheLayerMixin`; done in place."""
        begin, end = max(first - self.dropped, 0), self.length - self.dropped
        if self._buffer is not None and begin < end:
            part = self._buffer[:, :, :, begin:end]
            part.copy_(part.index_select(1, rows.to(part.device)))

    def crop(self, max_length: int | None = None, *, tokens_to_remove: int | None = None) -> None:
        """See `CacheLayerMixin`."""
        self.truncate(positions_left(self.length, max_length, tokens_to_remove))

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` positions, at most all."""
        self.length = min(self.length, length)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the second view of the buffer out of a copy, which would not share its memory."""
        return {**self.__dict__, "_flat": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make that view of the copied buffer."""
        self.__dict__.update(state)
        if self._buffer is not None:
            self._flat = _flatten(self._buffer)

    def _drop(self, first: int) -> None:
        """Drop the positions before ``first``, in place."""
        gone = first - self.dropped
        if gone > 0 and self._buffer is not None:
            left = self._buffer[:, :, :, gone : self.length - self.dropped].clone()
            self._buffer[:, :, :, : left.shape[3]] = left
            self.dropped = first

    def _half(self, which: int) -> Tensor | None:
        """Return the keys (0) or the values (1) that are kept, ``[B, K, T, D]``."""
        pair = self.pair
        if pair is None:
            return None
        return pair[which] if self._sizes is None else pair[which][..., : self._sizes[which]]

    def _unflatten(self, flat: tuple[Tensor, Tensor], like: Tensor) -> tuple[Tensor, Tensor]:
        """View what `write` returns as ``[B, K, T, D]``, for rows and heads like these."""
        sizes = self._sizes or (flat[0].shape[-1],) * 2
        shape = (*like.shape[:2], -1, flat[0].shape[-1])
        return flat[0].reshape(shape)[..., : sizes[0]], flat[1].reshape(shape)[..., : sizes[1]]

    def _joined(self, keys: Tensor, values: Tensor) -> Tensor:
        """Join keys and values, ``[2, B, K, S, D]``; the smaller ones are filled up with zeros."""
        sizes = keys.shape[-1], values.shape[-1]
        if sizes[0] == sizes[1]:
            return torch.stack((keys, values))
        self._sizes = sizes
        size = max(sizes)
        return torch.stack([pad(each, (0, size - each.shape[-1])) for each in (keys, values)])

    def _allocate(self, pair: Tensor) -> None:
        """Make the buffer for keys and values like these."""
        raise NotImplementedError

    def _set_half(self, which: int, states: Tensor | None) -> None:
        """Put the keys (0) or the values (1) in the place of those that are kept."""
        if states is None or not states.numel():
            self.reset()
            return
        now = self._half(which)
        if now is not None and now.shape == states.shape and now.dtype is states.dtype:
            now.copy_(states)
        else:
            self._replace_half(which, states)

    def _replace_half(self, which: int, states: Tensor) -> None:
        """Keep keys (0) or values (1) of another shape."""
        raise NotImplementedError

    def _move(self, device: torch.device) -> None:
        """Move the buffer to a device."""
        if self._buffer is not None and self._buffer.device != device:
            self._buffer = self._buffer.to(device)
            self._flat = _flatten(self._buffer)


class DynamicLayer(BufferLayer):
    """A buffer that doubles when it is full, so that appending costs constant time per position."""

    def __init__(self) -> None:
        """Start empty; shape, dtype and device are those of the first keys."""
        super().__init__(0, None)
        self._reserved = 0
        self._assigned: dict[int, Tensor] = {}  # keys (0) or values (1) of another shape

    def write(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """See `CacheLayerMixin.append`."""
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

    append = write

    def reserve(self, length: int) -> None:
        """Allocate room for ``length`` positions at the next write."""
        self._reserved = length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replace the rows by those with the given indices ``[B']`` (int64)."""
        if self._buffer is not None:
            self._replace(self._buffer.index_select(1, beam_idx.to(self._buffer.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row ``repeats`` times, copies of a row next to each other."""
        if self._buffer is not None:
            self._replace(self._buffer.repeat_interleave(repeats, dim=1))

    def reset(self) -> None:
        """Forget every position and free the buffer."""
        self._buffer = self._flat = None
        self.length = self.capacity = 0
        self._assigned = {}

    def _half(self, which: int) -> Tensor | None:
        return self._assigned.get(which, super()._half(which))

    def _replace_half(self, which: int, states: Tensor) -> None:
        """Keep keys or values of another shape, once the other half has that shape as well."""
        self._assigned[which] = states
        self.capacity = 0  # so that the next write looks here
        keys, values = self._half(0), self._half(1)
        if keys is not None and values is not None and keys.shape[:3] == values.shape[:3]:
            pair = self._joined(keys, values)
            self._assigned, self._buffer = {}, None
            self._keep(pair)

    def _keep(self, pair: Tensor) -> None:
        """Keep these keys and values ``[2, B, K, T, D]`` alone."""
        self.length = 0
        self.write(pair)

    def _allocate(self, pair: Tensor) -> None:
        if self._buffer is None:
            self._make_room(pair, pair.shape[3])

    def _make_room(self, pair: Tensor, end: int) -> None:
        """Grow the buffer to ``end`` places or more, for keys and values like these."""
        if self._assigned:
            names = ["keys", "values"] if 0 in self._assigned else ["values", "keys"]
            allowed = f"assigned, of another shape than the `{names[1]}`; assign these as well"
            raise InvalidRequestError(
                names[0], list(next(iter(self._assigned.values())).shape), allowed
            )
        wanted = self._reserved if self._reserved >= end else max(end, 2 * self.capacity, 1)
        capacity = -(-wanted // _CAPACITY_STEP) * _CAPACITY_STEP
        # Tensors made in inference mode cannot be written to outside of it.
        with torch.inference_mode(False):
            grown = pair.new_empty((*pair.shape[:3], capacity, pair.shape[4]))
        if self._buffer is not None:
            if pair.shape[1] != self._rows or pair.dtype is not self._buffer.dtype:
                raise dtype_or_rows_error(self._buffer.shape[1], self._buffer.dtype, pair)
            kept = self.length - self.dropped
            grown[:, :, :, :kept] = self._buffer[:, :, :, :kept]
        self._replace(grown)
        self.dtype, self.device = pair.dtype, pair.device

    def _replace(self, buffer: Tensor) -> None:
        with torch.inference_mode(False):
            self._buffer = buffer.clone() if buffer.is_inference() else buffer
            self._flat = _flatten(self._buffer)
        self._rows = buffer.shape[1]
        self.capacity = buffer.shape[3]


class StaticLayer(BufferLayer):
    """A buffer of fixed shape, at a fixed address, for compiled and captured steps."""

    is_compileable = True
    _is_away = False
    """True if the buffer may be on another device than the keys that are written."""

    def __init__(
        self,
        max_cache_len: int,
        *,
        rows: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        """Fix the shape; the buffer is made at the first write, when K and D are known.

        Args:
            max_cache_len: Positions.
            rows: Batch rows, or ``None``: those of the first keys.
            dtype: Of keys and values, or ``None``: that of the first keys.
            device: Device of the buffer, or ``None``: that of the first keys.

        Raises:
            InvalidRequestError: ``max_cache_len`` is no integer of at least 1.
        """
        check_size("max_cache_len", max_cache_len)
        super().__init__(max_cache_len, rows)
        self.max_cache_len = max_cache_len
        self.dtype = dtype
        self._place = device

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
                self._buffer = torch.zeros(shape, dtype=self.dtype, device=self._place)
                self._flat = _flatten(self._buffer)
            self.device = self._buffer.device

    def write(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """See `CacheLayerMixin.append`.

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

    append = write

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the size of the buffer, which `update` returns whole, and 0."""
        return self.capacity, 0

    def get_max_length(self) -> int:
        """Return the positions that fit."""
        return self.max_cache_len

    @property
    def batch_size(self) -> int | None:
        """Batch rows, or ``None`` if the first keys are still to tell them."""
        return self._rows

    def reserve(self, length: int) -> None:
        """Check that ``length`` positions fit.

        Raises:
            CacheFullError: They do not.
        """
        if length > self.capacity:
            raise self._full(length)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Rearrange the rows by index, in place; ``beam_idx`` has as many as the buffer."""
        if self._buffer is not None:
            if len(beam_idx) != self._buffer.shape[1]:
                raise InvalidRequestError(
                    "past_key_values",
                    InWords(f"a StaticCache of {self._buffer.shape[1]} rows"),
                    "its number of rows is fixed, "
                    f"{len(beam_idx)} were asked for; use DynamicCache",
                )
            self._buffer.copy_(self._buffer.index_select(1, beam_idx.to(self._buffer.device)))

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` positions, at most all; the others become zero."""
        super().truncate(length)
        if self._buffer is not None:
            self._buffer[:, :, :, self.length - self.dropped :] = 0

    def reset(self) -> None:
        """Forget every position; the buffer stays where it is, zeroed."""
        self.length = 0
        if self._buffer is not None:
            self._buffer.zero_()

    def _allocate(self, pair: Tensor) -> None:
        self._open(pair, pair.shape[3])

    def _replace_half(self, which: int, states: Tensor) -> None:
        """Refuse another shape.

        Raises:
            InvalidRequestError: Always.
        """
        now = self._half(which)
        allowed = f"a static layer keeps its shape, {None if now is None else list(now.shape)}"
        raise InvalidRequestError(
            "past_key_values", InWords(f"keys of {list(states.shape)}"), allowed
        )

    def _open(self, pair: Tensor, end: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Make the buffer at its first write."""
        if end > self.capacity:
            raise self._full(end)
        self._rows = self._rows or pair.shape[1]
        self.dtype = self.dtype or pair.dtype
        if self._place is None:
            self._place = pair.device
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
                InWords(f"a cache on {buffer.device}"),
                f"the model computes on {pair.device}; make the cache with that as `device`",
            )

    def _full(self, length: int) -> CacheFullError:
        return CacheFullError(
            "past_key_values",
            InWords(f"a StaticCache of {self.capacity} positions"),
            f"{length} are needed; raise `max_cache_len` or generate fewer tokens",
        )


def dtype_or_rows_error(rows: int, dtype: torch.dtype, pair: Tensor) -> InvalidRequestError:
    """Make the error for keys that a cache of ``rows`` and a dtype would silently repeat or
    convert."""
    if dtype != pair.dtype:
        return InvalidRequestError(
            "past_key_values",
            InWords(f"a cache of {dtype}"),
            f"the model computes in {pair.dtype}; make the cache with that as `dtype`",
        )
    return InvalidRequestError(
        "past_key_values",
        InWords(f"a cache of {rows} rows"),
        f"the batch has {pair.shape[1]} rows; make a cache of that size",
    )


def _flatten(buffer: Tensor) -> tuple[Tensor, Tensor]:
    """View keys and values of ``[2, B, K, T, D]`` with rows and heads merged, ``[B * K, 1, T,
    D]``."""
    keys, values = buffer.view(2, -1, 1, *buffer.shape[3:]).unbind(0)
    return keys, values
