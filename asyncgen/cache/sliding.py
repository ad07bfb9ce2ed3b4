"""Caches of models with sliding windows: they keep only the keys that a window reaches.

`SlidingWindowCache` is for models that have a window in every layer, `HybridCache` for those that
have it in some. They read windows from the model's configuration; attention makes the masks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.cache.sliding_layers import StaticSlidingWindowLayer
from asyncgen.cache.static import StaticCache
from asyncgen.errors import InvalidRequestError, InWords

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.cache.layers import StaticLayer
    from asyncgen.families.config import ModelConfig


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
                InWords("a layer without `sliding_window`"),
                "a sliding cache needs a window in every layer; use HybridCache or StaticCache",
            )
        return _sliding(self, window, device)

    def get_max_cache_shape(self, layer_idx: int = 0) -> int | None:
        """Return the positions that a layer keeps for the next one; the sequence may grow on."""
        layer = self.layers[layer_idx]
        return (
            layer.max_cache_len
            if isinstance(layer, StaticSlidingWindowLayer)
            else self.max_cache_len
        )


def _sliding(
    cache: StaticCache, window: int, device: torch.device | str | int | None
) -> StaticSlidingWindowLayer:
    """Make a layer with a window, for one of the caches here."""
    return StaticSlidingWindowLayer(
        cache.max_cache_len, window, rows=cache.max_batch_size, dtype=cache.dtype, device=device
    )
