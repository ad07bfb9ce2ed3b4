"""The documented caches: a list of layers with the operations that generation needs.

A layer stores keys and values (`asyncgen.cache.layers`); a cache only addresses them. The classes
are named and called as in the reference documents.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch

from asyncgen.cache.layer_base import (
    AttentionLayer,
    CacheLayerMixin,
    ThroughUpdate,
    check_switches,
    positions_left,
    row_indices,
)
from asyncgen.cache.layer_windows import layer_windows
from asyncgen.cache.layers import DynamicLayer
from asyncgen.cache.offloaded_layers import OffloadedLayer
from asyncgen.cache.sliding_layers import DynamicSlidingWindowLayer
from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor

    from asyncgen.families.config import ModelConfig


class Cache:
    """Keys and values of every layer of a model, for the positions computed so far.

    Example::

        past_key_values = Cache(layers=[DynamicLayer(), DynamicSlidingWindowLayer(128)])
        past_key_values = Cache(layer_class_to_replicate=DynamicLayer)

    Attributes:
        layers: One cache layer per model layer, in order.
        offloading: True if layers lie in the CPU's memory while they are not used.
    """

    layers: list[CacheLayerMixin]

    def __init__(
        self,
        layers: Iterable[CacheLayerMixin] | None = None,
        layer_class_to_replicate: Callable[[], CacheLayerMixin] | None = None,
        offloading: bool = False,
        offload_only_non_sliding: bool = True,
    ) -> None:
        """Collect layers, or make them as they are used.

        Args:
            layers: One for each layer of the model.
            layer_class_to_replicate: Class of the layers, if they are to come as they are used.
            offloading: Keep layers in the CPU's memory while they are not used.
            offload_only_non_sliding: Leave layers with a window where they are.

        Raises:
            InvalidRequestError: Not one of the first two is given, or a switch is no switch.
        """
        if (layers is None) == (layer_class_to_replicate is None):
            given = None if layers is None else "given, as is `layer_class_to_replicate`"
            raise InvalidRequestError("layers", given, "give one of the two")
        check_switches(offloading=offloading, offload_only_non_sliding=offload_only_non_sliding)
        self._open(() if layers is None else layers, layer_class_to_replicate)
        self.offloading = offloading
        self._moves = (offloading, offload_only_non_sliding)

    def _open(
        self,
        layers: Iterable[CacheLayerMixin],
        new_layer: Callable[[], CacheLayerMixin] | None,
    ) -> None:
        """Collect the layers there are; ``new_layer`` makes one more, if there may be more."""
        self.layers = list(layers)
        self.layer_class_to_replicate = new_layer
        self.offloading = False
        self._moves = (False, False)  # whether layers move between uses; all but sliding ones

    def ensure_layers(self, count: int) -> list[CacheLayerMixin]:
        """Add empty layers until there are ``count``; return the list itself.

        Raises:
            InvalidRequestError: The layers were given, and are fewer.
        """
        while len(self.layers) < count:
            if self.layer_class_to_replicate is None:
                name = f"{type(self).__name__} of {len(self.layers)} layers"
                allowed = f"the model has {count}; give a layer for each"
                raise InvalidRequestError("past_key_values", name, allowed)
            self.layers.append(self.layer_class_to_replicate())
        return self.layers

    def attention_layers(self, count: int) -> Sequence[AttentionLayer]:
        """Return the layers that a model of ``count`` of them appends to.

        A class with an `update` of its own gets every write through that.
        """
        layers = self.ensure_layers(count)
        if type(self).update is Cache.update and not self._moves[0]:
            return layers
        return [ThroughUpdate(self, index) for index in range(count)]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values of one layer.

        Args:
            key_states: ``[B, K, S, D]``.
            value_states: ``[B, K, S, D]``.
            layer_idx: The layer.
            *args: Handed on to the layer, as is every other keyword; the layers here need none.
            **kwargs: Likewise.

        Returns:
            All keys and values of the layer, ``[B, K, T, D]`` each; of a `StaticCache` the whole
            buffers, as compiled code wants them.
        """
        layer = self.ensure_layers(layer_idx + 1)[layer_idx]
        moves, only_non_sliding = self._moves
        if not moves or (only_non_sliding and layer.is_sliding):
            return layer.update(key_states, value_states, *args, **kwargs)
        layer.prefetch()
        states = layer.update(key_states, value_states, *args, **kwargs)
        layer.offload()
        return states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of positions in the cache."""
        return self.layers[layer_idx].length if layer_idx < len(self.layers) else 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return the size of what `update` of so many positions returns for a layer, and its first
        position."""
        if layer_idx >= len(self.layers):
            return query_length, 0
        return self.layers[layer_idx].get_mask_sizes(query_length)

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Return the position of the next query: the number of positions so far."""
        return self.get_seq_length(layer_idx)

    @property
    def text_length(self) -> int:
        """Positions of the text so far, also those that a cache has dropped."""
        return self.get_seq_length()

    def get_max_cache_shape(self, layer_idx: int = 0) -> int | None:
        """Return the positions that the cache can hold, or ``None`` if it grows."""
        return None

    def get_max_length(self, layer_idx: int = 0) -> int | None:
        """Return the same as `get_max_cache_shape`, by its older name."""
        return self.get_max_cache_shape(layer_idx)

    def early_initialization(
        self,
        batch_size: int,
        num_heads: int | Sequence[int],
        head_dim: int | Sequence[int],
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        """Make the tensors of all layers before the first keys, as ``torch.export`` needs them.

        Args:
            batch_size: Batch rows, B.
            num_heads: Heads of keys and values, K, of all layers or of each.
            head_dim: Size of a head, D, of all layers or of each.
            dtype: Of keys and values.
            device: Device of the tensors.

        Raises:
            InvalidRequestError: There are other numbers than layers.
        """
        count = len(self.layers)
        given = {"num_heads": num_heads, "head_dim": head_dim}
        sizes = {}
        for name, value in given.items():
            sizes[name] = [value] * count if isinstance(value, int) else list(value)
            if len(sizes[name]) != count:
                raise InvalidRequestError(name, value, f"give one for each of the {count} layers")
        for layer, heads, size in zip(
            self.layers, sizes["num_heads"], sizes["head_dim"], strict=True
        ):
            if layer.supports_early_init and not layer.is_initialized:
                nothing = torch.zeros(batch_size, heads, 0, size, dtype=dtype, device=device)
                layer.lazy_initialization(nothing, nothing)

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
            layer.reorder_cache(beam_idx)

    def exchange_rows(self, rows: Tensor, first: int) -> None:
        """Replace the rows by those of the indices ``[B]`` (int64), from one position on.

        Args:
            rows: As many as there are.
            first: Before this position a row and its replacement are equal.
        """
        for layer in self.layers:
            layer.exchange(rows, first)

    def crop(self, max_length: int | None = None, *, tokens_to_remove: int | None = None) -> None:
        """Forget the last positions.

        Args:
            max_length: Positions to keep; or, if negative, how many to take away.
            tokens_to_remove: How many to take away, negative or not; in place of ``max_length``.

        Raises:
            InvalidRequestError: Not one of the two is given; or ``max_length`` is 0, which older
                code means as "keep none" and newer code as "take none away".
        """
        self.truncate(positions_left(self.get_seq_length(), max_length, tokens_to_remove))

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` positions, at most all."""
        for layer in self.layers:
            excess = layer.length - length
            if excess > 0:
                layer.crop(-excess)
            elif getattr(layer, "record_past", False):
                layer.crop(tokens_to_remove=0)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row ``repeats`` times, copies of a row next to each other."""
        for layer in self.layers:
            layer.batch_repeat_interleave(repeats)

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
            self.reorder_cache(row_indices(indices, rows))

    def reset(self) -> None:
        """Forget every position."""
        for layer in self.layers:
            layer.reset()

    def activate_past_recording(self) -> None:
        """Let layers with a window drop nothing until the next `crop`."""
        for layer in self.layers:
            record = getattr(layer, "activate_past_recording", None)
            if record is not None:
                record()

    def is_recording_past(self, layer_idx: int) -> bool:
        """Return whether a layer drops nothing until the next `crop`."""
        return bool(getattr(self.layers[layer_idx], "record_past", False))

    @property
    def is_sliding(self) -> list[bool]:
        """True for each layer that keeps a window only."""
        return [layer.is_sliding for layer in self.layers]

    @property
    def is_compileable(self) -> bool:
        """True if the tensors of all layers stay where they are."""
        return bool(self.layers) and all(layer.is_compileable for layer in self.layers)

    @property
    def is_croppable(self) -> bool:
        """True if `crop` leaves every layer as it was before the positions that go."""
        return all(layer.is_croppable for layer in self.layers)

    @property
    def is_initialized(self) -> bool:
        """True if all layers that can begin early have."""
        early = [layer.is_initialized for layer in self.layers if layer.supports_early_init]
        return bool(early) and all(early)

    @property
    def batch_size(self) -> int:
        """Batch rows of a cache of fixed shape; -1 if nothing fixes them yet.

        Raises:
            InvalidRequestError: Layers differ.
        """
        rows = [getattr(layer, "batch_size", None) for layer in self.layers]
        sizes = {int(each) for each in rows if each is not None}
        if len(sizes) > 1:
            raise InvalidRequestError("batch_size", sizes, "the rows of all layers must agree")
        return sizes.pop() if sizes else -1

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

        past_key_values = DynamicCache(config=model.config)
        outputs = model(**inputs, past_key_values=past_key_values, use_cache=True)
    """

    def __init__(
        self,
        ddp_cache_data: Iterable[tuple[Tensor | None, ...]] | None = None,
        config: ModelConfig | None = None,
        offloading: bool = False,
        offload_only_non_sliding: bool = False,
    ) -> None:
        """Begin empty, or with given keys and values.

        Args:
            ddp_cache_data: Keys and values ``[B, K, T, D]`` of each layer, ``None`` for one that
                has none; and, as a third, the window of the layer, if it has one.
            config: The model's, for the number of layers and their windows: a layer with one keeps
                that alone. Without it layers come as they are used, and keep everything.
            offloading: Keep the layers in the CPU's memory, on any device of the model.
            offload_only_non_sliding: Leave layers with a window, which are smaller, on the device;
                needs ``config``.

        Raises:
            InvalidRequestError: ``offload_only_non_sliding`` without ``config``, or a switch is
                none.
        """
        check_switches(offloading=offloading, offload_only_non_sliding=offload_only_non_sliding)
        if offload_only_non_sliding and config is None:
            raise InvalidRequestError("offload_only_non_sliding", True, "needs `config`")

        new_layer = partial(_growing_layer, offloading, offload_only_non_sliding)
        windows = [] if config is None else layer_windows(config)
        self._open([new_layer(window) for window in windows], new_layer)
        self.offloading = offloading
        for index, (keys, values, *window) in enumerate(ddp_cache_data or ()):
            if config is None:
                size = None if not window or window[0] is None else int(window[0])
                self.layers.append(new_layer(size))
            if keys is not None and values is not None:
                self.update(keys, values, index)

    @classmethod
    def from_legacy_cache(
        cls, past_key_values: Iterable[tuple[Tensor, Tensor]] | None = None
    ) -> Self:
        """Make a growing cache that begins with the given keys and values ``[B, K, T, D]``."""
        return cls(past_key_values)


def _growing_layer(
    offloading: bool, only_non_sliding: bool, window: int | None = None
) -> DynamicLayer:
    """Make a layer of a `DynamicCache`, with the window of the model's, if it has one."""
    if offloading and not (only_non_sliding and window is not None):
        return OffloadedLayer()
    return DynamicLayer() if window is None else DynamicSlidingWindowLayer(window)


def make_cache(config: ModelConfig, length: int | None = None) -> DynamicCache:
    """Make the cache of a call that brings none; layers with a window keep everything.

    Args:
        config: The model's.
        length: Positions that will be needed, if known: they are then allocated at once.
    """
    cache = DynamicCache()
    cache.ensure_layers(config.num_hidden_layers)
    if length is not None:
        cache.reserve(length)
    return cache
