"""Keys and values kept between steps: a cache is a list of layers, and each layer is its own."""

from asyncgen.cache.caches import Cache, DynamicCache, StaticCache, make_cache
from asyncgen.cache.encoder_decoder import EncoderDecoderCache
from asyncgen.cache.layers import CacheLayer, DynamicLayer, StaticLayer

__all__ = [
    "Cache",
    "CacheLayer",
    "DynamicCache",
    "DynamicLayer",
    "EncoderDecoderCache",
    "StaticCache",
    "StaticLayer",
    "make_cache",
]
