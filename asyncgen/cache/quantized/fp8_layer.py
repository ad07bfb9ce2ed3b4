"""Keys and values of one layer in floating point numbers of 8 bits (e4m3).

The scale of all keys and that of all values are those of the first write, usually the prompt: its
largest number becomes the largest of the format, 448. Later positions are stored with the same
scale, so that nothing is quantised twice; numbers beyond it become the largest. The first write is
returned exactly, every later one as it is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from asyncgen.cache.layers import DynamicLayer, dtype_or_rows_error
from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from torch import Tensor

FP8: Final = torch.float8_e4m3fn
_LARGEST: Final = torch.finfo(FP8).max


class Fp8QuantizedLayer(DynamicLayer):
    """A growing layer whose buffer has a byte for each number.

    Attributes:
        compute_dtype: Dtype of numbers when they are read, before they become the model's;
            ``None``: the model's at once.
        storage_device: Device of the bytes; ``None``: the model's.
    """

    def __init__(
        self,
        *,
        compute_dtype: torch.dtype | None = None,
        storage_device: torch.device | str | None = None,
    ) -> None:
        """Start empty; shape, dtype, device and scale are those of the first keys."""
        super().__init__()
        self.compute_dtype = compute_dtype
        self.storage_device = storage_device
        self._scales: Tensor | None = None  # [2, 1, 1, 1, 1] float32, of keys and of values

    @property
    def cumulative_length(self) -> int:
        """Positions so far."""
        return self.length

    @property
    def pair(self) -> Tensor | None:
        """Keys and values as they are stored, ``[2, B, K, T, D]``, or ``None`` before the
        first."""
        stored = super().pair
        if stored is None or self._scales is None or self.dtype is None:
            return None
        stored = stored.to(self._scales.device)
        numbers = stored.view(FP8).float() * self._scales
        if self.compute_dtype is not None:
            numbers = numbers.to(self.compute_dtype)
        return numbers.to(self.dtype)

    def write(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """See `CacheLayerMixin.append`."""
        is_first = self._scales is None
        if self._scales is None:
            self._scales = _scales_of(pair)
        elif pair.shape[1] != self._rows or pair.dtype is not self.dtype:
            raise dtype_or_rows_error(self._rows or 0, self.dtype or pair.dtype, pair)
        numbers = (pair.float() / self._scales).clamp_(-_LARGEST, _LARGEST)
        stored = numbers.to(FP8).view(torch.uint8)
        super().write(stored if self.storage_device is None else stored.to(self.storage_device))
        self.dtype, self.device = pair.dtype, pair.device
        whole = pair.contiguous() if is_first else self.pair
        assert whole is not None
        keys, values = whole.view(2, -1, 1, *whole.shape[3:])[:, :, :, first:]
        return keys, values

    append = write

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add keys and values; return all, ``[B, K, T, D]``."""
        flat = self.write(self._joined(key_states, value_states))
        return self._unflatten(flat, key_states)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the scale is that of the first write."""

    def reset(self) -> None:
        """Forget every position and the scale, and free the buffer."""
        super().reset()
        self._scales = None

    def _set_half(self, which: int, states: Tensor | None) -> None:
        if states is not None:
            allowed = "its keys and values are quantised and cannot be assigned; `update` it"
            raise InvalidRequestError("past_key_values", type(self).__name__, allowed)
        self.reset()

    def _move(self, device: torch.device) -> None:
        """Do nothing: `storage_device` says where the bytes lie."""


def _scales_of(pair: Tensor) -> Tensor:
    """Compute the scales of keys and values ``[2, B, K, S, D]``, float32 ``[2, 1, 1, 1, 1]``."""
    largest = pair.abs().amax(dim=(1, 2, 3, 4), keepdim=True).float()
    return (largest / _LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
