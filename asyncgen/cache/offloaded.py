"""Caches kept away from the device that computes: less GPU memory, more copying.

A layer is copied to the device when attention asks for it, and the copy is freed afterwards. If the
model computes on the CPU these are the plain caches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.static import StaticCache

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor

    from asyncgen.families.config import ModelConfig


class OffloadedCache(DynamicCache):
    """A `DynamicCache` with keys and values in the CPU's memory."""

    def __init__(self, ddp_cache_data: Iterable[tuple[Tensor, Tensor]] | None = None) -> None:
        """Begin empty, or with given keys and values ``[B, K, T, D]`` of each layer."""
        super().__init__(ddp_cache_data, offloading=True)

    def prefetch_layer(self, layer_idx: int) -> None:
        """Do nothing: layers come by themselves when they are used."""

    def evict_previous_layer(self, layer_idx: int) -> None:
        """Do nothing: no copy outlives its use."""


class OffloadedStaticCache(StaticCache):
    """A `StaticCache` with all layers but the first on another device.

    Attributes:
        max_batch_size: Batch rows.
        max_cache_len: Positions.
        device: Device of the model.
        offload_device: Device of the layers.
        dtype: Of keys and values.
    """

    def __init__(
        self,
        config: ModelConfig,
        max_batch_size: int | None = None,
        max_cache_len: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        offload_device: torch.device | str = "cpu",
        layer_device_map: Mapping[int, str | torch.device | int] | None = None,
        *,
        batch_size: int | None = None,
    ) -> None:
        """Fix the shape.

        Args:
            config: The model's.
            max_batch_size: Batch rows, beams included; ``None``: those of the first call.
            max_cache_len: Positions; ``None``: the model's context.
            device: Device of the model; ``None``: that of the first keys.
            dtype: Of keys and values; ``None`` is float32.
            offload_device: Device of all layers but the first.
            layer_device_map: Device of single layers, if the model is spread over several.
            batch_size: Older spelling of ``max_batch_size``.

        Raises:
            InvalidRequestError: A size is below 1, both spellings disagree, or there is no length.
        """
        self.device = None if device is None else torch.device(device)
        self.offload_device = torch.device(offload_device)
        super().__init__(
            config,
            batch_size,
            max_cache_len,
            device,
            torch.float32 if dtype is None else dtype,
            layer_device_map,
            max_batch_size=max_batch_size,
            offloading=True,
            offload_device=offload_device,
        )

    @property
    def key_cache(self) -> list[Tensor]:
        """Keys of each layer that has some, ``[B, K, capacity, D]``."""
        return [layer.keys for layer in self.layers if layer.keys is not None]

    @property
    def value_cache(self) -> list[Tensor]:
        """Values of each layer that has some, ``[B, K, capacity, D]``."""
        return [layer.values for layer in self.layers if layer.values is not None]
