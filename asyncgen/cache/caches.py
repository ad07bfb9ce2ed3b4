"""The documented caches: a list of layers with the operations that generation needs.

A layer stores keys and values (`asyncgen.cache.layers`); a cache only addresses them. The classes
are named and called as in the reference documents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from asyncgen.cache.layers import (
    DynamicLayer,
    Layer,
    OffloadedLayer,
    OffloadedStaticLayer,
    StaticLayer,
)
from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

    from asyncgen.families.config import ModelConfig


class Cache:
    """Keys and values of every layer of a model, for the positions computed so far.

    Attributes:
        layers: One cache layer per model layer, in order.
    """

    layers: list[Layer]

    def __init__(self, layers: Iterable[Layer], new_layer: Callable[[], Layer]) -> None:
        """Collect layers.

        Args:
            layers: Those there are already.
            new_layer: Makes one more, for models whose depth was not known at the start.
        """
        self.layers = list(layers)
        self._new_layer = new_layer

    def ensure_layers(self, count: int) -> list[Layer]:
        """Add empty layers until there are ``count``; return the list itself."""
        while len(self.layers) < count:
            self.layers.append(self._new_layer())
        return self.layers

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        cache_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values of one layer.

        Args:
            key_states: ``[B, K, S, D]``.
            value_states: ``[B, K, S, D]``.
            layer_idx: The layer.
            cache_kwargs: Accepted as documented; these caches need none of it.

        Returns:
            All keys and values of the layer, ``[B, K, T, D]`` each; of a `StaticCache` the whole
            buffers, as compiled code wants them.
        """
        return self.ensure_layers(layer_idx + 1)[layer_idx].update(key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of positions in the cache."""
        return self.layers[layer_idx].length if layer_idx < len(self.layers) else 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int | None:
        """Return the positions that the cache can hold, or ``None`` if it grows."""
        return None

    def get_max_length(self, layer_idx: int = 0) -> int | None:
        """Return the same as `get_max_cache_shape`, by its older name."""
        return self.get_max_cache_shape(layer_idx)

    def reserve(self, length: int) -> None:
        """Allocate room for ``length`` positions at once.

        Raises:
            InvalidRequestError: The cache cannot grow that far.
        """
        for layer in self.layers:
            layer.reserve(length)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replace the rows by those of the indices ``[B]`` (int64), as beam search needs."""
        for layer in self.layers:
            layer.reorder(beam_idx)

    def exchange_rows(self, rows: Tensor, first: int) -> None:
        """Replace the rows by those of the indices ``[B]`` (int64), from one position on.

        Args:
            rows: As many as there are.
            first: Before this position a row and its replacement are equal.
        """
        for layer in self.layers:
            layer.exchange(rows, first)

    def crop(self, max_length: int) -> None:
        """Keep the first ``max_length`` positions; a negative number takes that many away."""
        for layer in self.layers:
            layer.crop(max_length)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row ``repeats`` times, copies of a row next to each other."""
        for layer in self.layers:
            layer.repeat(repeats)

    def batch_select_indices(self, indices: Tensor | Sequence[int] | Sequence[bool]) -> None:
        """Keep some of the rows.

        Args:
            indices: Rows to keep, in the order wanted, ``[B']``; or a truth value for each row,
                ``[B]``. A tensor, an array, a list or a tuple; a negative index counts from the
                last row.

        Raises:
            InvalidRequestError: It is none of these, or there is no such row.
        """
        rows = next((len(layer.keys) for layer in self.layers if layer.keys is not None), None)
        if rows is not None:
            self.reorder_cache(_row_indices(indices, rows))

    def reset(self) -> None:
        """Forget every position."""
        for layer in self.layers:
            layer.reset()

    def to_legacy_cache(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """Return the keys and values of each layer, as older code passes them around."""
        return tuple(self)

    def __len__(self) -> int:
        """Return the number of layers."""
        return len(self.layers)

    def __getitem__(self, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of a layer, ``[B, K, T, D]`` each.

        Raises:
            IndexError: There is no such layer, or nothing was written to it yet.
        """
        keys, values = self.layers[layer_idx].keys, self.layers[layer_idx].values
        if keys is None or values is None:
            raise IndexError(f"layer {layer_idx} of the cache is empty")
        return keys, values

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield keys and values of each layer that was written to."""
        for index, layer in enumerate(self.layers):
            if layer.is_initialized:
                yield self[index]

    def __repr__(self) -> str:
        """Show name, layers and positions."""
        name, positions = type(self).__name__, self.get_seq_length()
        return f"{name}(layers={len(self.layers)}, positions={positions})"


class DynamicCache(Cache):
    """A cache that grows as more tokens are generated; the default.

    Example::

        past_key_values = DynamicCache()
        outputs = model(**inputs, past_key_values=past_key_values, use_cache=True)
    """

    def __init__(
        self,
        ddp_cache_data: Iterable[tuple[Tensor, Tensor]] | None = None,
        config: ModelConfig | None = None,
        offloading: bool = False,
        offload_only_non_sliding: bool = False,
    ) -> None:
        """Begin empty, or with given keys and values.

        Args:
            ddp_cache_data: Keys and values ``[B, K, T, D]`` of each layer.
            config: The model's, for the number of layers; without it they come as they are used.
            offloading: Keep the layers in the CPU's memory, on any device of the model.
            offload_only_non_sliding: Leave layers with a window, which are smaller, on the device;
                needs ``config``.

        Raises:
            InvalidRequestError: ``offload_only_non_sliding`` without ``config``.
        """
        if offload_only_non_sliding and config is None:
            raise InvalidRequestError("offload_only_non_sliding", True, "needs `config`")

        def new_layer(index: int | None = None) -> DynamicLayer:
            stays = config is not None and index is not None and config.window(index) is not None
            is_away = offloading and not (offload_only_non_sliding and stays)
            return OffloadedLayer() if is_away else DynamicLayer()

        depth = 0 if config is None else config.num_hidden_layers
        super().__init__([new_layer(index) for index in range(depth)], new_layer)
        for index, (keys, values) in enumerate(ddp_cache_data or ()):
            self.update(keys, values, index)

    @classmethod
    def from_legacy_cache(
        cls, past_key_values: Iterable[tuple[Tensor, Tensor]] | None = None
    ) -> Self:
        """Make a growing cache that begins with the given keys and values ``[B, K, T, D]``."""
        return cls(past_key_values)


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
            InvalidRequestError: A size is below 1, both spellings disagree, or there is no length.
        """
        rows = number_of_rows(batch_size, max_batch_size)
        length = config.max_position_embeddings if max_cache_len is None else max_cache_len
        if length is None:
            raise InvalidRequestError(
                "max_cache_len", None, "the model has no longest context; give a length"
            )
        for name, value in (("max_batch_size", rows), ("max_cache_len", length)):
            if value is not None and value < 1:
                raise InvalidRequestError(name, value, "must be at least 1")
        devices = layer_device_map or {}
        self.max_batch_size = rows
        self.max_cache_len = length
        self.dtype = dtype

        def new_layer(index: int = 0) -> Layer:
            window, place = config.window(index), devices.get(index, device)
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

        super().__init__([new_layer(i) for i in range(config.num_hidden_layers)], new_layer)

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


def _row_indices(indices: Any, rows: int) -> Tensor:
    """Read row indices or truth values as indices, int64 ``[B']``, none of them negative."""
    allowed = f"give one or more of the {rows} rows, or a truth value for each"
    try:
        found = torch.as_tensor(indices)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InvalidRequestError("indices", indices, allowed) from error
    if found.dtype is torch.bool and found.shape == (rows,):
        found = found.nonzero()[:, 0]
    fits = found.dim() == 1 and found.numel() > 0 and not found.is_floating_point()
    if (
        found.dtype is torch.bool
        or not fits
        or not -rows <= int(found.min()) <= int(found.max()) < rows
    ):
        raise InvalidRequestError("indices", indices, allowed)
    return found.to(torch.int64) % rows


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


def make_cache(config: ModelConfig, length: int | None = None) -> DynamicCache:
    """Make the cache of a call that brings none.

    Args:
        config: The model's.
        length: Positions that will be needed, if known: they are then allocated at once.
    """
    cache = DynamicCache(config=config)
    if length is not None:
        cache.reserve(length)
    return cache
