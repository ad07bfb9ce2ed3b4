"""Names of the reference's module `transformers.cache_utils`."""

# ruff: noqa: I001
from asyncgen import (
    Cache as Cache,
    CacheConfig as CacheConfig,
    CacheLayerMixin as CacheLayerMixin,
    DynamicCache as DynamicCache,
    DynamicLayer as DynamicLayer,
    DynamicSlidingWindowLayer as DynamicSlidingWindowLayer,
    EncoderDecoderCache as EncoderDecoderCache,
    Fp8QuantizedLayer as Fp8QuantizedLayer,
    HQQQuantizedCache as HQQQuantizedCache,
    HQQQuantizedLayer as HQQQuantizedLayer,
    HybridCache as HybridCache,
    MambaCache as MambaCache,
    OffloadedCache as OffloadedCache,
    OffloadedStaticCache as OffloadedStaticCache,
    QuantizedCache as QuantizedCache,
    QuantizedCacheConfig as QuantizedCacheConfig,
    QuantizedLayer as QuantizedLayer,
    QuantoQuantizedCache as QuantoQuantizedCache,
    QuantoQuantizedLayer as QuantoQuantizedLayer,
    SinkCache as SinkCache,
    SlidingWindowCache as SlidingWindowCache,
    StaticCache as StaticCache,
    StaticLayer as StaticLayer,
    StaticSlidingWindowLayer as StaticSlidingWindowLayer,
)
