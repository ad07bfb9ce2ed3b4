"""Keys and values kept between steps: a cache is a list of layers, and each layer is its own."""

from asyncgen.cache.caches import Cache, DynamicCache, StaticCache, make_cache
from asyncgen.cache.encoder_decoder import EncoderDecoderCache
from asyncgen.cache.layers import CacheLayer, DynamicLayer, StaticLayer
from asyncgen.cache.mamba import MambaCache
from asyncgen.cache.offloaded import OffloadedCache, OffloadedStaticCache
from asyncgen.cache.paged import PagedStorage, page_bytes
from asyncgen.cache.quantized import (
    CacheConfig,
    HQQQuantizedCache,
    QuantizedCache,
    QuantizedCacheConfig,
    QuantoQuantizedCache,
)
from asyncgen.cache.sink import SinkCache
from asyncgen.cache.sliding import HybridCache, SlidingLayer, SlidingWindowCache

__all__ = [
    "Cache",
    "CacheConfig",
    "CacheLayer",
    "DynamicCache",
    "DynamicLayer",
    "EncoderDecoderCache",
    "HQQQuantizedCache",
    "HybridCache",
    "MambaCache",
    "OffloadedCache",
    "OffloadedStaticCache",
    "QuantizedCache",
    "QuantizedCacheConfig",
    "QuantoQuantizedCache",
    "SinkCache",
    "SlidingLayer",
    "SlidingWindowCache",
    "PagedStorage",
    "StaticCache",
    "StaticLayer",
    "make_cache",
    "page_bytes",
]
