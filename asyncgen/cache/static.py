"""A cache of fixed shape; those with a window build on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from asyncgen.cache.caches import Cache
from asyncgen.cache.layer_base import check_size, check_switches
from asyncgen.cache.layer_windows import layer_windows
from asyncgen.cache.layers import StaticLayer
from asyncgen.cache.offloaded_layers import OffloadedStaticLayer
from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.families.config import ModelConfig


class StaticCache(Cache):
    """A cache of fixed shape, for ``torch.compile`` and ``torch.export``.

    Example::

        past_key_values = StaticCache(config=model.config, batch_size=1, max_cache_len=256)
        outputs = model(**inputs, past_key_values=past_key_values, use_cache=True)
    """

    def __init__(
        self,
        config: ModelConfig,
        batch_size: int | None = None,
        max_cache_len: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        layer_device_map: Mapping[int, str | torch.device | int] | None = None,
        *,
        max_batch_size: int | None = None,
        offloading: bool = False,
        offload_only_non_sliding: bool = True,
        offload_device: torch.device | str = "cpu",
    ) -> None:
        """Fix the shape.

        Args:
            config: The model's.
            batch_size: Batch rows, beams included; ``None``: those of the first call.
            max_cache_len: Positions; ``None``: the model's context.
            device: Device of the buffers; ``None``: that of the first keys.
            dtype: Of keys and values; must be the model's.
            layer_device_map: Device of single layers, if the model is spread over several.
            max_batch_size: Newer spelling of ``batch_size``.
            offloading: Keep all layers but the first on ``offload_device``.
            offload_only_non_sliding: Leave layers with a window on the device.
            offload_device: Device of offloaded layers.

        Raises:
            InvalidRequestError: A size is below 1, both spellings disagree, there is no length, or
                a switch or the dtype is none.
        """
        rows = number_of_rows(batch_size, max_batch_size)
        length = config.max_position_embeddings if max_cache_len is None else max_cache_len
        if length is None:
            raise InvalidRequestError(
                "max_cache_len", None, "the model has no longest context; give a length"
            )
        for name, value in (("max_batch_size", rows), ("max_cache_len", length)):
            if value is not None:
                check_size(name, value)
        check_switches(offloading=offloading, offload_only_non_sliding=offload_only_non_sliding)
        if not isinstance(dtype, torch.dtype):
            raise InvalidRequestError("dtype", dtype, "must be a torch.dtype")
        devices: Mapping[Any, str | torch.device | int] = layer_device_map or {}
        everywhere = devices.get("", device)  # as `hf_device_map` has it
        self.max_batch_size = rows
        self.max_cache_len = length
        self.dtype = dtype

        windows = layer_windows(config)

        def new_layer(index: int) -> StaticLayer:
            window, place = windows[index], devices.get(index, everywhere)
            is_away = offloading and index and not (offload_only_non_sliding and window is not None)
            layer: StaticLayer
            if is_away:
                place = offload_device
                layer = OffloadedStaticLayer(length, rows=rows, dtype=dtype, device=place)
            else:
                layer = self._make_layer(window, place)
            if place is not None:
                layer.allocate(config.num_key_value_heads, config.head_dim)
            return layer

        self._open([new_layer(index) for index in range(len(windows))], None)
        self.offloading = offloading

    def _make_layer(
        self, window: int | None, device: torch.device | str | int | None
    ) -> StaticLayer:
        """Make a layer, given the window of the model's, if it has one."""
        return StaticLayer(
            self.max_cache_len, rows=self.max_batch_size, dtype=self.dtype, device=device
        )

    def get_max_cache_shape(self, layer_idx: int = 0) -> int | None:
        """Return the positions that the cache can hold."""
        return self.max_cache_len


def number_of_rows(batch_size: int | None, max_batch_size: int | None) -> int | None:
    """Return the batch rows, which have two spellings.

    Raises:
        InvalidRequestError: They disagree.
    """
    if batch_size is not None and max_batch_size not in (None, batch_size):
        raise InvalidRequestError(
            "batch_size", batch_size, f"max_batch_size is {max_batch_size}; pass one of them"
        )
    return batch_size if max_batch_size is None else max_batch_size
