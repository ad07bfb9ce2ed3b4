"""Names of the reference's module `transformers.cache_utils`."""

# ruff: noqa: I001
from asyncgen import (
    Cache as Cache,
    CacheConfig as CacheConfig,
    DynamicCache as DynamicCache,
    EncoderDecoderCache as EncoderDecoderCache,
    HQQQuantizedCache as HQQQuantizedCache,
    HybridCache as HybridCache,
    MambaCache as MambaCache,
    OffloadedCache as OffloadedCache,
    OffloadedStaticCache as OffloadedStaticCache,
    QuantizedCache as QuantizedCache,
    QuantizedCacheConfig as QuantizedCacheConfig,
    QuantoQuantizedCache as QuantoQuantizedCache,
    SinkCache as SinkCache,
    SlidingWindowCache as SlidingWindowCache,
    StaticCache as StaticCache,
)
