"""Model modules: one file per architecture, the block they share, and attention."""

from asyncgen.models.arch.registry import MODELS
from asyncgen.models.attention.dense import AttentionContext, DenseAttention
from asyncgen.models.attention.paged.attention import PackedRow, PagedAttention
from asyncgen.models.config import ModelConfig, RopeConfig
from asyncgen.models.decoder import DecoderLM
from asyncgen.models.weight_map import WeightRule

__all__ = [
    "MODELS",
    "AttentionContext",
    "DecoderLM",
    "DenseAttention",
    "ModelConfig",
    "PackedRow",
    "PagedAttention",
    "RopeConfig",
    "WeightRule",
]
