"""Keys and values of one layer, quantised but for the newest positions.

After Liu et al. 2024, "KIVI" (arXiv 2402.02750), as the reference does it: the first write is
quantised at once, and whenever the positions behind it reach the residual length, everything is
quantised anew. Attention gets the newest keys and values exactly.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from asyncgen.cache.layers import DynamicLayer, dtype_or_rows_error
from asyncgen.cache.quantized.backends import BACKENDS
from asyncgen.cache.quantized.packing import Grouping, Packed
from asyncgen.cache.quantized.settings import QuantizedCacheConfig
from asyncgen.errors import InvalidRequestError
from asyncgen.runtime.transfer import host_range

if TYPE_CHECKING:
    from asyncgen.cache.quantized.backends import Backend


class QuantizedLayer(DynamicLayer):
    """Base of layers whose older positions are quantised in groups.

    A class of a user's own writes `_quantize` and `_dequantize`. Rows are reordered without
    touching quantised ones: the layer remembers the quantised row of each row until everything is
    quantised anew. Cropping remembers how many of the quantised positions still count.

    Attributes:
        nbits: Bits of a number.
        axis_key: Axis along which keys are grouped.
        axis_value: Axis along which values are grouped.
        q_group_size: Numbers of a group.
        residual_length: Positions behind the quantised ones before the next quantisation.
        compute_dtype: Dtype of dequantised numbers before they join the others in the model's
            dtype; ``None``: the model's at once.
        storage_device: Device of quantised numbers; ``None``: the model's.
    """

    is_croppable = False

    def __init__(
        self,
        nbits: int = 4,
        axis_key: int = 0,
        axis_value: int = 0,
        q_group_size: int = 64,
        residual_length: int = 128,
        *,
        compute_dtype: torch.dtype | None = None,
        storage_device: torch.device | str | None = None,
    ) -> None:
        """Start empty; shape, dtype and device are those of the first keys. See the class.

        Raises:
            InvalidRequestError: The bits or an axis are none of the way that a class quantises.
        """
        super().__init__()
        self.nbits = nbits
        self.axis_key = axis_key
        self.axis_value = axis_value
        self.q_group_size = q_group_size
        self.residual_length = residual_length
        self.compute_dtype = compute_dtype
        self.storage_device = storage_device
        self._check()
        self._packed: tuple[Any, Any] | None = None  # keys, values
        self._kept = 0  # quantised positions that count
        self._order: Tensor | None = None  # which quantised row each row is, int64 [B]
        self._shape = torch.Size()  # of the quantised keys
        self._recent = DynamicLayer()
        self._recent.reserve(residual_length)

    def _check(self) -> None:
        """Refuse settings that the class cannot use; a user's own class may take any."""

    @abstractmethod
    def _quantize(self, tensor: Tensor, axis: int) -> Any:
        """Quantise keys or values ``[B, K, T, D]``, grouped along an axis."""

    @abstractmethod
    def _dequantize(self, q_tensor: Any) -> Tensor:
        """Turn what `_quantize` returned back into ``[B, K, T, D]``."""

    @property
    def is_initialized(self) -> bool:
        """True if anything was written; set to false, it is a `reset`."""
        return self._packed is not None

    @is_initialized.setter
    def is_initialized(self, is_initialized: bool) -> None:
        if not is_initialized:
            self.reset()

    @property
    def cumulative_length(self) -> int:
        """Positions so far."""
        return self.length

    @property
    def pair(self) -> Tensor | None:
        """Keys and values, dequantised, ``[2, B, K, T, D]``, or ``None`` before the first."""
        return None if self._packed is None else self._whole(None)

    def write(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """See `CacheLayerMixin.append`."""
        if self._packed is None:
            self._rows, self.dtype, self.device = pair.shape[1], pair.dtype, pair.device
            whole, is_full = pair.contiguous(), True
        else:
            whole = self._whole(pair)
            is_full = self._recent.length + pair.shape[3] >= self.residual_length
        self.length = whole.shape[3]
        if is_full:
            self._quantize_all(whole)
        else:
            self._recent.write(pair)
        keys, values = whole.view(2, -1, 1, *whole.shape[3:])[:, :, :, first:]
        return keys, values

    append = write

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add keys and values; return all, ``[B, K, T, D]``, the newest of them exactly."""
        flat = self.write(self._joined(key_states, value_states))
        return self._unflatten(flat, key_states)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the first write is quantised as a whole."""

    def reserve(self, length: int) -> None:
        """Do nothing: quantised numbers are made anew, and the rest has its room."""

    def exchange(self, rows: Tensor, first: int) -> None:
        """Replace rows as `reorder_cache` does: equal positions may be quantised differently."""
        self.reorder_cache(rows)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replace the rows by those with the given indices ``[B']`` (int64)."""
        if self._packed is not None:
            rows = beam_idx.to(self.device)
            self._order = rows.clone() if self._order is None else self._order[rows]
            self._rows = len(rows)
            self._recent.reorder_cache(rows)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row ``repeats`` times, copies of a row next to each other."""
        if self._rows is not None:
            self.reorder_cache(host_range(self._rows).repeat_interleave(repeats))

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` positions, at most all."""
        self.length = min(self.length, length)
        if not self.length:
            self.reset()
            return
        self._kept = min(self._kept, self.length)
        self._recent.truncate(self.length - self._kept)

    def reset(self) -> None:
        """Forget every position and free the memory."""
        self._packed = self._order = self._rows = None
        self.length = self._kept = 0
        self._recent.reset()

    def _replace_half(self, which: int, states: Tensor) -> None:
        raise InvalidRequestError(
            "past_key_values",
            type(self).__name__,
            "its keys and values are quantised and cannot be assigned; `reset` and `update` it",
        )

    def _set_half(self, which: int, states: Tensor | None) -> None:
        if states is None:
            self.reset()
        else:
            self._replace_half(which, states)

    def _move(self, device: torch.device) -> None:
        """Do nothing: `storage_device` says where quantised numbers lie."""

    def _whole(self, new: Tensor | None) -> Tensor:
        """Dequantise all keys and values, ``[2, B, K, T, D]``; ``new`` ones are the last.

        Raises:
            InvalidRequestError: The new ones have other rows or another dtype.
        """
        assert self._packed is not None and self.dtype is not None
        batch, heads, _, size = self._shape
        if new is not None and (new.shape[1] != self._rows or new.dtype is not self.dtype):
            raise dtype_or_rows_error(self._rows or batch, self.dtype, new)
        end = self.length + (0 if new is None else new.shape[3])
        shape = (2, self._rows or batch, heads, end, size)
        whole = torch.empty(shape, dtype=self.dtype, device=self.device)
        kept = self._kept
        for place, packed in zip(whole, self._packed, strict=True):
            states = self._dequantize(packed)[:, :, :kept]
            if self._order is not None:
                states = states.index_select(0, self._order)
            place[:, :, :kept] = (
                states if self.compute_dtype is None else states.to(self.compute_dtype)
            )
        recent = self._recent.pair
        if recent is not None:
            whole[:, :, :, kept : self.length] = recent
        if new is not None:
            whole[:, :, :, self.length :] = new
        return whole

    @torch.no_grad()
    def _quantize_all(self, whole: Tensor) -> None:
        """Quantise all of ``[2, B, K, T, D]``; no position is recent afterwards."""
        keys, values = whole
        packed = self._quantize(keys, self.axis_key), self._quantize(values, self.axis_value)
        self._packed, self._kept, self._order = packed, self.length, None
        self._shape = keys.shape
        self._recent.truncate(0)


class _BackendLayer(QuantizedLayer):
    """A layer quantised by one of the two ways that are computed here."""

    backend: ClassVar[str]

    def _check(self) -> None:
        QuantizedCacheConfig(
            backend=self.backend,
            nbits=self.nbits,
            axis_key=self.axis_key,
            axis_value=self.axis_value,
            q_group_size=self.q_group_size,
            residual_length=self.residual_length,
        ).validate_for(self.backend)

    @property
    def _way(self) -> Backend:
        return BACKENDS[self.backend]

    def _grouping(self, axis: int) -> Grouping:
        return Grouping(self.nbits, axis, self.q_group_size)

    def _quantize(self, tensor: Tensor, axis: int) -> tuple[Packed, Grouping]:
        grouping = self._grouping(axis)
        packed = self._way.quantize(tensor, grouping)
        if self.storage_device is not None:
            packed = packed.to(self.storage_device)
        return packed, grouping

    def _dequantize(self, q_tensor: tuple[Packed, Grouping]) -> Tensor:
        packed, grouping = q_tensor
        assert self.device is not None
        return self._way.dequantize(packed.to(self.device), grouping)


class QuantoQuantizedLayer(_BackendLayer):
    """A layer quantised as `quanto` does: 2 or 4 bits, axes 0 and -1; see `QuantizedLayer`."""

    backend = "quanto"


class HQQQuantizedLayer(_BackendLayer):
    """A layer quantised as `HQQ` does: 1, 2, 3, 4 or 8 bits, axes 0 and 1; see
    `QuantizedLayer`."""

    backend = "hqq"
