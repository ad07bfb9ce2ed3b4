"""Model modules: one file per architecture, the block they share, and attention."""

from asyncgen.models.arch.registry import MODELS
from asyncgen.models.attention.dense import AttentionContext, DenseAttention
from asyncgen.models.attention.paged.attention import PagedAttention
from asyncgen.models.attention.paged.plan import PackedRow
from asyncgen.models.config import ModelConfig, RopeConfig
from asyncgen.models.decoder import DecoderLM
from asyncgen.weight_map import WeightRule

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
