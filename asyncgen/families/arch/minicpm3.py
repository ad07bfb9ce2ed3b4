"""MiniCPM 3: latent attention; factors on embeddings, residuals and logits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from asyncgen.families.plans.declaration import Family, flag
from asyncgen.families.plans.latent_values import (
    latent_kv_heads,
    latent_names,
    latent_plan,
    latent_scale,
)

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues


def _residual_scale(values: ConfigValues) -> float:
    depth = values.positive_or_none("scale_depth")
    return 1.0 if depth is None else depth / math.sqrt(values.count("num_hidden_layers"))


def _logit_scale(values: ConfigValues) -> float:
    base = values.positive_or_none("dim_model_base")
    return 1.0 if base is None else base / values.count("hidden_size")


FAMILY = Family(
    "minicpm3",
    "MiniCPM3ForCausalLM",
    names=latent_names,
    defaults={
        "vocab_size": 73448,
        "hidden_size": 2560,
        "intermediate_size": 6400,
        "num_hidden_layers": 62,
        "num_attention_heads": 40,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "kv_lora_rank": 256,
        "q_lora_rank": 768,
        "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 64,
        "v_head_dim": 64,
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 256,
    },
    kv_heads=latent_kv_heads,
    latent=latent_plan,
    has_up_bias=flag("mlp_bias"),
    attention_scale=latent_scale,
    embedding_scale=lambda values: values.positive("scale_emb"),
    scales_rows=True,
    rounds_scale=True,
    residual_scale=_residual_scale,
    logit_scale=_logit_scale,
)
