"""Keys and values of one layer, quantised but for the newest positions.

After Liu et al. 2024, "KIVI" (arXiv 2402.02750), as the reference does it: the first write is
quantised at once, and whenever the positions behind it reach the residual length, everything is
quantised anew. Attention gets the newest keys and values exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asyncgen.cache.layers import DynamicLayer, dtype_or_rows_error

if TYPE_CHECKING:
    from asyncgen.cache.quantized.backends import Backend
    from asyncgen.cache.quantized.packing import Grouping, Packed


@dataclass(frozen=True, slots=True)
class Format:
    """Format in which a layer keeps keys and values.

    Attributes:
        backend: The way to quantise.
        keys: Cut of the keys.
        values: Cut of the values; bits and group size are those of the keys.
        residual_length: Positions behind the quantised ones before the next quantisation.
        dtype: Dtype of dequantised numbers before they join the others in the model's dtype;
            ``None``: the model's at once.
        device: Device of quantised numbers; ``None``: the model's.
    """

    backend: Backend
    keys: Grouping
    values: Grouping
    residual_length: int
    dtype: torch.dtype | None = None
    device: torch.device | None = None


class QuantizedLayer(DynamicLayer):
    """A layer whose older positions are quantised.

    Rows are reordered without touching them: the layer remembers the quantised row of each row
    until everything is quantised anew. Cropping remembers how many of the quantised positions still
    count.
    """

    def __init__(self, given: Format) -> None:
        """Start empty; shape, dtype and device are those of the first keys."""
        super().__init__()
        self._format = given
        self._packed: tuple[Packed, Packed] | None = None  # keys, values
        self._kept = 0  # quantised positions that count
        self._order: Tensor | None = None  # which quantised row each row is, int64 [B]
        self._device = torch.device("cpu")
        self._recent = DynamicLayer()
        self._recent.reserve(given.residual_length)

    @property
    def is_initialized(self) -> bool:
        """True if anything was written."""
        return self._packed is not None

    @property
    def pair(self) -> Tensor | None:
        """Keys and values, dequantised, ``[2, B, K, T, D]``, or ``None`` before the first."""
        return None if self._packed is None else self._joined(None)

    def append(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """See `CacheLayer`."""
        if self._packed is None:
            self._rows, self._device = pair.shape[1], pair.device
            whole, is_full = pair.contiguous(), True
        else:
            whole = self._joined(pair)
            is_full = self._recent.length + pair.shape[3] >= self._format.residual_length
        self.length = whole.shape[3]
        if is_full:
            self._quantize(whole)
        else:
            self._recent.append(pair)
        keys, values = whole.view(2, -1, 1, *whole.shape[3:])[:, :, :, first:]
        return keys, values

    def update(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """See `CacheLayer`."""
        keys, values = self.append(torch.stack((key_states, value_states)))
        shape = (*key_states.shape[:2], -1, key_states.shape[3])
        return keys.view(shape), values.view(shape)

    def reserve(self, length: int) -> None:
        """Do nothing: quantised numbers are made anew, and the rest has its room."""

    def exchange(self, rows: Tensor, first: int) -> None:
        """Replace rows as `reorder` does: equal positions may be quantised differently."""
        self.reorder(rows)

    def reorder(self, rows: Tensor) -> None:
        """Replace the rows by those with the given indices ``[B']`` (int64)."""
        if self._packed is not None:
            rows = rows.to(self._device)
            self._order = rows.clone() if self._order is None else self._order[rows]
            self._rows = len(rows)
            self._recent.reorder(rows)

    def repeat(self, times: int) -> None:
        """Repeat every row ``times`` times, copies of a row next to each other."""
        if self._rows is not None:
            self.reorder(torch.arange(self._rows).repeat_interleave(times))

    def crop(self, length: int) -> None:
        """Forget the positions from ``length`` on; a negative one counts from the end."""
        self.length = self._left(length)
        if not self.length:
            self.reset()
            return
        self._kept = min(self._kept, self.length)
        self._recent.crop(self.length - self._kept)

    def reset(self) -> None:
        """Forget every position and free the memory."""
        self._packed = self._order = self._rows = None
        self.length = self._kept = 0
        self._recent.reset()

    def _joined(self, new: Tensor | None) -> Tensor:
        """Dequantise all keys and values, ``[2, B, K, T, D]``; ``new`` ones are the last.

        Raises:
            InvalidRequestError: The new ones have other rows or another dtype.
        """
        assert self._packed is not None
        batch, heads, _, size = self._packed[0].shape
        dtype = self._packed[0].scale.dtype
        if new is not None and (new.shape[1] != self._rows or new.dtype is not dtype):
            raise dtype_or_rows_error(self._rows or batch, dtype, new)
        end = self.length + (0 if new is None else new.shape[3])
        shape = (2, self._rows or batch, heads, end, size)
        whole = torch.empty(shape, dtype=dtype, device=self._device)
        given, kept = self._format, self._kept
        for place, packed, grouping in zip(
            whole, self._packed, (given.keys, given.values), strict=True
        ):
            states = given.backend.dequantize(packed.to(self._device), grouping)[:, :, :kept]
            if self._order is not None:
                states = states.index_select(0, self._order)
            place[:, :, :kept] = states if given.dtype is None else states.to(given.dtype)
        recent = self._recent.pair
        if recent is not None:
            whole[:, :, :, kept : self.length] = recent
        if new is not None:
            whole[:, :, :, self.length :] = new
        return whole

    @torch.no_grad()
    def _quantize(self, whole: Tensor) -> None:
        """Quantise all of ``[2, B, K, T, D]``; no position is recent afterwards."""
        given, (keys, values) = self._format, whole
        packed = (
            given.backend.quantize(keys, given.keys),
            given.backend.quantize(values, given.values),
        )
        if given.device is not None:
            packed = (packed[0].to(given.device), packed[1].to(given.device))
        self._packed, self._kept, self._order = packed, self.length, None
        self._recent.crop(0)
