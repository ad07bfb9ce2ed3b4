"""Layers that lie on another device than they are used on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.cache.layers import DynamicLayer, StaticLayer

if TYPE_CHECKING:
    from torch import Tensor


class OffloadedLayer(DynamicLayer):
    """A growing layer in the CPU's memory; attention gets copies where it computes."""

    __slots__ = ()

    def append(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """See `CacheLayer`."""
        keys, values = super().append(pair.to("cpu"), first)
        return keys.to(pair.device), values.to(pair.device)

    def update(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """See `CacheLayer`."""
        keys, values = super().update(key_states, value_states)
        return keys.to(key_states.device), values.to(key_states.device)


class OffloadedStaticLayer(StaticLayer):
    """A layer of fixed shape on another device; attention gets copies where it computes."""

    __slots__ = ()

    _is_away = True

    def append(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """See `CacheLayer`."""
        keys, values = super().append(pair, first)
        return keys.to(pair.device), values.to(pair.device)

    def update(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """See `StaticLayer`."""
        keys, values = super().update(key_states, value_states)
        return keys.to(key_states.device), values.to(key_states.device)
