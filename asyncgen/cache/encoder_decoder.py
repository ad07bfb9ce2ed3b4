"""The cache of an encoder-decoder model: decoder keys and values, and those of the encoder.

Both parts are ordinary caches; this class applies operations to both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from asyncgen.cache.caches import Cache, DynamicCache
from asyncgen.errors import InvalidRequestError, InWords

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor


class EncoderDecoderCache(Cache):
    """Caches of the decoder's self-attention and of its cross-attention.

    As a `Cache` it is the first of the two: lengths count decoder positions.

    Example::

        past_key_values = EncoderDecoderCache(DynamicCache(), DynamicCache())
        outputs = model(**inputs, past_key_values=past_key_values, use_cache=True)

    Attributes:
        self_attention_cache: Keys and values of decoder positions.
        cross_attention_cache: Keys and values of encoder positions; written once.
    """

    def __init__(self, *caches: Cache | Iterable[tuple[Tensor, ...]]) -> None:
        """Join two caches, or begin with given keys and values.

        Args:
            caches: The cache of self-attention and that of cross-attention; or one iterable with
                four tensors ``[B, K, T, D]`` for each layer: keys and values of the decoder, then
                of the encoder; or nothing.

        Raises:
            InvalidRequestError: Something else.
        """
        if len(caches) == 2 and all(isinstance(cache, Cache) for cache in caches):
            own, cross = caches
        elif len(caches) <= 1 and not any(isinstance(cache, Cache) for cache in caches):
            own, cross = DynamicCache(), DynamicCache()
            for index, layer in enumerate(caches[0] if caches else ()):
                _fill(own, cross, index, layer)
        else:
            raise InvalidRequestError(
                "caches", [type(cache).__name__ for cache in caches], "give two caches"
            )
        assert isinstance(own, Cache) and isinstance(cross, Cache)
        self.self_attention_cache = own
        self.cross_attention_cache = cross
        self._open((), own.layer_class_to_replicate)
        self.layers = own.layers

    @classmethod
    def from_legacy_cache(cls, past_key_values: Iterable[tuple[Tensor, ...]] | None = None) -> Self:
        """Begin with keys and values as `to_legacy_cache` gives them, or with the first two."""
        return cls(past_key_values or ())

    def to_legacy_cache(self) -> tuple[tuple[Tensor, ...], ...]:  # type: ignore[override]
        """Return four tensors ``[B, K, T, D]`` a layer: decoder's keys and values, then the
        encoder's."""
        return tuple(self)

    @property
    def is_updated(self) -> dict[int, bool]:
        """True for each layer that has the encoder's keys and values."""
        cross = self.cross_attention_cache
        return {index: cross.get_seq_length(index) > 0 for index in range(len(self.layers))}

    def ensure_layers(self, count: int) -> list[Any]:
        """Add empty layers for decoder positions until there are ``count``."""
        return self.self_attention_cache.ensure_layers(count)

    def get_max_cache_shape(self, layer_idx: int = 0) -> int | None:
        """Return the decoder positions that the cache can hold, or ``None`` if it grows."""
        return self.self_attention_cache.get_max_cache_shape(layer_idx)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replace the rows by those of the indices ``[B]`` (int64), as beam search needs."""
        self.self_attention_cache.reorder_cache(beam_idx)
        self.cross_attention_cache.reorder_cache(beam_idx)

    def exchange_rows(self, rows: Tensor, first: int) -> None:
        """Exchange rows of the decoder's part; rows of a text share the encoder's output."""
        self.self_attention_cache.exchange_rows(rows, first)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row ``repeats`` times, copies of a row next to each other."""
        self.self_attention_cache.batch_repeat_interleave(repeats)
        self.cross_attention_cache.batch_repeat_interleave(repeats)

    def reset(self) -> None:
        """Forget every position of both."""
        self.self_attention_cache.reset()
        self.cross_attention_cache.reset()

    def __getitem__(self, layer_idx: int) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Return four tensors ``[B, K, T, D]`` of a layer; the decoder's two before the encoder
        ran.

        Raises:
            IndexError: There is no such layer, or nothing was written to it yet.
        """
        own = self.self_attention_cache[layer_idx]
        cross = self.cross_attention_cache
        is_there = cross.get_seq_length(layer_idx) > 0
        return (*own, *cross[layer_idx]) if is_there else own

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield the tensors of each layer that was written to."""
        for index, layer in enumerate(self.layers):
            if layer.is_initialized:
                yield self[index]

    def __repr__(self) -> str:
        """Show both parts."""
        return (
            f"EncoderDecoderCache(self_attention_cache={self.self_attention_cache!r}, "
            f"cross_attention_cache={self.cross_attention_cache!r})"
        )


def _fill(own: Cache, cross: Cache, index: int, layer: tuple[Tensor, ...]) -> None:
    """Write the two or four tensors of a layer."""
    if len(layer) not in (2, 4):
        raise InvalidRequestError(
            "past_key_values",
            InWords(f"{len(layer)} tensors in layer {index}"),
            "give two or four a layer",
        )
    own.update(layer[0], layer[1], index)
    if len(layer) == 4:
        cross.update(layer[2], layer[3], index)
