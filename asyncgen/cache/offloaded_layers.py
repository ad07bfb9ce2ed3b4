"""Layers in another memory than the device that computes, copied to it when they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen.cache.layers import DynamicLayer, StaticLayer

if TYPE_CHECKING:
    from torch import Tensor


class OffloadedLayer(DynamicLayer):
    """Growing layer in the CPU's memory; attention gets copies where it computes."""

    def write(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """See `CacheLayerMixin.append`."""
        return _copy_to_device(super().write(pair.to("cpu"), first), pair)

    append = write

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """See `DynamicLayer`."""
        return _copy_to_device(super().update(key_states, value_states), key_states)


class OffloadedStaticLayer(StaticLayer):
    """Layer of fixed shape on another device; attention gets copies where it computes."""

    _is_away = True

    def write(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """See `CacheLayerMixin.append`."""
        return _copy_to_device(super().write(pair, first), pair)

    append = write

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """See `StaticLayer`."""
        return _copy_to_device(super().update(key_states, value_states), key_states)


def _copy_to_device(pair: tuple[Tensor, Tensor], like: Tensor) -> tuple[Tensor, Tensor]:
    """Copy keys and values to the device of another tensor."""
    return pair[0].to(like.device), pair[1].to(like.device)
